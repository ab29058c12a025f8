"""`tacache calibrate` and `tacache generate`: commands that run a model."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tacache.cli import bagel
from tacache.cli.arguments import call_arguments, naming, parsed, seeds_of, threads
from tacache.cli.options import (
    PROMPTS_HELP,
    Compiled,
    Device,
    Dtype,
    Frames,
    Guidance,
    Height,
    Json,
    Model,
    More,
    Offload,
    Width,
    check_folder,
    print_json,
)
from tacache.cli.render import profile_view
from tacache.errors import TACacheError, printable
from tacache.models import EMBEDDED, frame_rate, own_prompts
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import read_prompts

NOTHING_TO_COMPARE = "--compare sets a plan against full steps: give --plan"


def calibrate(
    model: Model,
    prompts: Annotated[str, typer.Option(help=PROMPTS_HELP)] = "calibration",
    count: Annotated[int | None, typer.Option(min=1, help="Use the first COUNT prompts.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds; every prompt runs with each.")] = "0",
    steps: Annotated[int, typer.Option(min=2, help="Steps of the full run.")] = 50,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a call.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The profile file (default: MODEL's name).")
    ] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    more: More = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    compiled: Compiled = False,
    bagel_path: bagel.BagelPath = None,
    weights: bagel.Weights = None,
    as_json: Json = False,
) -> None:
    """Measure a model's full-step runs into a profile. Killed, it goes on where it stopped.

    Under torchrun or accelerate launch the prompts are shared out between the processes.

    [bold]Examples[/bold]

    tacache calibrate tiny-flux --count 8 -o tiny.profile.json

    tacache calibrate black-forest-labs/FLUX.1-dev --count 8 --guidance 3.5 -o flux.profile.json

    torchrun --nproc-per-node 4 -m tacache calibrate MODEL --prompts mine.txt -o m.profile.json

    tacache calibrate bagel --bagel-path Bagel --weights BAGEL-7B-MoT --guidance 4 --count 8
    """
    is_bagel = bagel.is_asked(model, bagel_path, weights)
    texts = read_prompts(prompts if is_bagel else own_prompts(model, prompts))[:count]
    target = Profile.check_target(out or Path(f"{Path(model).name}.profile.json"))
    kept = target.with_name(f"{target.name}.runs")
    given: dict[str, Any] = {"steps": steps, "height": height, "width": width, "frames": frames}
    work: dict[str, Any] = {"seeds": seeds_of(seeds), "resume": kept, "progress": not as_json}
    if is_bagel:
        import tacache.bagel as host

        bagel.check_batch(batch_size)
        call = bagel.call_arguments(parsed(more), guidance=guidance, **given)
        asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
        profile = host.calibrate(bagel.load(asked), texts, **work, **call)
        _write_profile(profile, target, kept, as_json)
        return
    from tacache.diffusers import calibration
    from tacache.diffusers.loading import Loading, load_pipeline
    from tacache.work.processes import Processes

    call = call_arguments(model, more, guidance=guidance, **given)
    pipe = load_pipeline(model, Loading(dtype, device, offload, compiled))
    pipe.set_progress_bar_config(disable=True)
    with threads(model, pipe), naming(pipe):
        profile = calibration.calibrate(pipe, texts, batch_size=batch_size, **work, **call)
    if Processes.current().rank == 0:
        _write_profile(profile, target, kept, as_json)


def _write_profile(profile: Profile, target: Path, kept: Path, as_json: bool) -> None:
    profile.save(target)
    kept.unlink(missing_ok=True)
    if as_json:
        print_json({"file": str(target), **profile.model_dump()})
    else:
        Console().print(profile_view(profile))
        budget = max(2, profile.steps // 4)
        print(f"Written to {target}; next: tacache plan {target} --evaluations {budget}")


def generate(
    model: Model,
    plan: Annotated[
        Path | None, typer.Option(help="A plan file (default: as saved, else none).")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be repeated.")] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help=f"{PROMPTS_HELP} Default for these two: their test set, unless --prompt."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Use the first COUNT of the prompts.")
    ] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="Outputs a prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed; the others count on.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where files go.")] = Path("out"),
    compare: Annotated[
        bool, typer.Option(help="Also run full steps; write them beside, with PSNR and times.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps (default: the plan's).")] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    more: More = None,
    gif: Annotated[bool, typer.Option(help="Write clips as GIF instead of MP4.")] = False,
    fps: Annotated[
        int | None,
        typer.Option(min=1, help="Frames a second of a clip (default: the model's, or 16)."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    compiled: Compiled = False,
    bagel_path: bagel.BagelPath = None,
    weights: bagel.Weights = None,
    as_json: Json = False,
) -> None:
    """Generate pictures or clips with a plan; arguments default to those it was calibrated with.

    [bold]Examples[/bold]

    tacache generate tiny-flux --prompt "a red apple"

    tacache generate tiny-flux --plan tiny.plan.json --count 4 --compare

    tacache generate black-forest-labs/FLUX.1-dev --plan flux.plan.json --prompt "a red fox" -n 4

    tacache generate ./my-model --plan m.plan.json --prompts test --compare -o compared

    tacache generate bagel --bagel-path Bagel --weights W --plan b.plan.json --prompt "a red fox"
    """
    if not prompt and prompts is None and model in EMBEDDED:
        prompts = "test"
    is_bagel = bagel.is_asked(model, bagel_path, weights)
    source = prompts if prompts is None or is_bagel else own_prompts(model, prompts)
    texts = [*(prompt or []), *(read_prompts(source) if source else [])][:count]
    if not texts:
        raise TACacheError("there is nothing to generate: give --prompt or --prompts")
    check_folder(out)
    followed = None if plan is None else Plan.load(plan)
    if compare and followed is None and (is_bagel or model in EMBEDDED):
        raise TACacheError(NOTHING_TO_COMPARE)
    jobs = [(i, text, seed + j) for i, text in enumerate(texts) for j in range(number)]
    given: dict[str, Any] = {"steps": steps, "height": height, "width": width, "frames": frames}
    if is_bagel:
        remembered = bagel.remembered_call(followed)
        call = bagel.call_arguments(parsed(more), remembered, guidance=guidance, **given)
        asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
        warming = texts[0] if compare else None
        make_one = bagel.generator(bagel.load(asked), followed, call, warming, out)
        made, failed = _generate_all(make_one, jobs, quiet=as_json)
    else:
        from tacache.diffusers.generation import Request, warm_up
        from tacache.diffusers.loading import Loading, load_pipeline

        call = call_arguments(model, more, _remembered_call(followed), guidance=guidance, **given)
        pipe = load_pipeline(model, Loading(dtype, device, offload, compiled))
        pipe.set_progress_bar_config(disable=as_json)
        if compare and followed is None and getattr(pipe.scheduler, "plan", None) is None:
            raise TACacheError(NOTHING_TO_COMPARE)
        suffix = ".gif" if gif else ".mp4"
        request = Request(followed, call, compare, suffix, fps or frame_rate(model))
        make_one = _generator(pipe, request, out)
        with threads(model, pipe):
            if compare:
                warm_up(pipe, texts[0], call)
            made, failed = _generate_all(make_one, jobs, quiet=as_json)
    if as_json:
        print_json({"outputs": [one.model_dump() for one in made], "failed": failed})
    if failed:
        raise typer.Exit(1)


def _generator(pipe: Any, request: Any, out: Path) -> Callable[[int, str, int], Any]:
    """A function that makes the output of a prompt's number, text and seed."""
    from tacache.diffusers.fingerprint import check_host
    from tacache.diffusers.generation import file_stem, generate

    if request.plan is not None:
        check_host(pipe, request.plan)
    return lambda i, text, seed: generate(pipe, text, seed, request, out / file_stem(i, text, seed))


def _remembered_call(plan: Plan | None) -> dict[str, Any]:
    """The arguments the plan was calibrated with; the plan's own number of steps without any."""
    if plan is None:
        return {}
    return {"num_inference_steps": plan.steps, **(plan.host.call or {})}


def _generate_all(
    make_one: Callable[[int, str, int], Any], jobs: list[tuple[int, str, int]], *, quiet: bool
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Every job's output; one that fails is named and does not keep the others from running."""
    made, failed = [], []
    for i, text, seed in jobs:
        try:
            output = make_one(i, text, seed)
        except TACacheError:
            raise  # the plan or the call is wrong, and would be for every prompt
        except Exception as error:
            failed.append({"prompt": text, "seed": seed, "error": str(error)})
            reason = f"tacache: {text!r} with seed {seed} failed: {error}"
            print(printable(reason), file=sys.stderr)
            continue
        made.append(output)
        if not quiet:
            print(_output_line(output))
    return made, failed


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
