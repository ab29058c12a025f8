"""`tacache calibrate` and `tacache generate`: commands that run a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli import hosts
from tacache.cli.arguments import seeds_of
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
from tacache.cli.spread import Spread, maker
from tacache.cli.stored import named_plan
from tacache.errors import TACacheError
from tacache.fidelity import CAP
from tacache.host import Request
from tacache.host.wish import wish_of
from tacache.models import EMBEDDED
from tacache.profile import Profile
from tacache.prompts import read_prompts

NOTHING_TO_COMPARE = "--compare sets a plan against full steps: give --plan or --speedup"
ALL_STEPS = (
    "No plan is given, so every step is evaluated: --speedup 4 makes this faster at once, and "
    "--plan follows a plan."
)


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
    prompts: Annotated[
        str | None, typer.Option(help=f"{PROMPTS_HELP} These two draw their test set by default.")
    ] = None
    count: Count = None
    number: Annotated[int, typer.Option("-n", min=1, help="Outputs for each prompt.")] = 1
    seed: FirstSeed = 0

    def texts(self, model: str, given: list[str] | None) -> list[str]:
        """Return the given prompts and those of a set; a model that ships has a set of its own."""
        source = self.prompts
        if not given and source is None and model in EMBEDDED:
            source = "test"
        found = read_prompts(hosts.prompts_of(model, source)) if source else []
        texts = [*(given or []), *found][: self.count]
        if not texts:
            raise TACacheError("there is nothing to generate: give --prompt or --prompts")
        return texts

    def jobs(self, texts: Sequence[str]) -> list[tuple[int, str, int]]:
        """Return the number, the prompt and the seed of every output."""
        seeds = range(self.seed, self.seed + self.number)
        return [(i, text, seed) for i, text in enumerate(texts) for seed in seeds]


@dataclass(frozen=True)
class Faster:
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

    def wish(self, speedup: float | None, plan: str | None) -> dict[str, Any] | None:
        """Return what is asked of `accelerate`; None where no more than a plan is given."""
        if speedup is None and self.evaluations is None and not self.learn:
            return None
        if plan is not None:
            raise TACacheError("--plan has its own evaluations: leave --speedup and the like out")
        wish_of(speedup, self.evaluations, self.learn, None)  # refuses before a model is loaded
        return {"speedup": speedup, "evaluations": self.evaluations, "learn": self.learn}


@dataclass(frozen=True)
class Clips:
    """How clips are written."""

    PANEL: ClassVar = OUTPUT
    gif: Annotated[bool, typer.Option(help="Write clips as GIF instead of MP4.")] = False
    fps: Annotated[
        int | None,
        typer.Option(min=1, help="Frames a second of a clip (default: the model's, or 16)."),
    ] = None

    def kind(self, model: str) -> tuple[str, int]:
        """Return the suffix of clips and their frames a second."""
        return ".gif" if self.gif else ".mp4", hosts.clip_rate(model, self.fps)


def generate(
    model: Model,
    *,
    speedup: Annotated[
        float | None,
        typer.Option(help="Times faster, such as 4: by a stored plan, else by an instant one."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help='A prompt, such as "a red fox"; may be repeated.')
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Follow this plan: a file, or its name in tacache plans. Without one a pipeline "
            "follows the plan it was saved with, and else runs all steps.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Also run full steps; write them beside, with PSNR and times.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for files.")] = Path("out"),
    faster: Faster,
    drawn: Drawn,
    spread: Spread,
    call: Call,
    load: Load,
    clips: Clips,
    as_json: Json = False,
) -> None:
    """Generate pictures or clips, several times faster, with the model's or the plan's arguments.

    [bold]Examples[/bold]

    tacache generate tiny-flux --speedup 4 --prompt "a red apple"

    tacache generate black-forest-labs/FLUX.1-dev --speedup 4 --learn 8 --prompts mine.txt

    tacache generate ./my-model --plan m.plan.json --prompts test --compare -o compared

    tacache generate black-forest-labs/FLUX.1-dev --speedup 4 --prompts mine.txt --ray
    """
    asked, texts = load.checked(model), drawn.texts(model, prompt)
    wish = faster.wish(speedup, plan)
    spread.check(out, compare, faster.learn)
    followed = None if plan is None else named_plan(plan)
    if compare and followed is None and wish is None and not hosts.may_carry_plan(model):
        raise TACacheError(NOTHING_TO_COMPARE)
    arguments = hosts.call_arguments(model, call, followed)
    request, jobs = Request(followed, arguments, compare, *clips.kind(model)), drawn.jobs(texts)
    if spread.ray:
        return _generate_all(*maker(spread, model, asked, wish, request, out, jobs), as_json)
    host = hosts.load(model, asked, bars=not as_json)
    if wish is not None:
        hosts.accelerate(model, host, wish)
    elif followed is None and not hosts.carries_plan(host):
        _say_all_steps(compare, as_json)
    with hosts.threads(model, host):
        make_one = hosts.generator(host, request, out, warming=texts[0] if compare else None)
        _generate_all(make_one, jobs, as_json)


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
    if output.psnr is None:
        return line
    line += f"; full steps {output.full_seconds:.2f} s"
    if output.psnr >= CAP:
        return f"{line}, the same picture"
    return f"{line} ({output.full_seconds / output.seconds:.2f}x), PSNR {output.psnr:.2f} dB"
