"""What a fit is asked for, and how much work it may do."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tacache.errors import PlanError
from tacache.fitting.quality_goal import Measure, QualityGoal, check_one_budget
from tacache.plan import MAX_HISTORY

Target = Literal["run", "flow"]  # what a fit's intervals lead to
MAX_EVALUATIONS = 3000  # of one fit, unless told otherwise
MAX_QUICK_EVALUATIONS = 1500  # of one without a search


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What plans are fitted to and for which budgets, and what that may cost.

    `evaluations` are the budgets, each with a plan of its own. In their place `like_steps` (as near
    to the flow as so many Euler steps) or `min_psnr` (to the full run, in dB; with `psnr_of="p5"`
    the 5th percentile over held-out pictures) asks for the fewest that reach it. `target` is the
    full run, or the flow that the full run approximates, which `like_steps` aims at;
    `reference_steps` are those of the second run that says where the flow leads (twice as many,
    unless told). `history` says from what an interval is rebuilt: 1, the velocity of its anchor; 2,
    the last two; 3, a memory of all before. `max_evaluations` bounds the fit of one budget, the
    full runs included. `search=False` keeps the anchors that a dynamic program finds.
    `keep_better=True` gives the instant plan where held-out samples end nearer by it. `resume`
    names a file that keeps the full runs of a killed fit.
    """

    evaluations: tuple[int, ...] = ()
    like_steps: int | None = None
    min_psnr: float | None = None
    psnr_of: Measure = "mean"
    target: Target = "run"
    reference_steps: int | None = None
    history: int = MAX_HISTORY
    max_evaluations: int = MAX_EVALUATIONS
    search: bool = True
    keep_better: bool = False
    resume: Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        """Refuse what no fit can be asked for."""
        if self.target not in get_args(Target):
            raise PlanError(f"target is {' or '.join(get_args(Target))}, not {self.target!r}")
        check_one_budget(
            {
                "evaluations": self.evaluations or None,
                "like_steps": self.like_steps,
                "min_psnr": self.min_psnr,
            }
        )
        goal = self.goal
        if goal is not None and goal.target == "flow":
            object.__setattr__(self, "target", "flow")
        if goal is not None and goal.target != self.target:
            raise PlanError("min_psnr is to the full run: leave target='flow' out")
        if not 1 <= self.history <= MAX_HISTORY:
            raise PlanError(
                f"history is 1 (the newest velocity), 2 (the last two) or {MAX_HISTORY} (a memory "
                f"of all before the newest), not {self.history}"
            )

    @classmethod
    def split(cls, keywords: Mapping[str, Any]) -> "tuple[FitOptions, dict[str, Any]]":
        """Return the options among keyword arguments, and the others, which go to the host."""
        own = {field.name for field in fields(cls)}
        options = {name: value for name, value in keywords.items() if name in own}
        if options.get("resume") is not None:
            options["resume"] = Path(options["resume"])
        call = {name: value for name, value in keywords.items() if name not in own}
        budgets = options.get("evaluations")
        options["evaluations"] = (budgets,) if isinstance(budgets, int) else tuple(budgets or ())
        return cls(**options), call

    @property
    def goal(self) -> QualityGoal | None:
        """Return the quality that is asked for in the place of budgets."""
        return QualityGoal.of(self.like_steps, self.min_psnr, self.psnr_of)

    @property
    def limit(self) -> int:
        """Return the evaluations that one fit may spend."""
        is_usual = self.max_evaluations == MAX_EVALUATIONS
        return MAX_QUICK_EVALUATIONS if is_usual and not self.search else self.max_evaluations
