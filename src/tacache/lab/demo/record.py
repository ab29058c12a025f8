"""What a demo has measured, and which of its plans stands in the first sentence."""

from collections.abc import Sequence
from statistics import fmean, median

from pydantic import Field

from tacache.storage.files import Frozen

KEPT = 35.0  # dB to the full-step result, above which both are hard to tell apart
LOST = 25.0  # dB, below which they differ plainly
OURS, PAPER = ("fitted", "linear"), "tasu"
MEANS = ("psnr", "ssim", "change_psnr", "change_ssim")


class Picture(Frozen):
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
    no rule.
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

    `equivalent_steps` says of shipped plans that are fitted to the flow, by their evaluations, how
    many Euler steps are as near to it.
    """

    model: str
    steps: int
    seed: int
    prompts: tuple[str, ...]
    budgets: tuple[Budget, ...]
    pictures: tuple[Picture, ...]
    profile: str
    fps: int | None = None  # of clips
    machine: str | None = None
    equivalent_steps: dict[int, float] = Field(default_factory=dict)

    @property
    def noun(self) -> str:
        """The word for what was made."""
        return "picture" if self.fps is None else "clip"

    @property
    def full(self) -> Budget:
        """The run with all steps."""
        return self.budgets[0]

    def found(self, rule: str, evaluations: int) -> Budget | None:
        """What this rule reached with so many evaluations."""
        wanted = (rule, evaluations)
        return next((one for one in self.budgets if (one.rule, one.evaluations) == wanted), None)


def headline(budgets: Sequence[Budget], least: float = KEPT) -> Budget | None:
    """The fewest evaluations of ours whose mean PSNR is at least this; None where none reaches it.

    Where two plans of ours have as many evaluations, the one with the higher PSNR counts.
    """
    kept = [one for one in budgets if one.rule in OURS and (one.psnr or 0.0) >= least]
    return min(kept, key=lambda one: (one.evaluations, -(one.psnr or 0.0)), default=None)


def nearest(budgets: Sequence[Budget]) -> Budget | None:
    """Our plan with the highest mean PSNR, for where none keeps enough."""
    ours = [one for one in budgets if one.rule in OURS]
    return max(ours, key=lambda one: one.psnr or 0.0, default=None)


def chosen(made: ModelDemo) -> list[Budget]:
    """Full steps, and ours and the paper's with the most and the fewest evaluations, if run.

    Ours is the fitted plan where there is one, and else the instant one.
    """
    rule = next((rule for rule in OURS if any(one.rule == rule for one in made.budgets)), None)
    rows = [made.full]
    for wanted in (rule, PAPER):
        there = [one for one in made.budgets[1:] if one.rule == wanted]
        ends = [end(there, key=lambda one: one.evaluations) for end in (max, min) if there]
        rows += ends[:1] if len(there) == 1 else ends
    return rows


def summed_up(row: Sequence[Picture], full: Sequence[Picture], plan: str | None) -> Budget:
    """The figures of one plan over all prompts; its speedup is the ratio of median times."""
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
