"""`tacache generate`: pictures and clips of prompts, faster."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli import named_models
from tacache.cli.options import (
    OUTPUT,
    PROMPTS_HELP,
    SAMPLES,
    CallOptions,
    Count,
    FirstSeed,
    Json,
    LoadOptions,
    Model,
    QualityOptions,
)
from tacache.cli.printing import print_json, say, tell
from tacache.cli.spread import RayOptions, maker
from tacache.cli.stored_commands import named_plan
from tacache.errors import TACacheError, counted
from tacache.fidelity import CAP
from tacache.hosts import Host, Request
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.models import frame_rate, shipped
from tacache.prompts import read_prompts

MIN_MEASURED = 5  # evaluations: no committed record has fewer
FEW = (
    f"{{}} of {{}} steps: with fewer than {MIN_MEASURED} evaluations pictures change a lot; "
    "--compare shows how much."
)
NOTHING_TO_COMPARE = "--compare sets a plan against full steps: give --plan or --speedup"
ALL_STEPS = (
    "No plan is given, so every step is evaluated: --speedup 4 makes this faster at once, and "
    "--plan follows a plan."
)


@dataclass(frozen=True)
class PromptOptions:
    """Which prompts are drawn, and how often."""

    PANEL: ClassVar = SAMPLES
    prompts: Annotated[str | None, typer.Option(help=PROMPTS_HELP)] = None
    count: Count = None
    number: Annotated[int, typer.Option("-n", min=1, help="Outputs for each prompt.")] = 1
    seed: FirstSeed = 0

    def texts(self, model: str, prompts: list[str]) -> list[str]:
        """Return the given prompts, then those of a file or a set."""
        if not prompts and self.prompts is None:
            raise TACacheError(
                'give a prompt, such as "a red apple", or many: --prompts FILE'
                + (", or --prompts test for those of this model" if model in shipped() else "")
            )
        source = self.prompts
        several = read_prompts(named_models.prompts_of(model, source)) if source else []
        return [*prompts, *several][: self.count]

    def jobs(self, texts: Sequence[str]) -> list[tuple[int, str, int]]:
        """Return the number, the prompt and the seed of every output."""
        seeds = range(self.seed, self.seed + self.number)
        return [(i, text, seed) for i, text in enumerate(texts) for seed in seeds]


@dataclass(frozen=True)
class SpeedOptions:
    """How much faster, by which plan, and whether a better one is learned on the way."""

    PANEL: ClassVar = "How it gets faster"
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Evaluations of one run, in place of --speedup.")
    ] = None
    learn: Annotated[
        int,
        typer.Option(
            min=0,
            help="Run the first LEARN outputs in full, fit a plan to them and store it, such as 8.",
        ),
    ] = 0

    def options(
        self,
        speedup: float | None,
        plan: str | None,
        steps: int | None,
        quality: QualityOptions = QualityOptions(),  # noqa: B008
    ) -> dict[str, Any] | None:
        """Return what is asked of `accelerate`; None where no more than a plan is given."""
        options = {"speedup": speedup, **asdict(self), **quality.options()}
        # What is wrong with them is said before a model is loaded.
        asked = AccelerateOptions(**options)
        if asked == AccelerateOptions():
            return None
        if plan is not None:
            raise TACacheError("--plan has its own evaluations: leave --speedup and the like out")
        if steps is not None and asked.goal is None:
            budget = asked.budget(steps, steps, 1)
            if budget < min(MIN_MEASURED, steps):
                tell(FEW.format(counted(budget, "evaluation"), steps))
        return options


@dataclass(frozen=True)
class ClipOptions:
    """How clips are written."""

    PANEL: ClassVar = OUTPUT
    gif: Annotated[bool, typer.Option(help="Write clips as GIF instead of MP4.")] = False
    fps: Annotated[
        int | None,
        typer.Option(min=1, help="Frames a second of a clip (default: the model's, or 16)."),
    ] = None

    def kind(self, model: str) -> tuple[str, int]:
        """Return the suffix of clips and their frames a second."""
        return ".gif" if self.gif else ".mp4", self.fps or frame_rate(model)


Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="prompt", help='What to draw, such as "a red fox".'),
]
NamedTexts = Annotated[
    list[str] | None, typer.Option(help="Another way to give a prompt; may be repeated.")
]
Speedup = Annotated[
    float | None,
    typer.Option(help="Times faster, such as 4: by a stored plan, else by an instant one."),
]


def generate(
    model: Model,
    texts: Texts = None,
    *,
    speedup: Speedup = None,
    prompt: NamedTexts = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Follow this plan: a file, or its name in tacache plans. Without one a pipeline "
            "follows the plan it was saved with, and else runs all steps.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            help="Also run full steps, write both pictures side by side, and say PSNR and times."
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for files.")] = Path("out"),
    faster: SpeedOptions,
    quality: QualityOptions,
    drawn: PromptOptions,
    spread: RayOptions,
    call: CallOptions,
    load: LoadOptions,
    clips: ClipOptions,
    as_json: Json = False,
) -> None:
    """Generate pictures or clips, several times faster, with the model's or the plan's arguments.

    [bold]Examples[/bold]

    tacache generate tiny-flux "a red apple" --speedup 4

    tacache generate black-forest-labs/FLUX.1-dev --speedup 4 --learn 8 --prompts mine.txt

    tacache generate tiny-flux --like-steps 28 --prompt "a red apple"

    tacache generate black-forest-labs/FLUX.1-dev --min-psnr 35 --learn 8 --prompts mine.txt

    tacache generate ./my-model --plan m.plan.json --prompts test --compare -o compared

    tacache generate black-forest-labs/FLUX.1-dev --speedup 4 --prompts mine.txt --ray
    """
    loading, prompts = load.checked(model), drawn.texts(model, [*(texts or []), *(prompt or [])])
    spread.check(out, compare, faster.learn)
    followed = None if plan is None else named_plan(plan)
    arguments = named_models.call_arguments(model, call, followed)
    options = faster.options(speedup, plan, named_models.known_steps(model, arguments), quality)
    request, jobs = Request(followed, arguments, compare, *clips.kind(model)), drawn.jobs(prompts)
    if spread.ray:
        outputs = maker(spread, model, loading, options, request, out, jobs)
        return _generate_all(*outputs, as_json)
    host = _loaded(model, loading, options, request, as_json)
    warming = prompts[0] if compare else None
    with named_models.threads(model, host):
        _generate_all(named_models.generator(host, request, out, warming=warming), jobs, as_json)


def _loaded(
    model: str,
    loading: dict[str, Any],
    options: dict[str, Any] | None,
    request: Request,
    as_json: bool,
) -> Host:
    """Load the model and make its calls faster, or say that nothing makes them so."""
    planless = request.plan is None and options is None
    if request.compare and planless and not named_models.may_carry_plan(model):
        raise TACacheError(NOTHING_TO_COMPARE)
    host = named_models.load(model, loading, bars=not as_json)
    if options is not None:
        named_models.accelerate(model, host, options)
    elif planless and not named_models.carries_plan(host):
        if request.compare:
            raise TACacheError(NOTHING_TO_COMPARE)
        if not as_json:
            tell(ALL_STEPS)
    return host


def _generate_all(
    make_one: named_models.MakeOne, jobs: list[tuple[int, str, int]], as_json: bool
) -> None:
    """Make every output; one that fails is named and does not keep the others from running."""
    outputs, failed = [], []
    for i, text, seed in jobs:
        try:
            output = make_one(i, text, seed)
        except TACacheError:
            raise  # the plan or the call is wrong, and would be for every prompt
        except Exception as error:
            failed.append({"prompt": text, "seed": seed, "error": str(error)})
            tell(f"tacache: {text!r} with seed {seed} failed: {error}")
            continue
        outputs.append(output)
        if not as_json:
            say(_output_line(output))
    if as_json:
        print_json({"outputs": [output.model_dump() for output in outputs], "failed": failed})
    if failed:
        raise typer.Exit(1)


def _output_line(output: Any) -> str:
    line = f"{output.file}  {output.seconds:.2f} s"
    if output.evaluations is not None:
        line += f", {counted(output.evaluations, 'evaluation')}"
    if output.psnr is None:
        return line
    line += f"; beside full steps in {output.pair_file}, {output.full_seconds:.2f} s"
    if output.psnr >= CAP:
        return f"{line}, the same picture"
    return f"{line} ({output.full_seconds / output.seconds:.2f}x), PSNR {output.psnr:.2f} dB"
