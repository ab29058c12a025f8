"""What a pipeline was called with, as far as it bears on a plan.

The scheduler is the only thing swapped, so a run's arguments are read where they are: in the frame
of the pipeline's `__call__`, which is what calls `set_timesteps`. Nothing is written there.
"""

import inspect
import logging
import types
from typing import Any

from tacache.errors import HostError
from tacache.plan import Plan

logger = logging.getLogger("tacache.diffusers")


def calling_pipeline(scheduler: Any) -> tuple[Any, dict[str, Any]]:
    """The pipeline that is running this scheduler and its call's arguments; (None, {}) if none."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "__call__" and getattr(owner, "scheduler", None) is scheduler:
            return owner, _arguments(frame)
        frame = frame.f_back
    return None, {}


def _arguments(frame: types.FrameType) -> dict[str, Any]:
    values = inspect.getargvalues(frame)
    return {name: values.locals.get(name) for name in values.args if name != "self"}


def run_breaks(pipeline: Any, call: dict[str, Any]) -> tuple[float, ...]:
    """The noise levels below which another expert or guidance takes over in this run."""
    breaks = []
    boundary = getattr(pipeline, "config", {}).get("boundary_ratio")
    if boundary is not None and getattr(pipeline, "transformer_2", None) is not None:
        breaks.append(float(boundary))  # Wan 2.2: steps below it run the second expert
    truncation = call.get("cfg_truncation")
    if truncation is not None and 0 < truncation < 1:  # ZImage: guidance ends at 1 - t > truncation
        breaks.append(1 - float(truncation))
    return tuple(sorted(breaks, reverse=True))


def start_step(pipeline: Any, steps: int, strength: float | None) -> int:
    """The step a run of this strength starts at, rounded as the pipeline rounds it."""
    if strength is None:
        return 0
    if hasattr(pipeline, "get_timesteps"):
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


def check_call(pipeline: Any, call: dict[str, Any], plan: Plan) -> None:
    """Stop where the pipeline counts something in loop iterations, which are fewer now."""
    if plan.evaluations == plan.steps:
        return
    name = type(pipeline).__name__
    strength = call.get("strength")
    if isinstance(strength, float | int) and strength < 1:
        raise HostError(
            f"{name} was called with strength={strength:g}, which it would count in anchors: "
            f"apply(pipe, plan, strength={strength:g}) starts the plan at that noise level; then "
            "call the pipeline with strength=1.0"
        )
    for argument, neutral in _COUNTED.items():
        value = call.get(argument, neutral)
        values = value if isinstance(value, list | tuple) else [value]
        if any(one is not None and one != neutral for one in values):
            raise HostError(
                f"{name} counts {argument}={value!r} in loop iterations, which are fewer and of "
                f"unequal length under a plan: leave it at {neutral!r}, or run without a plan"
            )
    if call.get("image_cond_noise_scale"):
        logger.warning(
            "%s draws noise in every loop iteration (image_cond_noise_scale=%g): with fewer of "
            "them the result differs from the full run's", name, call["image_cond_noise_scale"],
        )  # fmt: skip


# argument -> the value that makes no difference between iterations
_COUNTED: dict[str, Any] = {
    "control_guidance_start": 0.0,
    "control_guidance_end": 1.0,
    "cfg_trunc_ratio": 1.0,
    "skip_guidance_layers": None,
}
