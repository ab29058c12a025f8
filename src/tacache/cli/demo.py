"""`tacache demo`."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from rich.table import Table
from rich.text import Text

from tacache import models
from tacache.cli.arguments import check_folder, numbers
from tacache.cli.options import CALLED, Json
from tacache.cli.printing import print_json, say, show
from tacache.cli.render import ANCHOR, SKIP, strip
from tacache.errors import HostError, TACacheError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.schedule import MAX_SKIP, walk
from tacache.storage.reading import parse_json, read_bounded

if TYPE_CHECKING:
    from tacache.lab.demo.run import Comparison, ModelDemo

MODEL, VIDEO_MODEL = "tiny-flux", "tiny-wan"


@dataclass(frozen=True)
class Run:
    """How the full runs are made."""

    PANEL: ClassVar = CALLED
    steps: Annotated[int, typer.Option(min=10, help="Steps of the full run.")] = 50
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0


def demo(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help='What to draw, such as "a red apple" (default: six prompts).'),
    ] = None,
    *,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13,7 (default: 25,13,10,7).")
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Clips instead of pictures, as GIF and MP4.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure a new profile instead of the shipped one.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for files.")] = Path("demo"),
    run: Run,
    as_json: Json = False,
) -> None:
    """Draw pictures with the embedded model: full steps beside TACache, with times and fidelity.

    The folder gets the pictures or clips, their numbers (demo.json) and a page (index.html).

    [bold]Examples[/bold]

    tacache demo

    tacache demo "a red apple" --evaluations 10

    tacache demo --video "a cat moves to the left"
    """
    check_folder(out)
    check_ours(out)
    model = VIDEO_MODEL if video else MODEL
    if evaluations:
        budgets = checked_budgets(numbers(evaluations), run.steps)
    else:
        budgets = default_budgets(run.steps, (25, 13, 10, 7))
    check_packages(model)
    asked = comparison_of(model, prompts, budgets, run)
    made = draw(model, asked, out, calibrate=calibrate, progress=not as_json)
    return print_json(made.model_dump()) if as_json else _print_model_demo(made, out)


def check_ours(out: Path) -> None:
    """Replace the page and the record of a demo alone, and no others that lie in the folder."""
    page, record = out / "index.html", out / "demo.json"
    try:
        content = parse_json(read_bounded(record)) if record.exists() else None
    except ValueError:
        content = None
    if not (isinstance(content, dict) and {"budgets", "pictures"} <= content.keys()):
        for path in (page, record):
            if path.exists():
                raise TACacheError(f"{path} is there, and no demo wrote it: name another folder")
    Profile.check_target(out / "demo.profile.json")


def comparison_of(
    model: str, prompts: list[str] | None, budgets: Sequence[int], run: Run
) -> "Comparison":
    """Return what the demo compares: prompts, budgets and the model's call."""
    from tacache.lab.demo.run import (
        CALIBRATION,
        PROMPTS,
        VIDEO_CALIBRATION,
        VIDEO_PROMPTS,
        Comparison,
    )

    video = model == VIDEO_MODEL
    return Comparison(
        prompts or (VIDEO_PROMPTS if video else PROMPTS),
        budgets,
        {**models.default_call(model), "num_inference_steps": run.steps},
        run.seed,
        VIDEO_CALIBRATION if video else CALIBRATION,
        models.embedded(model).fps,
    )


def check_packages(model: str) -> None:
    """Stop with what to install where the model or its page cannot be made here."""
    models.check(model)
    for package in ("torchmetrics", "jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise HostError(f"{model}'s demo needs the package {package}: {models.INSTALL}")


def default_budgets(steps: int, of_50: Sequence[int]) -> list[int]:
    """Return budgets in proportion to the steps, none below what the longest interval allows."""
    return checked_budgets([max(_fewest(steps), steps * share // 50) for share in of_50], steps)


def checked_budgets(budgets: Sequence[int], steps: int) -> list[int]:
    """Return each budget once, the largest first; refuse one that no plan can have."""
    few = _fewest(steps)
    for budget in budgets:
        if not few <= budget <= steps:
            raise TACacheError(
                f"a run of {steps} steps takes {few} to {steps} evaluations, not {budget}"
            )
    return sorted(set(budgets), reverse=True)


def _fewest(steps: int) -> int:
    return len(walk([MAX_SKIP] * steps))


def draw(
    model: str, asked: "Comparison", out: Path, *, calibrate: bool, progress: bool
) -> "ModelDemo":
    """Run the embedded model and write the page beside its pictures."""
    from tacache.lab.demo.page import write_page
    from tacache.lab.demo.run import run_model_demo

    shipped = models.embedded(model).profile
    profile = Profile.load(shipped) if shipped.is_file() and not calibrate else None
    pipe = models.load(model)
    pipe.set_progress_bar_config(disable=True)
    made = run_model_demo(pipe, out, asked, profile, progress=progress)
    write_page(made, out)
    return made


def _print_model_demo(made: "ModelDemo", out: Path) -> None:
    from tacache.lab.demo.run import can_encode

    show(_model_table(made))
    for budget in made.budgets:
        if budget.plan is not None:
            show(f"{budget.evaluations:4d}  {strip(Plan.load(out / budget.plan))}")
    show(Text(f"      {ANCHOR} evaluated   {SKIP} reconstructed", style="dim"))
    if made.fps is not None:
        also = " and .mp4" if can_encode() else "; as MP4 too after: pip install 'imageio[ffmpeg]'"
        say(f"Side by side: {out / 'clips'}/*-side-by-side.gif{also}")
    say(f"Look at {out / 'index.html'}; next: tacache show {out / made.profile}")


def _model_table(made: "ModelDemo") -> Table:
    count = len(made.prompts)
    table = Table(
        title=f"{made.model}, {made.steps} steps, mean of {count} prompt{'s' * (count > 1)}",
        caption=f"Speedup is measured; PSNR and SSIM are to the full-step {made.noun}s"
        + ("." if made.fps is None else ", by frames and by their changes."),
        pad_edge=made.fps is None,  # so that all columns of clips fit in 80 characters
    )
    changes = () if made.fps is None else ("PSNR of changes", "SSIM of changes")
    for heading in ("evaluations", "time", "speedup", "PSNR", "SSIM", *changes):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    for row in made.budgets:
        pairs = [(row.psnr, row.ssim), (row.change_psnr, row.change_ssim)]
        known = [pair for pair in pairs if None not in pair]
        fidelity = [text for one in known for text in (f"{one[0]:.2f} dB", f"{one[1]:.4f}")]
        table.add_row(
            str(row.evaluations),
            f"{row.seconds:.2f} s",
            f"{row.speedup:.2f}x",
            *(fidelity or ["full steps"]),
        )
    return table
