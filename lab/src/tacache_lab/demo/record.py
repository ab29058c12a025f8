"""What a demo has measured, and which of its plans stands in the first sentence."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from pydantic import Field

from tacache.storage.files import Frozen
from tacache_lab.demo.measured import Measured

KEPT = 35.0  # dB to the full-step result, above which both are hard to tell apart
LOST = 25.0  # dB, below which they differ plainly
OURS, PAPER, PLAIN = ("fitted", "linear"), "tasu", "plain"
RULES = (PLAIN, "linear", "fitted", PAPER)  # the columns of tables and pages
MEANS = ("psnr", "ssim", "change_psnr", "change_ssim")


class DemoPicture(Frozen):
    """One prompt by one plan, or with full steps, and how it compares to full steps.

    Of a clip, PSNR and SSIM are means over its frames, and `change_` says the same of the
    differences of neighbouring frames: whether it moves alike.
    """

    prompt: str
    evaluations: int
    file: str
    seconds: float
    rule: str | None = None  # of full steps there is none
    psnr: float | None = None
    ssim: float | None = None
    change_psnr: float | None = None
    change_ssim: float | None = None


class Budget(Frozen):
    """One plan: the median time and mean fidelity of the prompts, and the tail of their PSNR.

    `lowest` is the lowest PSNR, `lost` says how many are below 25 dB. Full steps have no plan and
    no rule; a run of fewer plain steps has no plan either, and the rule `plain`.
    """

    evaluations: int
    seconds: float
    speedup: float
    rule: str | None = None
    psnr: float | None = None
    ssim: float | None = None
    change_psnr: float | None = None
    change_ssim: float | None = None
    lowest: float | None = None
    lost: int | None = None
    plan: str | None = None


class ModelDemo(Frozen):
    """What the demo measured on a model; files are named from the demo's folder.

    `equivalent_steps` says of plans that are fitted to the flow, by their evaluations, how many
    Euler steps are as near to it. `measured` has figures over more prompts than these, and `others`
    the same prompts at another number of steps or by another model.
    """

    model: str
    steps: int
    seed: int
    prompts: tuple[str, ...]
    budgets: tuple[Budget, ...]
    pictures: tuple[DemoPicture, ...]
    profile: str
    fps: int | None = None  # of clips
    machine: str | None = None
    equivalent_steps: dict[int, float] = Field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    others: tuple["ModelDemo", ...] = ()

    @property
    def noun(self) -> str:
        """Return the word for what was made."""
        return "picture" if self.fps is None else "clip"

    @property
    def full(self) -> Budget:
        """Return the run with all steps."""
        return self.budgets[0]

    @property
    def evaluations(self) -> list[int]:
        """Return the budgets that were drawn beside full steps, in order."""
        return list(dict.fromkeys(budget.evaluations for budget in self.budgets[1:]))

    def reached(self, rule: str, evaluations: int) -> Budget | None:
        """Return what this rule reached with so many evaluations."""
        key = (rule, evaluations)
        return next(
            (budget for budget in self.budgets if (budget.rule, budget.evaluations) == key), None
        )

    def known(self, rule: str, evaluations: int) -> Measured | None:
        """Return what was measured of this rule over more prompts."""
        key = (rule, evaluations)
        return next((row for row in self.measured if (row.rule, row.evaluations) == key), None)

    def picture(self, prompt: str, rule: str, evaluations: int) -> DemoPicture | None:
        """Return the picture of a prompt by a rule."""
        key = (prompt, rule, evaluations)
        return next(
            (
                picture
                for picture in self.pictures
                if (picture.prompt, picture.rule, picture.evaluations) == key
            ),
            None,
        )

    def all_runs(self) -> Iterator["ModelDemo"]:
        """Yield this demo, and the others that it holds."""
        yield self
        for other in self.others:
            yield from other.all_runs()


def headline(budgets: Sequence[Budget], least: float = KEPT) -> Budget | None:
    """Return our plan of the fewest evaluations whose mean PSNR is at least this, if any.

    Where two plans of ours have as many evaluations, the one with the higher PSNR counts.
    """
    kept = [budget for budget in budgets if budget.rule in OURS and (budget.psnr or 0.0) >= least]
    return min(kept, key=lambda budget: (budget.evaluations, -(budget.psnr or 0.0)), default=None)


def nearest(budgets: Sequence[Budget]) -> Budget | None:
    """Return our plan with the highest mean PSNR, for where none keeps enough."""
    ours = [budget for budget in budgets if budget.rule in OURS]
    return max(ours, key=lambda budget: budget.psnr or 0.0, default=None)


def summed_up(row: Sequence[DemoPicture], full: Sequence[DemoPicture], plan: str | None) -> Budget:
    """Return the figures of one plan over all prompts; its speedup is the ratio of median times."""
    seconds, whole = (median(picture.seconds for picture in some) for some in (row, full))
    known = [picture.psnr for picture in row if picture.psnr is not None]
    return Budget(
        evaluations=row[0].evaluations,
        seconds=seconds,
        speedup=whole / seconds,
        rule=row[0].rule,
        lowest=min(known, default=None),
        lost=sum(psnr < LOST for psnr in known) if known else None,
        plan=plan,
        **{name: _mean([getattr(picture, name) for picture in row]) for name in MEANS},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
