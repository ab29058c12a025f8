"""What a pipeline was called with, as far as it bears on a plan.

The scheduler is the only thing that is swapped, so the arguments of a run are read where they are:
in the frames between the pipeline's `__call__` and `set_timesteps`. Nothing is written there.
`RunningCall.is_read` says whether all of it could be read; `checks` decides what follows.
"""

import inspect
import logging
import math
import sys
import types
from dataclasses import dataclass, field, replace
from typing import Any

from diffusers import DiffusionPipeline, ModularPipeline
from diffusers.modular_pipelines.modular_pipeline import BlockState

logger = logging.getLogger("tacache.diffusers")


@dataclass(frozen=True)
class RunningCall:
    """The call that runs a scheduler, as far as its frames show it."""

    pipeline: Any = None  # None where no frame holds a pipeline with this scheduler
    arguments: dict[str, Any] = field(default_factory=dict)
    is_read: bool = False  # the pipeline's own `__call__` was found
    is_of_diffusers: bool = False  # and its code is that of diffusers
    place: tuple[Any, int] | None = None  # the outermost frame's code, and how far it has come

    @property
    def name(self) -> str:
        """The pipeline's class, for messages."""
        return "the loop" if self.pipeline is None else type(self.pipeline).__name__


def calling_pipeline(scheduler: Any) -> tuple[Any, dict[str, Any]]:
    """The pipeline that is running this scheduler and its call's arguments; (None, {}) if none."""
    call = running_call(scheduler)
    return call.pipeline, call.arguments


def running_call(scheduler: Any) -> RunningCall:
    """The call that is running this scheduler, or the one this scheduler was copied from.

    Arguments of helpers and of loops in functions count too; those nearest to the loop win.
    """
    wanted = [scheduler, getattr(scheduler, "_source", None) or scheduler]
    found = RunningCall()
    frame = sys._getframe(1)  # not this one: a frame that holds itself is freed late, with all else
    while frame is not None:
        owner, arguments, is_its_call = _seen(frame, wanted)
        if owner is not None:
            found = RunningCall(
                owner,
                {**arguments, **found.arguments},
                is_its_call,
                _is_of_diffusers(owner, frame),
                (frame.f_code, frame.f_lasti),
            )
        if is_its_call:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return replace(found, is_of_diffusers=False)


def frame_runs(frame: types.FrameType, scheduler: Any) -> bool:
    """Whether this is the call of a pipeline with this scheduler, maybe of another thread."""
    is_call = frame.f_code.co_name == "__call__"
    return is_call and _runs("self", frame.f_locals.get("self"), [scheduler])


def _is_of_diffusers(pipeline: Any, frame: types.FrameType) -> bool:
    """Whether the code that runs the loop is that of diffusers, blocks included."""
    modules = [frame.f_globals.get("__name__", "")]
    blocks = [pipeline._blocks] if isinstance(pipeline, ModularPipeline) else []
    while blocks:
        block = blocks.pop()
        modules.append(type(block).__module__)
        blocks += block.sub_blocks.values()
    return all(module.split(".")[0] == "diffusers" for module in modules)


def _seen(frame: types.FrameType, wanted: list[Any]) -> tuple[Any, dict[str, Any], bool]:
    """The pipeline among a frame's arguments, the others, and whether this is its `__call__`.

    No variable of the frame is held afterwards.
    """
    code = frame.f_code
    if not code.co_argcount:
        return None, {}, False
    names, _, rest, values = inspect.getargvalues(frame)
    given = {name: values.get(name) for name in names}
    owner = next((one for name, one in given.items() if _runs(name, one, wanted)), None)
    is_its_call = owner is not None and owner is given.get("self") and code.co_name == "__call__"
    if is_its_call and isinstance(owner, ModularPipeline):
        arguments = _modular_arguments(owner, values)
    elif owner is not None and isinstance(values.get("block_state"), BlockState):
        arguments = dict(vars(values["block_state"]))  # a block of a modular pipeline
    else:
        kept = {name: one for name, one in given.items() if one is not owner}
        arguments = {**(values.get(rest) or {}), **kept} if rest else kept
    # Before Python 3.13 these are a copy that lives as long as the frame, first latents included.
    # It is the one that `locals()` gives: only where diffusers has no use for it is it cleared.
    if isinstance(owner, DiffusionPipeline) and is_its_call and type(values) is dict:
        values.clear()
    return owner, arguments, is_its_call


def _runs(name: str, value: Any, wanted: list[Any]) -> bool:
    """Whether an argument is a pipeline that has one of these schedulers."""
    if name != "self" and not isinstance(value, DiffusionPipeline | ModularPipeline):
        return False
    scheduler = getattr(value, "scheduler", None)
    return any(scheduler is one for one in wanted)


def _modular_arguments(pipeline: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The inputs of the blocks that this call runs, with their defaults.

    The state holds the defaults of blocks that do not run as well, a `strength` among them. Where
    it is not known which blocks run, all of it counts.
    """
    state = dict(getattr(values.get("state"), "values", {}))
    given = {name: value for name, value in state.items() if value is not None}
    try:
        running = pipeline._blocks.get_execution_blocks(**given)
    except Exception:  # blocks of the user's own may know no such thing
        logger.debug("it is not known which blocks run", exc_info=True)
        return given
    inputs = [] if running is None else running.inputs
    return {one.name: given.get(one.name, one.default) for one in inputs if one.name is not None}


def as_number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float; None for anything else."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several numbers
        return None


def run_breaks(pipeline: Any, call: dict[str, Any]) -> tuple[float, ...]:
    """The noise levels below which another expert or guidance takes over in this run."""
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
    return tuple(sorted(breaks, reverse=True))


def _boundary_level(scheduler: Any, ratio: float) -> float:
    """The level below which Wan 2.2 runs its second expert, `ratio` of all timesteps.

    Some schedulers cut timesteps to integers.
    """
    timesteps = scheduler.config.num_train_timesteps
    boundary = ratio * timesteps
    whole = not scheduler.timesteps.is_floating_point()
    return float((math.ceil(boundary) if whole else boundary) / timesteps)


def can_start_midway(pipeline: Any) -> bool:
    """Whether the pipeline mixes a picture with noise at a level that `strength` sets."""
    if isinstance(pipeline, ModularPipeline):
        return "strength" in {one.name for one in pipeline._blocks.inputs}
    names = inspect.signature(type(pipeline).__call__).parameters
    return (
        "strength" in names
        and "denoise_strength" not in names  # there `strength` is that of a condition
        and hasattr(pipeline, "get_timesteps")
    )


def midway_strength(pipeline: Any, call: dict[str, Any]) -> float | None:
    """The strength below 1 that a call starts midway with, given or by default."""
    if not can_start_midway(pipeline):
        return None
    own = inspect.signature(type(pipeline).__call__).parameters.get("strength")
    asked = as_number(call.get("strength", None if own is None else own.default))
    return asked if asked is not None and asked < 1 else None


def start_step(pipeline: Any, steps: int, strength: float | None) -> int:
    """The step a run of this strength starts at, rounded as the pipeline rounds it."""
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
