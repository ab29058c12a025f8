"""A quality that is asked for in the place of a number of evaluations, and what promises it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal, TypeVar, get_args

from tacache.errors import PlanError
from tacache.plan import MAX_EQUIVALENT_STEPS, MAX_PSNR, Certificate, Plan
from tacache.storage.signature import target_of

Measure = Literal["mean", "p5"]
Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True)
class QualityGoal:
    """How near a result shall come: to the flow as so many Euler steps, or to the full run in dB.

    A PSNR is the mean over held-out pictures, or with `psnr_of="p5"` their 5th percentile.
    Exactly one of `like_steps` and `min_psnr` is given.
    """

    like_steps: int | None = None
    min_psnr: float | None = None
    psnr_of: Measure = "mean"

    def __post_init__(self) -> None:
        """Refuse what is no quality."""
        steps, psnr = self.like_steps, self.min_psnr
        if (steps is None) == (psnr is None):
            raise PlanError("a quality is like_steps or min_psnr, one of them")
        whole = isinstance(steps, Integral) and not isinstance(steps, bool)
        if steps is not None and not (whole and 1 <= steps <= MAX_EQUIVALENT_STEPS):
            raise PlanError(f"like_steps is a whole number of Euler steps from 1 on, not {steps!r}")
        real = isinstance(psnr, Real) and not isinstance(psnr, bool) and math.isfinite(psnr)
        if psnr is not None and not (real and 0 < psnr < MAX_PSNR):
            raise PlanError(f"min_psnr is a number of dB above 0, such as 35, not {psnr!r}")
        if self.psnr_of not in get_args(Measure):
            raise PlanError(f"psnr_of is {' or '.join(get_args(Measure))}, not {self.psnr_of!r}")
        if steps is not None and self.psnr_of != "mean":
            raise PlanError("psnr_of goes with min_psnr: like_steps has no PSNR")

    @classmethod
    def of(
        cls, like_steps: int | None, min_psnr: float | None, psnr_of: Measure = "mean"
    ) -> "QualityGoal | None":
        """Return the quality that options name, or None where they name none."""
        if like_steps is None and min_psnr is None:
            if psnr_of != "mean":
                raise PlanError("psnr_of goes with min_psnr, which is not given")
            return None
        return cls(like_steps=like_steps, min_psnr=min_psnr, psnr_of=psnr_of)

    @property
    def target(self) -> Literal["run", "flow"]:
        """Return what plans that reach this are fitted to."""
        return "run" if self.like_steps is None else "flow"

    @property
    def wanted(self) -> float:
        """Return the figure that a certificate must reach."""
        return float(self.min_psnr if self.like_steps is None else self.like_steps)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        """Return what is asked for, in words."""
        if self.like_steps is not None:
            return f"as near to the flow as {self.like_steps} Euler steps"
        held_out = "in the mean" if self.psnr_of == "mean" else "at the 5th percentile"
        return f"a PSNR of {self.min_psnr:g} dB to the full run {held_out}"

    def reached_by(self, certificate: Certificate | None) -> float | None:
        """Return the figure of a certificate that this asks for, or None where it has none."""
        if certificate is None:
            return None
        if self.like_steps is not None:
            return certificate.equivalent_steps
        return certificate.psnr if self.psnr_of == "mean" else certificate.p5_psnr

    def promised_by(self, certificate: Certificate | None) -> bool:
        """Return whether a certificate promises this."""
        reached = self.reached_by(certificate)
        return reached is not None and reached >= self.wanted

    def kept_by_all(self, steps: int) -> bool:
        """Return whether a full run of so many steps keeps it: it is what PSNR compares with."""
        return self.like_steps is None or self.like_steps <= steps

    def for_part(self, steps: int, whole: int) -> "QualityGoal":
        """Return what is asked of a run of which an image leaves so many of the whole's steps."""
        if self.like_steps is None or not 0 < steps < whole:
            return self
        return replace(self, like_steps=max(1, round(self.like_steps * steps / whole)))

    def fewest(self, entries: Iterable[Kept], plan_of: Callable[[Kept], Plan]) -> Kept | None:
        """Return the entry whose plan promises this with the fewest evaluations, or None.

        Among equals, one that was fitted to what is asked for comes first, then the nearest one,
        then the first.
        """

        def order(entry: Kept) -> tuple[int, bool, float]:
            plan = plan_of(entry)
            reached = self.reached_by(plan.certificate) or 0.0
            return plan.evaluations, target_of(plan) != self.target, -reached

        promising = (entry for entry in entries if self.promised_by(plan_of(entry).certificate))
        return min(promising, key=order, default=None)

    def best_of(self, plans: Sequence[Plan]) -> str:
        """Return how near the best of some plans comes, in words."""
        known = [
            (reached, plan.evaluations)
            for plan in plans
            if (reached := self.reached_by(plan.certificate)) is not None
        ]
        if not known:
            return "no plan has such a figure in its certificate"
        reached, evaluations = max(known)
        unit = "dB" if self.like_steps is None else "Euler steps"
        return f"the best is {reached:.1f} {unit}, with {evaluations} evaluations"


def check_one_budget(options: Mapping[str, object]) -> None:
    """Refuse options of which several decide how often a run is evaluated."""
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise PlanError(
            f"give one of {', '.join(options)}, not {' and '.join(named)}: each of them decides "
            "how often the model is evaluated"
        )
