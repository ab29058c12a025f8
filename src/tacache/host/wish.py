"""What a user asks of `accelerate`: how fast, by which plan, and whether to learn a better one."""

from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple

from tacache.errors import PlanError
from tacache.plan import Plan, as_plan
from tacache.schedule import budget_for

SPEEDUP = 4.0  # unless told
FEWEST_SAMPLES = 2  # of a fit: one of them is held out to judge it


class Wish(NamedTuple):
    """What a user asked of `accelerate`."""

    speedup: float | None = None
    evaluations: int | None = None
    learn: int = 0
    plan: Plan | None = None

    def budget(self, steps: int, whole: int, parts: int) -> int:
        """The evaluations of a run with so many steps, which are `whole` where it is not cut short.

        Each of its parts takes one.
        """
        if self.evaluations is None:
            asked = budget_for(steps, self.speedup if self.speedup is not None else SPEEDUP)
        else:
            asked = self.evaluations
            asked = asked if steps == whole else round(asked * steps / whole)
        return max(asked, parts)

    def near(self, evaluations: int, steps: int) -> range:
        """The evaluations that a stored plan may have: one more where a speedup is rounded up.

        A speedup of 4 asks for 12.5 of 50 evaluations: 12 or, where no such plan is stored, 13.
        """
        asked = self.speedup if self.speedup is not None else SPEEDUP
        rounded = self.evaluations is None and steps / evaluations > asked + 1e-9
        return range(evaluations, evaluations + 1 + rounded)


def wish_of(
    speedup: float | None, evaluations: int | None, learn: int, plan: Plan | str | Path | None
) -> Wish:
    """The wish that these arguments express, or an error that says what is wrong with them."""
    for name, number in (("evaluations", evaluations), ("learn", learn)):
        if number is not None and not isinstance(number, Integral):
            raise PlanError(f"{name} is a whole number, not {number!r}")
    if speedup is not None and not isinstance(speedup, Real):
        raise PlanError(f"speedup is a number, not {speedup!r}")
    if speedup is not None and evaluations is not None:
        raise PlanError("give speedup or evaluations, not both: one follows from the other")
    if evaluations is not None and evaluations < 1:
        raise PlanError(f"evaluations is at least 1, not {evaluations}")
    budget_for(1, speedup if speedup is not None else SPEEDUP)  # refuses what is no speedup
    if learn != 0 and learn < FEWEST_SAMPLES:
        raise PlanError(
            f"learn is 0 or at least {FEWEST_SAMPLES}, since one sample is held out to judge the "
            f"plan; it is {learn}"
        )
    return Wish(speedup, evaluations, learn, None if plan is None else as_plan(plan))
