"""`tacache calibrate` and `tacache generate`: commands that run a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli import hosts
from tacache.cli.arguments import check_folder, seeds_of
from tacache.cli.options import (
    CALLED,
    OUTPUT,
    PROMPTS_HELP,
    SAMPLES,
    Call,
    Count,
    FirstSeed,
    FullCall,
    Json,
    Load,
    Model,
    Prompts,
    Seeds,
)
from tacache.cli.printing import print_json, say, show, tell
from tacache.cli.render import profile_view
from tacache.errors import TACacheError
from tacache.host import Request
from tacache.models import EMBEDDED
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import read_prompts

NOTHING_TO_COMPARE = "--compare sets a plan against full steps: give --plan"
ALL_STEPS = "No plan is given, so every step is evaluated; --plan FILE makes this faster."


def calibrate(
    model: Model,
    *,
    prompts: Prompts = "calibration",
    count: Count = None,
    seeds: Seeds = "0",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The profile file (default: named after MODEL)."),
    ] = None,
    call: FullCall,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples in one call.", rich_help_panel=CALLED)
    ] = 1,
    load: Load,
    as_json: Json = False,
) -> None:
    """Measure a model's full-step runs and write them to a profile.

    A run that was killed goes on where it stopped. Under torchrun or accelerate launch the
    processes share the prompts.

    [bold]Examples[/bold]

    tacache calibrate tiny-flux --count 8 -o tiny.profile.json

    tacache calibrate black-forest-labs/FLUX.1-dev --count 8 --guidance 3.5 -o flux.profile.json

    torchrun --nproc-per-node 4 -m tacache calibrate MODEL --prompts mine.txt -o m.profile.json

    tacache calibrate bagel --load bagel-path=Bagel --load weights=BAGEL-7B-MoT --guidance 4
    """
    from tacache.work.processes import Processes

    asked = load.checked(model)
    texts = read_prompts(hosts.prompts_of(model, prompts))[:count]
    target = Profile.check_target(out or Path(f"{Path(model).name}.profile.json"))
    kept = target.with_name(f"{target.name}.runs")
    arguments = hosts.call_arguments(model, call)
    work = {"seeds": seeds_of(seeds), "resume": kept, "progress": not as_json}
    profile = hosts.calibrate(model, asked, texts, arguments, batch_size=batch_size, **work)
    if Processes.current().rank == 0:
        _write_profile(profile, target, kept, as_json)


def _write_profile(profile: Profile, target: Path, kept: Path, as_json: bool) -> None:
    profile.save(target)
    kept.unlink(missing_ok=True)
    if as_json:
        return print_json({"file": str(target), **profile.model_dump()})
    show(profile_view(profile))
    budget = max(2, profile.steps // 4)
    say(f"Written to {target}; next: tacache plan {target} --evaluations {budget}")


@dataclass(frozen=True)
class Drawn:
    """Which prompts are drawn, and how often."""

    PANEL: ClassVar = SAMPLES
    count: Count = None
    number: Annotated[int, typer.Option("-n", min=1, help="Outputs for each prompt.")] = 1
    seed: FirstSeed = 0

    def jobs(self, texts: Sequence[str]) -> list[tuple[int, str, int]]:
        """Return the number, the prompt and the seed of every output."""
        seeds = range(self.seed, self.seed + self.number)
        return [(i, text, seed) for i, text in enumerate(texts) for seed in seeds]


@dataclass(frozen=True)
class Clips:
    """How clips are written."""

    PANEL: ClassVar = OUTPUT
    gif: Annotated[bool, typer.Option(help="Write clips as GIF instead of MP4.")] = False
    fps: Annotated[
        int | None,
        typer.Option(min=1, help="Frames a second of a clip (default: the model's, or 16)."),
    ] = None


def generate(
    model: Model,
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A plan file. Without one a pipeline follows the plan it was saved with, and "
            "else runs all steps."
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help='A prompt, such as "a red fox"; may be repeated.')
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help=f"{PROMPTS_HELP} These two draw their test set by default.")
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Also run full steps; write them beside, with PSNR and times.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for files.")] = Path("out"),
    drawn: Drawn,
    call: Call,
    load: Load,
    clips: Clips,
    as_json: Json = False,
) -> None:
    """Generate pictures or clips, with the arguments that the plan was calibrated with.

    [bold]Examples[/bold]

    tacache generate tiny-flux --plan tiny.plan.json --prompt "a red apple"

    tacache generate black-forest-labs/FLUX.1-dev --plan flux.plan.json --prompt "a red fox" -n 4

    tacache generate ./my-model --plan m.plan.json --prompts test --compare -o compared
    """
    asked, texts = load.checked(model), _texts(model, prompt, prompts)[: drawn.count]
    if not texts:
        raise TACacheError("there is nothing to generate: give --prompt or --prompts")
    check_folder(out)
    followed = None if plan is None else Plan.load(plan)
    if compare and followed is None and not hosts.may_carry_plan(model):
        raise TACacheError(NOTHING_TO_COMPARE)
    arguments = hosts.call_arguments(model, call, followed)
    host = hosts.load(model, asked, bars=not as_json)
    if followed is None and not hosts.carries_plan(host):
        _say_all_steps(compare, as_json)
    rate, suffix = hosts.clip_rate(model, clips.fps), ".gif" if clips.gif else ".mp4"
    request = Request(followed, arguments, compare, suffix, rate)
    with hosts.threads(model, host):
        make_one = hosts.generator(host, request, out, warming=texts[0] if compare else None)
        _generate_all(make_one, drawn.jobs(texts), as_json)


def _texts(model: str, prompt: list[str] | None, prompts: str | None) -> list[str]:
    """Return the prompts themselves and those of a set; a model that ships has a set of its own."""
    if not prompt and prompts is None and model in EMBEDDED:
        prompts = "test"
    return [*(prompt or []), *(read_prompts(hosts.prompts_of(model, prompts)) if prompts else [])]


def _say_all_steps(compare: bool, as_json: bool) -> None:
    if compare:
        raise TACacheError(NOTHING_TO_COMPARE)
    if not as_json:
        tell(ALL_STEPS)


def _generate_all(make_one: hosts.MakeOne, jobs: list[tuple[int, str, int]], as_json: bool) -> None:
    """Make every output; one that fails is named and does not keep the others from running."""
    made, failed = [], []
    for i, text, seed in jobs:
        try:
            output = make_one(i, text, seed)
        except TACacheError:
            raise  # the plan or the call is wrong, and would be for every prompt
        except Exception as error:
            failed.append({"prompt": text, "seed": seed, "error": str(error)})
            tell(f"tacache: {text!r} with seed {seed} failed: {error}")
            continue
        made.append(output)
        if not as_json:
            say(_output_line(output))
    if as_json:
        print_json({"outputs": [one.model_dump() for one in made], "failed": failed})
    if failed:
        raise typer.Exit(1)


def _output_line(output: Any) -> str:
    line = f"{output.file}  {output.seconds:.2f} s"
    if output.evaluations is not None:
        line += f", {output.evaluations} evaluations"
    if output.psnr is not None:
        ratio = output.full_seconds / output.seconds
        line += (
            f"; full steps {output.full_seconds:.2f} s ({ratio:.2f}x), PSNR {output.psnr:.2f} dB"
        )
    return line
