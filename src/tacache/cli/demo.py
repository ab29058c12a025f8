"""`tacache demo`."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacache import models
from tacache.cli.arguments import numbers
from tacache.cli.options import Json, check_folder, print_json
from tacache.cli.render import plan_view, strip
from tacache.errors import HostError, TACacheError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.schedule import MAX_SKIP, walk

if TYPE_CHECKING:
    from tacache.lab.demo.analytic import Demo
    from tacache.lab.demo.run import Comparison, ModelDemo

MODEL, VIDEO_MODEL = "tiny-flux", "tiny-wan"


def demo(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="What to draw (default: six prompts).")
    ] = None,
    evaluations: Annotated[
        str | None,
        typer.Option(
            help="Budgets, with commas between (default: 25,13,10,7; --analytic also 17)."
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure a profile anew; one ships.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where files go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=10, help="Steps of the full run.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    analytic: Annotated[
        bool, typer.Option("--analytic", help="A flow with a known velocity, and no model.")
    ] = False,
    video: Annotated[
        bool, typer.Option("--video", help="Clips instead of pictures, as GIF and MP4.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw pictures with the embedded model: full steps beside TACache, with times and fidelity.

    Writes the pictures or clips, their numbers (demo.json) and a page to look at (index.html);
    with --analytic a profile and plans alone.

    [bold]Examples[/bold]

    tacache demo

    tacache demo "a red apple" --evaluations 10

    tacache demo --video "a cat moves to the left"

    tacache demo --analytic --out demo
    """
    from tacache.lab.demo import analytic as flow_demo
    from tacache.lab.demo.run import (
        CALIBRATION,
        PROMPTS,
        VIDEO_CALIBRATION,
        VIDEO_PROMPTS,
        Comparison,
    )

    check_folder(out)
    if video and analytic:
        raise TACacheError("the analytic flow makes no clips: leave out --video or --analytic")
    model = VIDEO_MODEL if video else MODEL
    asked = checked_budgets(numbers(evaluations), steps) if evaluations else None
    missing = None if analytic else missing_for_demo(model)
    if analytic or missing:
        if prompts or video:
            raise TACacheError(missing or "the analytic flow draws no prompts: leave them out")
        if missing:
            print(f"tacache: {missing}; this runs on an analytic flow instead", file=sys.stderr)
        budgets = asked or default_budgets(steps, (25, 17, 13, 10, 7))
        result = flow_demo.run_demo(
            out, steps=steps, budgets=budgets, seed=seed, progress=not as_json
        )
        return print_json(result.model_dump()) if as_json else _print_demo(result, out)
    comparison = Comparison(
        prompts or (VIDEO_PROMPTS if video else PROMPTS),
        asked or default_budgets(steps, (25, 13, 10, 7)),
        {**models.default_call(model), "num_inference_steps": steps},
        seed,
        VIDEO_CALIBRATION if video else CALIBRATION,
        models.embedded(model).fps,
    )
    made = draw(model, comparison, out, calibrate=calibrate, progress=not as_json)
    return print_json(made.model_dump()) if as_json else _print_model_demo(made, out)


def missing_for_demo(model: str) -> str | None:
    """What keeps the embedded model from running here, in words; None where nothing does."""
    try:
        models.check(model)
    except HostError as error:
        return str(error)
    for package in ("torchmetrics", "jinja2"):
        if importlib.util.find_spec(package) is None:
            return f"{model}'s demo needs the package {package}: {models.INSTALL}"
    return None


def default_budgets(steps: int, of_50: Sequence[int]) -> list[int]:
    """Budgets in proportion to the steps, none below what the longest interval allows."""
    return checked_budgets([max(_fewest(steps), steps * share // 50) for share in of_50], steps)


def checked_budgets(budgets: Sequence[int], steps: int) -> list[int]:
    """Each budget once, the largest first; one that no plan can have stops before the long part."""
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


def _print_demo(result: "Demo", out: Path) -> None:
    console = Console()
    console.print(_demo_table(result))
    middle = Plan.load(result.plans[len(result.plans) // 2])
    console.print(plan_view(middle))
    print(f"Files are in {out}/; next: tacache show {result.profile}")


def _demo_table(result: "Demo") -> Table:
    table = Table(
        title=f"Distance to the {result.steps}-step result, mean of {result.samples} samples",
        caption="This runs on an analytic flow, a Gaussian mixture of pictures whose exact "
        "velocity is known.",
    )
    for heading in (
        "evaluations",
        "speedup",
        "TACache",
        "reuse, same anchors",
        "fewer Euler steps",
    ):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            str(row.evaluations),
            f"{row.speedup:.2f}x",
            *(f"{value:.2%}" for value in (row.tasu, row.reuse, row.fewer_steps)),
        )
    return table


def _print_model_demo(made: "ModelDemo", out: Path) -> None:
    from tacache.lab.demo.run import can_encode

    console = Console()
    console.print(_model_table(made))
    for budget in made.budgets:
        if budget.plan is not None:
            console.print(f"{budget.evaluations:4d}  {strip(Plan.load(out / budget.plan))}")
    console.print("      █ evaluated   · reconstructed", style="dim")
    if made.fps is not None:
        also = " and .mp4" if can_encode() else "; as MP4 too after: pip install 'imageio[ffmpeg]'"
        print(f"Side by side: {out / 'clips'}/*-side-by-side.gif{also}")
    print(f"Look at {out / 'index.html'}; next: tacache show {out / made.profile}")


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
