"""`tacache demo`."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from rich.table import Table
from rich.text import Text

from tacache import models
from tacache.cli.arguments import check_folder, numbers
from tacache.cli.options import CALLED, Json
from tacache.cli.printing import print_json, say, show, tell
from tacache.cli.render import ANCHOR, SKIP, strip
from tacache.errors import HostError, TACacheError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.reading import parse_json, read_bounded

if TYPE_CHECKING:
    from tacache.lab.demo.record import ModelDemo
    from tacache.lab.demo.run import Comparison

MODEL, VIDEO_MODEL = "tiny-flux", "tiny-wan"
BUDGETS = (13, 10, 7)
OWN = (  # what a demo replaces
    *("index.html", "demo.json", "table.md", "strip.png", "strip.gif", "demo.profile.json"),
    *("pictures", "clips"),
)
COLUMNS = ("", "evaluations", "time", "speedup", "PSNR", "lowest PSNR", "below 25 dB")


@dataclass(frozen=True)
class Run:
    """How the full runs are made."""

    PANEL: ClassVar = CALLED
    steps: Annotated[int, typer.Option(min=10, help="Steps of the full run.")] = 50
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0


def demo(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help='What to draw, such as "a red apple" (default: four prompts).'),
    ] = None,
    *,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13,7 (default: 13,10,7).")
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Clips instead of pictures, as GIF and MP4.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Measure a new profile for the paper's rule, not the shipped one."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder for files (default: demo/tiny-flux or demo/tiny-wan)."
        ),
    ] = None,
    run: Run,
    as_json: Json = False,
) -> None:
    """Draw pictures with the embedded model: all steps, our plans and the paper's rule.

    Every way starts from the same noise. The folder gets the pictures or clips, all numbers
    (demo.json), a table of them (table.md), one picture of everything (strip.png) and a page
    (index.html).

    [bold]Examples[/bold]

    tacache demo

    tacache demo "a red apple" --evaluations 10

    tacache demo --video "a cat moves to the left"
    """
    model = VIDEO_MODEL if video else MODEL
    folder = out or Path("demo") / model
    check_folder(folder)
    check_ours(folder, model)
    if evaluations:
        budgets = checked_budgets(numbers(evaluations), run.steps)
    else:
        budgets = default_budgets(run.steps, BUDGETS)
    check_packages(model)
    asked = comparison_of(model, prompts, run)
    made = draw(model, asked, budgets, folder, calibrate=calibrate, progress=not as_json)
    return print_json(made.model_dump()) if as_json else _print_model_demo(made, folder)


def check_ours(out: Path, model: str) -> None:
    """Replace the files of an earlier demo of this model alone, and no others in the folder."""
    record = out / "demo.json"
    try:
        content = parse_json(read_bounded(record)) if record.exists() else None
    except ValueError:
        content = None
    ours = isinstance(content, dict) and {"budgets", "pictures"} <= content.keys()
    other = content.get("model") if isinstance(content, dict) else None
    if ours and other != model:
        raise TACacheError(f"{out} holds the demo of {other}: name another folder with --out")
    for path in (*(out / name for name in OWN), *out.glob("*-[0-9]*.plan.json")):
        if path.exists() and not ours:
            raise TACacheError(
                f"{path} is there, and no demo wrote it: name another folder with --out"
            )
    Profile.check_target(out / "demo.profile.json")


def comparison_of(model: str, prompts: list[str] | None, run: Run) -> "Comparison":
    """Return what the demo compares: prompts and the model's call."""
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
    """Return budgets in proportion to the steps, none below what the paper's rule can make."""
    from tacache.lab.demo.plans import fewest

    return checked_budgets([max(fewest(steps), steps * share // 50) for share in of_50], steps)


def checked_budgets(budgets: Sequence[int], steps: int) -> list[int]:
    """Return each budget once, the largest first; refuse one that no plan can have."""
    for budget in budgets:
        if not 2 <= budget <= steps:
            raise TACacheError(
                f"a run of {steps} steps takes 2 to {steps} evaluations, not {budget}"
            )
    return sorted(set(budgets), reverse=True)


def draw(
    model: str,
    asked: "Comparison",
    budgets: Sequence[int],
    out: Path,
    *,
    calibrate: bool,
    progress: bool,
) -> "ModelDemo":
    """Run the embedded model, and write its record, strip, table and page beside its pictures."""
    from tacache.lab.demo.plans import equivalent_steps, plans_for
    from tacache.lab.demo.run import run_model_demo
    from tacache.lab.demo.writing import write_files

    if progress:
        tell(f"Loading {model} ...")
    shipped = models.embedded(model)
    profile = Profile.load(shipped.profile) if shipped.profile.is_file() and not calibrate else None
    pipe = models.load(model)
    pipe.set_progress_bar_config(disable=True)
    planned = partial(plans_for, shipped, budgets=budgets)
    made = run_model_demo(pipe, out, asked, planned, profile, progress=progress)
    worth = equivalent_steps(shipped, budgets, made.steps)
    made = made.model_copy(update={"model": model, "equivalent_steps": worth})
    if progress:
        tell(f"Writing {out / 'index.html'} ...")
    write_files(made, out)
    return made


def _print_model_demo(made: "ModelDemo", out: Path) -> None:
    from tacache.lab.demo import telling
    from tacache.lab.demo.record import headline, nearest
    from tacache.lab.demo.run import can_encode

    show(_model_table(made))
    parts = [" ".join(telling.first_sentences(made)), *telling.meanings(made)]
    for part in (*parts, telling.nearness(made), telling.how_to_read(made)):
        if part is not None:
            show(Text(f"\n{part}"))
    show("")
    best = headline(made.budgets) or nearest(made.budgets)
    shown = [one for one in made.budgets if best and one.evaluations == best.evaluations]
    for one in shown:
        if one.plan is not None:
            show(Text(f"{telling.name_of(one.rule):>13}  {strip(Plan.load(out / one.plan))}"))
    show(Text(f"{'':>13}  {ANCHOR} evaluated   {SKIP} rebuilt", style="dim"))
    if made.fps is not None:
        also = " and .mp4" if can_encode() else "; as MP4 too after: pip install 'imageio[ffmpeg]'"
        say(f"The clips lie side by side in {out / 'clips'}/*-side-by-side.gif{also}.")
    say(f"Open {out / 'index.html'} to see all {made.noun}s.")


def _model_table(made: "ModelDemo") -> Table:
    from tacache.lab.demo import telling

    count = len(made.prompts)
    table = Table(
        title=f"{made.model}, {made.steps} steps, mean of {count} prompt{'s' * (count > 1)}",
        box=None,
        pad_edge=False,
        padding=(0, 2 if made.fps is None else 1, 0, 0),  # so that it fits in 80 characters
    )
    wanted = [*COLUMNS, *(["PSNR of changes"] if made.fps is not None else ["SSIM"])]
    places = [telling.headings(made).index(heading) for heading in wanted]
    for heading in wanted:
        table.add_column(
            heading.replace(" ", "\n"), justify="right" if heading else "left", no_wrap=True
        )
    for row in made.budgets:
        cells = telling.cells(made, row)
        table.add_row(*(cells[place] for place in places))
    return table
