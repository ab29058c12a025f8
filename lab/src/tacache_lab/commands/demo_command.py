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
from tacache.storage.reading import parse_json, read_bounded
from tacache_lab.renderer import grid, terminal_table

if TYPE_CHECKING:
    from tacache_lab.demo.demo_request import DemoRequest
    from tacache_lab.demo.demo_runs import DemoRun
    from tacache_lab.demo.record import ModelDemo

MODEL, VIDEO_MODEL, TURBO = "tiny-flux", "tiny-wan", "tiny-flux-turbo"
INSTALL = "pip install 'tacache-lab[demo]'"
STEPS, BUDGETS = 50, (13, 10)
OTHERS = ((MODEL, 28, (10,)), (TURBO, 8, (6,)))  # what else is drawn: model, steps and budgets
OWN = (  # what a demo replaces
    *("index.html", "demo.json", "table.md", "strip.png", "strip.gif", "demo.profile.json"),
    *("pictures", "clips", "film.webp", *(f"{model}-{steps}" for model, steps, _ in OTHERS)),
)
COLUMNS = ("", "evaluations", "time", "speedup", "PSNR", "lowest PSNR", "below 25 dB")


@dataclass(frozen=True)
class DemoRunOptions:
    """How the full runs are made."""

    PANEL: ClassVar = CALLED
    steps: Annotated[
        int | None,
        typer.Option(
            min=10, help="Steps of the full run (default: 50, and 28 and the turbo model's 8)."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0


NewProfile = Annotated[
    bool,
    typer.Option(
        "--calibrate", help="Measure a new profile for the paper's rule, not the shipped one."
    ),
]
WithFilm = Annotated[
    bool,
    typer.Option("--film", help="Also film.webp: full steps and a plan as they are drawn."),
]


def demo(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help='What to draw, such as "a red apple" (default: four prompts).'),
    ] = None,
    *,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13,7 (default: 13,10).")
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Clips instead of pictures, as GIF and MP4.")
    ] = False,
    calibrate: NewProfile = False,
    film: WithFilm = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder for files (default: demo/tiny-flux or demo/tiny-wan)."
        ),
    ] = None,
    run: DemoRunOptions,
    as_json: Json = False,
) -> None:
    """Draw pictures with the embedded model: all steps, fewer steps, our plans, the paper's rule.

    Every way starts from the same noise. The folder gets the pictures or clips, all numbers
    (demo.json), a table of them (table.md), a picture of the best (strip.png) and a page
    (index.html). With neither --steps nor --evaluations, pictures are drawn with 50 and with 28
    steps, and with the eight of tiny-flux-turbo.

    [bold]Examples[/bold]

    tacache demo

    tacache demo "a red apple" --evaluations 10

    tacache demo --film

    tacache demo --video "a cat moves to the left"
    """
    model = VIDEO_MODEL if video else MODEL
    if video and film:
        raise TACacheError("--film is of pictures: leave out --video or --film")
    folder = out or Path("demo") / model
    check_folder(folder)
    check_ours(folder, model)
    runs = runs_of(model, run, evaluations)
    for demo_run in runs:
        check_packages(demo_run.model)
    from tacache_lab.demo.demo_runs import draw

    request = comparison_of(model, prompts, run)
    result = draw(runs, request, folder, calibrate=calibrate, progress=not as_json)
    if film:
        from tacache_lab.demo.demo_film import write_film

        write_film(result, request, folder, progress=not as_json)
    return print_json(result.model_dump()) if as_json else _print_model_demo(result, folder)


def runs_of(model: str, run: DemoRunOptions, evaluations: str | None) -> list["DemoRun"]:
    """Return what is drawn: the steps or budgets that were asked for alone, else all parts."""
    from tacache_lab.demo.demo_runs import DemoRun

    steps = run.steps or STEPS
    if evaluations:
        return [DemoRun(model, steps, checked_budgets(numbers(evaluations), steps))]
    others = OTHERS if (model, run.steps) == (MODEL, None) else ()
    return [
        DemoRun(model, steps, default_budgets(steps, BUDGETS)),
        *(DemoRun(name, count, list(budgets)) for name, count, budgets in others),
    ]


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


def comparison_of(model: str, prompts: list[str] | None, run: DemoRunOptions) -> "DemoRequest":
    """Return what the demo compares: prompts and the model's call."""
    from tacache_lab.demo.demo_request import (
        CALIBRATION,
        PROMPTS,
        VIDEO_CALIBRATION,
        VIDEO_PROMPTS,
        DemoRequest,
    )

    video = model == VIDEO_MODEL
    return DemoRequest(
        prompts or (VIDEO_PROMPTS if video else PROMPTS),
        {},
        run.seed,
        VIDEO_CALIBRATION if video else CALIBRATION,
        models.embedded(model).fps,
    )


def check_packages(model: str) -> None:
    """Stop with what to install where the model or its page cannot be made here."""
    models.check(model)
    for package in ("torchmetrics", "jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise HostError(f"{model}'s demo needs the package {package}: {INSTALL}")


def default_budgets(steps: int, of_50: Sequence[int]) -> list[int]:
    """Return budgets in proportion to the steps, none below what the paper's rule can make."""
    from tacache_lab.demo.demo_plans import fewest

    return checked_budgets([max(fewest(steps), steps * share // 50) for share in of_50], steps)


def checked_budgets(budgets: Sequence[int], steps: int) -> list[int]:
    """Return each budget once, the largest first; refuse one that no plan can have."""
    for budget in budgets:
        if not 2 <= budget <= steps:
            raise TACacheError(
                f"a run of {steps} steps takes 2 to {steps} evaluations, not {budget}"
            )
    return sorted(set(budgets), reverse=True)


def _print_model_demo(result: "ModelDemo", out: Path) -> None:
    from tacache_lab.demo import telling
    from tacache_lab.demo.questions import questions
    from tacache_lab.demo.record import headline, nearest
    from tacache_lab.demo.run import can_encode

    for run in result.all_runs():
        show(_model_table(run))
    parts = [" ".join(telling.first_sentences(result)), *telling.meanings(result)]
    for text, _, answers in questions(result):
        parts.append("\n".join([text, *(f"{steps}: {answer}" for steps, answer in answers)]))
    for part in (*parts, telling.how_to_read(result)):
        show(Text(f"\n{part}"))
    show("")
    best = headline(result.budgets) or nearest(result.budgets)
    shown = [budget for budget in result.budgets if best and budget.evaluations == best.evaluations]
    for budget in shown:
        if budget.plan is not None:
            show(Text(f"{telling.name_of(budget.rule):>13}  {strip(Plan.load(out / budget.plan))}"))
    show(Text(f"{'':>13}  {ANCHOR} evaluated   {SKIP} rebuilt", style="dim"))
    if result.fps is not None:
        also = " and .mp4" if can_encode() else "; as MP4 too after: pip install 'imageio[ffmpeg]'"
        say(f"The clips lie side by side in {out / 'clips'}/*-side-by-side.gif{also}.")
    say(f"Open {out / 'index.html'} to see all {result.noun}s.")


def _model_table(result: "ModelDemo") -> Table:
    from tacache_lab.demo import telling

    count = len(result.prompts)
    wanted = [*COLUMNS, *(["PSNR of changes"] if result.fps is not None else ["SSIM"])]
    places = [telling.headings(result).index(heading) for heading in wanted]
    lines = [[telling.cells(result, row)[place] for place in places] for row in result.budgets]
    title = f"{result.model}, {result.steps} steps, mean of {count} prompt{'s' * (count > 1)}"
    return terminal_table(grid(wanted, lines), title)
