"""What a pipeline is called with, and what a running call was called with.

The scheduler is the only thing that is swapped, so the arguments of a run are read where they are:
in the frames between the pipeline's `__call__` and `set_timesteps`. Nothing is written there.
`RunningCall.is_read` says whether all of it could be read; `checks` decides what follows.
"""

import inspect
import logging
import math
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline, ModularPipeline
from diffusers.modular_pipelines import PipelineState
from diffusers.modular_pipelines.modular_pipeline import BlockState
from torch import Tensor

from tacache.diffusers.joint import further_schedulers, latent_in
from tacache.errors import HostError, unknown
from tacache.hosts import Pixels
from tacache.prompts import Sample

logger = logging.getLogger("tacache.diffusers")
NO_GRAD = ("torch.utils._contextlib", "decorate_context")  # what runs a decorated function


@dataclass(frozen=True)
class RunningCall:
    """The call that runs a scheduler, as far as its frames show it."""

    pipeline: Any = None  # None where no frame holds a pipeline with this scheduler
    arguments: dict[str, Any] = field(default_factory=dict)
    passed: dict[str, Any] | None = None  # by the user, before the pipeline changed any; if seen
    is_read: bool = False  # the pipeline's own `__call__` was found
    is_of_diffusers: bool = False  # and its code is that of diffusers
    place: tuple[Any, int] | None = None  # the outermost frame's code, and how far it has come
    latent: str | None = None  # that the scheduler steps; None for the first, or where not seen

    @property
    def name(self) -> str:
        """Return the pipeline's class, for messages."""
        return "the loop" if self.pipeline is None else type(self.pipeline).__name__


def running_call(scheduler: Any) -> RunningCall:
    """Return the call that is running this scheduler, or the one this scheduler was copied from.

    Arguments of helpers and of loops in functions count too; those nearest to the loop win.
    """
    wanted = [scheduler, getattr(scheduler, "_source", None) or scheduler]
    call = RunningCall()
    frame = sys._getframe(1)  # not this one: a frame that holds itself is freed late, with all else
    while frame is not None:
        owner, arguments, is_its_call, latent = _seen(frame, wanted)
        if owner is not None:
            call = RunningCall(
                owner,
                {**arguments, **call.arguments},
                _passed(frame, owner) if is_its_call else None,
                is_its_call,
                _is_of_diffusers(owner, frame),
                (frame.f_code, frame.f_lasti),
                call.latent or latent,
            )
        if is_its_call:
            return call
        frame = frame.f_back  # type: ignore[assignment]
    return replace(call, is_of_diffusers=False)


def frame_runs(frame: types.FrameType, scheduler: Any) -> bool:
    """Return whether this is a call of a pipeline with this scheduler, maybe in another thread."""
    is_call = frame.f_code.co_name == "__call__"
    return is_call and _runs("self", frame.f_locals.get("self"), [scheduler])


def _is_of_diffusers(pipeline: Any, frame: types.FrameType) -> bool:
    """Return whether the code that runs the loop is that of diffusers, blocks included."""
    modules = [frame.f_globals.get("__name__", "")]
    blocks = [pipeline._blocks] if isinstance(pipeline, ModularPipeline) else []
    while blocks:
        block = blocks.pop()
        modules.append(type(block).__module__)
        blocks += block.sub_blocks.values()
    return all(module.split(".")[0] == "diffusers" for module in modules)


def _seen(
    frame: types.FrameType, wanted: list[Any]
) -> tuple[Any, dict[str, Any], bool, str | None]:
    """Return the pipeline in a frame's arguments, the others, and whether this is its `__call__`.

    Last comes the further latent that the scheduler steps, where the frame names it. No variable of
    the frame is held afterwards.
    """
    code = frame.f_code
    if not code.co_argcount:
        return None, {}, False, None
    names, _, rest, values = inspect.getargvalues(frame)
    named = {name: values.get(name) for name in names}
    owner = next((value for name, value in named.items() if _runs(name, value, wanted)), None)
    is_its_call = owner is not None and owner is named.get("self") and code.co_name == "__call__"
    if is_its_call and isinstance(owner, ModularPipeline):
        arguments = _modular_arguments(owner, values)
    elif owner is not None and isinstance(values.get("block_state"), BlockState):
        arguments = dict(vars(values["block_state"]))  # a block of a modular pipeline
    else:
        kept = {name: value for name, value in named.items() if value is not owner}
        arguments = {**(values.get(rest) or {}), **kept} if rest else kept
    latent = _latent_of(owner, values, wanted[0])
    # Before Python 3.13 these are a copy that lives as long as the frame, first latents included.
    # It is the one that `locals()` gives: only where diffusers has no use for it is it cleared.
    if isinstance(owner, DiffusionPipeline) and is_its_call and type(values) is dict:
        values.clear()
    return owner, arguments, is_its_call, latent


def _latent_of(pipeline: Any, values: dict[str, Any], scheduler: Any) -> str | None:
    """Return the further latent that a scheduler steps, by a pipeline or a frame of its call."""
    if pipeline is None or getattr(pipeline, "scheduler", None) is scheduler:
        return None
    own = further_schedulers(pipeline).items()
    name = next((name for name, part in own if part is scheduler), None)
    return name or latent_in(values, scheduler)


def _passed(frame: types.FrameType, pipeline: Any) -> dict[str, Any] | None:
    """Return what the user passed to `__call__`, as torch's decorator above it was given it.

    Pipelines overwrite their arguments before the loop: a prompt is encoded, a size is rounded.
    Modular ones put copies of them into their state.
    """
    if isinstance(pipeline, ModularPipeline):
        _, _, rest, values = inspect.getargvalues(frame)
        return dict(values.get(rest or "", {}))
    above = frame.f_back
    if above is None or (above.f_globals.get("__name__"), above.f_code.co_name) != NO_GRAD:
        return None
    signature = inspect.signature(type(pipeline).__call__)
    bound = signature.bind(*above.f_locals["args"], **above.f_locals["kwargs"]).arguments
    _, *passed = bound.items()  # but for self
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    named = {n: v for n, v in passed if kinds[n] is not inspect.Parameter.VAR_KEYWORD}
    more = (v for n, v in passed if kinds[n] is inspect.Parameter.VAR_KEYWORD)
    return {**named, **next(more, {})}


def _runs(name: str, value: Any, wanted: list[Any]) -> bool:
    """Return whether an argument is a pipeline that has one of these schedulers."""
    if name != "self" and not isinstance(value, DiffusionPipeline | ModularPipeline):
        return False
    own = (getattr(value, "scheduler", None), *further_schedulers(value).values())
    return any(scheduler is target for scheduler in own for target in wanted)


def _modular_arguments(pipeline: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of the blocks that this call runs, with their defaults.

    The state holds the defaults of blocks that do not run as well, a `strength` among them. Where
    it is not known which blocks run, all of it counts.
    """
    state = dict(getattr(values.get("state"), "values", {}))
    arguments = {name: value for name, value in state.items() if value is not None}
    try:
        running = pipeline._blocks.get_execution_blocks(**arguments)
    except Exception:  # blocks of the user's own may know no such thing
        logger.debug("it is not known which blocks run", exc_info=True)
        return arguments
    inputs = [] if running is None else running.inputs
    return {
        parameter.name: arguments.get(parameter.name, parameter.default)
        for parameter in inputs
        if parameter.name is not None
    }


def as_number(value: Any) -> float | None:
    """Return a number of Python, numpy or torch as a float; None for anything else."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several numbers
        return None


def run_breaks(pipeline: Any, call: dict[str, Any]) -> tuple[float, ...]:
    """Return the noise levels below which another expert or guidance takes over in this run."""
    breaks = []
    boundary = getattr(pipeline, "config", {}).get("boundary_ratio")
    if boundary is not None and getattr(pipeline, "transformer_2", None) is not None:
        breaks.append(_boundary_level(pipeline.scheduler, boundary))
    truncation = call.get("cfg_truncation")
    if truncation is not None and 0 < truncation < 1:  # ZImage: guidance ends at 1 - t > truncation
        breaks.append(1 - float(truncation))
    first, last = call.get("cfg_interval_start"), call.get("cfg_interval_end")
    if first:  # ACE-Step: guidance from t <= 1 - start on ...
        breaks.append(math.nextafter(1 - float(first), 2.0))
    if last is not None and last < 1:  # ... until t < 1 - end
        breaks.append(1 - float(last))
    level = getattr(pipeline, "text_images_max_noise_level", None)
    if level and call.get("text_images") and call.get("image") is None:  # Fibo 2 reads them from t
        breaks.append(math.nextafter(float(level), 2.0))  # <= level on
    return tuple(sorted(breaks, reverse=True))


def _boundary_level(scheduler: Any, ratio: float) -> float:
    """Return the level below which Wan 2.2 runs its second expert, `ratio` of all timesteps.

    Some schedulers cut timesteps to integers.
    """
    timesteps = scheduler.config.num_train_timesteps
    boundary = ratio * timesteps
    whole = not scheduler.timesteps.is_floating_point()
    return float((math.ceil(boundary) if whole else boundary) / timesteps)


def can_start_midway(pipeline: Any) -> bool:
    """Return whether the pipeline mixes a picture with noise at a level that `strength` sets."""
    if isinstance(pipeline, ModularPipeline):
        return "strength" in {parameter.name for parameter in pipeline._blocks.inputs}
    names = inspect.signature(type(pipeline).__call__).parameters
    return (
        "strength" in names
        and "denoise_strength" not in names  # there `strength` is that of a condition
        and hasattr(pipeline, "get_timesteps")
    )


def midway_strength(pipeline: Any, call: dict[str, Any]) -> float | None:
    """Return the strength below 1 that a call starts midway with, given or by default."""
    if not can_start_midway(pipeline):
        return None
    own = inspect.signature(type(pipeline).__call__).parameters.get("strength")
    asked = as_number(call.get("strength", None if own is None else own.default))
    return asked if asked is not None and asked < 1 else None


def start_step(pipeline: Any, steps: int, strength: float | None) -> int:
    """Return the step a run of this strength starts at, rounded as the pipeline rounds it."""
    if strength is None:
        return 0
    if hasattr(type(pipeline), "get_timesteps"):
        return _start_of(type(pipeline), steps, strength)
    return int(max(steps - min(steps * strength, steps), 0))


def _start_of(pipeline_class: Any, steps: int, strength: float) -> int:
    """Ask the pipeline's own `get_timesteps`, on a stand-in with as many timesteps as steps."""
    scheduler = types.SimpleNamespace(
        timesteps=list(range(steps)), order=1, set_begin_index=lambda index: None
    )
    stand_in = types.SimpleNamespace(scheduler=scheduler)
    names = inspect.signature(pipeline_class.get_timesteps).parameters
    known = {
        "num_inference_steps": steps,
        "timesteps": scheduler.timesteps,
        "strength": strength,
        "device": "cpu",
    }
    timesteps, *_ = pipeline_class.get_timesteps(
        stand_in, **{name: known[name] for name in names if name in known}
    )
    return steps - len(timesteps)


def repeats(before: Any, now: Any) -> bool:
    """Return whether a call that prepares a run is another one than the call that did so before.

    A pipeline may prepare its run twice in one call, but not twice at one place of its code.
    """
    return before is not None and now is not None and before[0] is now[0] and now[1] <= before[1]


def run_arguments(samples: Sequence[Sample], call: dict[str, Any]) -> dict[str, Any]:
    """Return the pipeline's keyword arguments for these samples; one generator a sample.

    Noise is drawn on the CPU, so that a seed gives the same on every machine and device.
    """
    generators = [torch.Generator().manual_seed(sample.seed) for sample in samples]
    arguments = {**call, "generator": generators if len(generators) > 1 else generators[0]}
    prompts = [sample.prompt for sample in samples if sample.prompt is not None]
    if prompts:
        arguments["prompt"] = prompts if len(prompts) > 1 else prompts[0]
    return arguments


def giving(pipe: Any, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with this `output_type`, where the pipeline lets one ask for it.

    Of modular pipelines not all leave out the decoder where latents are asked for.
    """
    names = argument_names(pipe) or ()
    accepts = "output_type" in names and (kind != "latent" or not isinstance(pipe, ModularPipeline))
    return {**arguments, "output_type": kind} if accepts else arguments


def check_call_names(pipe: Any, call: dict[str, Any]) -> None:
    """Stop at a misspelt or foreign argument before the first long run."""
    known = argument_names(pipe)
    for name in call:
        if known is not None and name not in known:
            raise unknown(f"{type(pipe).__name__} has no argument", name, known)


def argument_names(pipe: Any) -> list[str] | None:
    """Return the names of a call's arguments, or None where it takes any."""
    _, *own = inspect.signature(type(pipe).__call__).parameters.values()  # but for self
    names = [parameter.name for parameter in own]
    if isinstance(pipe, ModularPipeline):  # some have a `__call__` that hands all on
        names += inspect.signature(ModularPipeline.__call__).parameters
        return [*names, *(parameter.name for parameter in pipe._blocks.inputs if parameter.name)]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own)
    return None if takes_any else names


def sounds_of(output: Any) -> dict[str, Tensor]:
    """Return the sound of a pipeline's first sample, where it makes some, by its latent's name."""
    parts = {name: getattr(output, name, None) for name in ("audio", "sound")}
    return {
        name: torch.as_tensor(part[0]).float() for name, part in parts.items() if part is not None
    }


MADE = ("images", "videos")  # the pictures among all that blocks have made


def has_pixels(state: Any) -> bool:
    """Return whether the blocks of a modular pipeline have made a picture or a clip."""
    return isinstance(state, PipelineState) and any(state.get(n) is not None for n in MADE)


def pixels_of(output: Any) -> Pixels:
    """Return the first picture or clip of a pipeline's output; refuse what is not finite."""
    if isinstance(output, PipelineState):
        output = [batch for batch in map(output.get, MADE) if batch is not None]
    pixels = np.asarray(output[0][0], dtype=np.float32)
    if not np.isfinite(pixels).all():
        raise HostError("the decoded picture is infinite or not a number: there is none to show")
    return pixels
