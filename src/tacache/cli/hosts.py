"""The one place where the commands treat BAGEL and the pipelines of diffusers differently."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tacache.cli import bagel
from tacache.cli.arguments import naming, parsed
from tacache.cli.options import Call
from tacache.errors import TACacheError
from tacache.fitting import forget
from tacache.models import EMBEDDED, default_call, frame_rate, own_prompts, steady_threads
from tacache.plan import Plan
from tacache.profile import Profile

MakeOne = Callable[[int, str, int], Any]


def load(model: str, asked: dict[str, Any], *, bars: bool = False) -> Any:
    """Return the model, loaded as --load says, with progress bars of its own or without."""
    if model == bagel.NAME:
        return bagel.load(asked)
    from tacache.diffusers.loading import Loading, load_pipeline

    pipe = load_pipeline(model, Loading(**asked))
    pipe.set_progress_bar_config(disable=not bars)
    return pipe


def prompts_of(model: str, source: str) -> str | Path:
    """Return where to read prompts from; only pipelines and models that ship have own sets."""
    return source if model == bagel.NAME else own_prompts(model, source)


def call_arguments(model: str, asked: Call, plan: Plan | None = None) -> dict[str, Any]:
    """Return the model's arguments: its defaults, then the plan's, our options, and --call."""
    options = ("steps", "height", "width", "frames", "guidance")
    given = {name: getattr(asked, name) for name in options}
    more = parsed(asked.more)
    if model == bagel.NAME:
        return bagel.call_arguments(more, bagel.remembered_call(plan), **given)
    remembered: dict[str, Any] = {}
    if plan is not None:
        remembered = {"num_inference_steps": plan.steps, **(plan.host.call or {})}
    own = "true_cfg_scale" if "true_cfg_scale" in default_call(model) else "guidance_scale"
    names = {"steps": "num_inference_steps", "frames": "num_frames", "guidance": own}
    named = {names.get(k, k): value for k, value in given.items() if value is not None}
    return {**default_call(model), **remembered, **named, **more}


def steps_of(model: str, call: dict[str, Any]) -> int:
    """Return the number of steps of a full run; BAGEL counts its times, one more than steps."""
    name, extra = ("num_timesteps", 1) if model == bagel.NAME else ("num_inference_steps", 0)
    if not isinstance(call[name], int):
        raise TACacheError(f"{name} is a whole number, not {call[name]!r}")
    return int(call[name]) - extra


def threads(model: str, host: Any) -> AbstractContextManager[None]:
    """Fix the number of threads for the small models that ship, and for no other."""
    return steady_threads(host) if model in EMBEDDED else nullcontext()


def calibrate(
    model: str,
    asked: dict[str, Any],
    texts: Sequence[str],
    call: dict[str, Any],
    *,
    batch_size: int,
    **work: Any,
) -> Profile:
    """Load the model and measure its full runs."""
    if model == bagel.NAME:
        import tacache.bagel as host

        bagel.check_batch(batch_size)
        return host.calibrate(load(model, asked), texts, **work, **call)
    from tacache.diffusers import calibration

    pipe = load(model, asked)
    with threads(model, pipe), naming(pipe):
        return calibration.calibrate(pipe, texts, batch_size=batch_size, **work, **call)


def fit_plans(
    model: str, asked: dict[str, Any], texts: Sequence[str], call: dict[str, Any], **work: Any
) -> list[Plan]:
    """Load the model and fit a plan for each budget."""
    if model == bagel.NAME:
        import tacache.bagel as host

        return list(host.fit_plans(load(model, asked), texts, **work, **call))
    from tacache.diffusers.fitting import fit_plans

    pipe = load(model, asked)
    with threads(model, pipe):
        return list(fit_plans(pipe, texts, **work, **call))


def forget_runs(model: str, kept: Path, budgets: Sequence[int]) -> None:
    """Remove what this process kept to go on from, once the plans are saved."""
    if model == bagel.NAME:
        return forget(kept, budgets)
    from tacache.diffusers.fitting import share_of
    from tacache.work.processes import Processes

    forget(share_of(kept, Processes.current()), budgets)


def carries_plan(host: Any) -> bool:
    """Return whether a loaded pipeline was saved with a plan, which it then follows."""
    return getattr(getattr(host, "scheduler", None), "plan", None) is not None


def generator(
    model: str,
    host: Any,
    plan: Plan | None,
    call: dict[str, Any],
    out: Path,
    *,
    warming: str | None = None,
    clip_suffix: str = ".mp4",
    fps: int | None = None,
) -> MakeOne:
    """Return a function that makes the output of a prompt's number, text and seed.

    With `warming`, a prompt to warm up with, full steps are run beside the plan.
    """
    if model == bagel.NAME:
        return _bagel_generator(host, plan, call, out, warming)
    from tacache.diffusers.fingerprint import check_host
    from tacache.diffusers.generation import Request, file_stem, generate, warm_up

    request = Request(plan, call, warming is not None, clip_suffix, fps or frame_rate(model))
    if plan is not None:
        check_host(host, plan)
    if warming is not None:
        warm_up(host, warming, call)
    return lambda i, text, seed: generate(host, text, seed, request, out / file_stem(i, text, seed))


def _bagel_generator(
    inferencer: Any, plan: Plan | None, call: dict[str, Any], out: Path, warming: str | None
) -> MakeOne:
    from tacache.bagel.generation import Request, file_stem, generate, warm_up
    from tacache.bagel.making import Job

    request = Request(plan, call, warming is not None)
    if warming is not None:
        warm_up(inferencer, warming, call)

    def make_one(i: int, text: str, seed: int) -> Any:
        job = Job(text, seed)
        return generate(inferencer, job, request, out / file_stem(i, job))

    return make_one
