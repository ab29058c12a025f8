"""What a user asks of `accelerate`: how fast or how well, by which plan, and whether to learn."""

from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from tacache.errors import PlanError
from tacache.fitting.quality_goal import Measure, QualityGoal, check_one_budget
from tacache.grid import budget_for
from tacache.instant import default_evaluations
from tacache.plan import Plan, as_plan

MIN_LEARNED = 2  # samples of a fit: one of them is held out to judge it


@dataclass(frozen=True, kw_only=True)
class AccelerateOptions:
    """How fast or how near calls shall be, by which plan, and whether they teach a better one.

    `speedup`, `evaluations`, `like_steps` and `min_psnr` exclude each other. `plan` may be the path
    of a plan's file, which is read at once.
    """

    speedup: float | None = None
    evaluations: int | None = None
    like_steps: int | None = None
    min_psnr: float | None = None
    psnr_of: Measure = "mean"
    learn: int = 0
    plan: Plan | str | Path | None = None

    def __post_init__(self) -> None:
        """Refuse what is no such option, and read the plan."""
        for name, number in (("evaluations", self.evaluations), ("learn", self.learn)):
            is_whole = isinstance(number, Integral) and not isinstance(number, bool)
            if number is not None and not is_whole:
                raise PlanError(f"{name} is a whole number, not {number!r}")
        if isinstance(self.speedup, bool) or not isinstance(self.speedup, Real | None):
            raise PlanError(f"speedup is a number, not {self.speedup!r}")
        names = ("speedup", "evaluations", "like_steps", "min_psnr")
        check_one_budget({name: getattr(self, name) for name in names})
        QualityGoal.of(self.like_steps, self.min_psnr, self.psnr_of)  # refuses what is no quality
        if self.evaluations is not None and self.evaluations < 1:
            raise PlanError(f"evaluations is at least 1, not {self.evaluations}")
        if self.speedup is not None:
            budget_for(1, self.speedup)  # refuses what is no speedup
        if self.learn != 0 and self.learn < MIN_LEARNED:
            raise PlanError(
                f"learn is 0 or at least {MIN_LEARNED}, since one sample is held out to judge the "
                f"plan; it is {self.learn}"
            )
        if self.plan is not None:
            object.__setattr__(self, "plan", as_plan(self.plan))

    @property
    def own_plan(self) -> Plan | None:
        """Return the plan that the user gave."""
        return self.plan if isinstance(self.plan, Plan) else None

    @property
    def goal(self) -> QualityGoal | None:
        """Return the quality that is asked for in the place of a speed."""
        return QualityGoal.of(self.like_steps, self.min_psnr, self.psnr_of)

    def budget(self, steps: int, whole: int, parts: int) -> int:
        """Return the evaluations of a run with so many steps, of `whole` where it is not cut short.

        Without a number or a speedup it is the usual one for so many steps. Each of its parts takes
        one.
        """
        if self.evaluations is not None:
            asked = self.evaluations
            asked = asked if steps == whole else round(asked * steps / whole)
        elif self.speedup is not None:
            asked = budget_for(steps, self.speedup)
        else:
            asked = default_evaluations(steps)
        return max(asked, parts)
