"""What a pipeline was called with, as far as it bears on a plan.

The scheduler is the only thing swapped, so a run's arguments are read where they are: in the frame
of the pipeline's `__call__`, which is what calls `set_timesteps`. Nothing is written there.
"""

import inspect
import logging
import math
import sys
import types
from typing import Any

from diffusers import DiffusionPipeline

from tacache.errors import HostError
from tacache.plan import Plan

logger = logging.getLogger("tacache.diffusers")


def calling_pipeline(scheduler: Any) -> tuple[Any, dict[str, Any]]:
    """The pipeline that is running this scheduler and its call's arguments; (None, {}) if none."""
    frame = sys._getframe(1)  # not this one: a frame that holds itself is freed late, with all else
    while frame is not None:
        if frame.f_code.co_name == "__call__":
            owner, arguments = _seen(frame)
            if getattr(owner, "scheduler", None) is scheduler:
                return owner, arguments
        frame = frame.f_back  # type: ignore[assignment]
    return None, {}


def _seen(frame: types.FrameType) -> tuple[Any, dict[str, Any]]:
    """`self` and the other arguments of a call; no variable of its frame is held afterwards."""
    names, _, _, values = inspect.getargvalues(frame)
    owner = values.get("self")
    arguments = {name: values.get(name) for name in names if name != "self"}
    # Before Python 3.13 these are a copy that lives as long as the frame, first latents included.
    # It is the one that `locals()` gives: only where diffusers has no use for it is it cleared.
    if isinstance(owner, DiffusionPipeline) and type(values) is dict:
        values.clear()
    return owner, arguments


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
    """Wan 2.2: timesteps below `ratio` of all run the second expert; some are cut to integers."""
    timesteps = scheduler.config.num_train_timesteps
    boundary = ratio * timesteps
    whole = not scheduler.timesteps.is_floating_point()
    return float((math.ceil(boundary) if whole else boundary) / timesteps)


def can_start_midway(pipeline: Any) -> bool:
    """Whether the pipeline mixes a picture with noise at a level that `strength` sets."""
    names = inspect.signature(type(pipeline).__call__).parameters
    return (
        "strength" in names
        and "denoise_strength" not in names  # there `strength` is that of a condition
        and hasattr(pipeline, "get_timesteps")
    )


def start_step(pipeline: Any, steps: int, strength: float | None) -> int:
    """The step a run of this strength starts at, rounded as the pipeline rounds it."""
    if strength is None:
        return 0
    if pipeline is not None:
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


def check_call(
    pipeline: Any, call: dict[str, Any], plan: Plan, strength: float | None = None
) -> None:
    """Stop where the pipeline counts something in loop iterations, which are fewer now."""
    if plan.evaluations == plan.steps and strength is None:
        return
    name = type(pipeline).__name__
    _check_strength(name, call)
    for guider in enabled_guiders(pipeline):
        _check_guider(name, guider)
    _check_counted(name, call)
    if call.get("image_cond_noise_scale"):
        logger.warning(
            "%s draws noise in every loop iteration (image_cond_noise_scale=%g): with fewer of "
            "them the result differs from the full run's", name, call["image_cond_noise_scale"],
        )  # fmt: skip
    if has_momentum(pipeline):
        logger.warning(
            "the guidance of %s has a momentum, which gathers over loop iterations: with fewer of "
            "them the result differs from the full run's by more than the plan's steps", name,
        )  # fmt: skip


def _check_strength(name: str, call: dict[str, Any]) -> None:
    """A start in mid-run is set with the plan, not in the call."""
    argument = "denoise_strength" if "denoise_strength" in call else "strength"
    asked = call.get(argument)
    if isinstance(asked, float | int) and asked < 1:
        remedy = (
            f"apply(pipe, plan, strength={asked:g}) starts the plan at that noise level; then call "
            "the pipeline with strength=1.0"
            if argument == "strength"
            else "this pipeline cannot be started midway under a plan"
        )
        raise HostError(
            f"{name} was called with {argument}={asked:g}, counted in its own steps: {remedy}"
        )


def _check_counted(name: str, call: dict[str, Any]) -> None:
    """Arguments that mean another iteration where there are fewer."""
    schedule = call.get("guidance_schedule")
    if schedule is not None and len({float(scale) for scale in schedule}) > 1:
        raise HostError(
            f"{name} counts its guidance_schedule in loop iterations, which are fewer under a "
            "plan: call it with guidance_schedule=None and one guidance_scale"
        )
    for argument, neutral in _COUNTED.items():
        value = call.get(argument, neutral)
        values = value if isinstance(value, list | tuple) else [value]
        if any(one is not None and one != neutral for one in values):
            raise HostError(
                f"{name} counts {argument}={value!r} in loop iterations, which are fewer and of "
                f"unequal length under a plan: leave it at {neutral!r}, or run without a plan"
            )


def enabled_guiders(pipeline: Any) -> list[Any]:
    """The guiders of diffusers that a pipeline's loop may consult."""
    found = (getattr(pipeline, name, None) for name in ("guider", "ocr_guider"))
    return [guider for guider in found if getattr(guider, "_enabled", False)]


def has_momentum(pipeline: Any) -> bool:
    """Whether guidance depends on the loop iterations before."""
    name = "adaptive_projected_guidance_momentum"
    guided = any(getattr(one, name, None) is not None for one in enabled_guiders(pipeline))
    return guided or type(pipeline).__name__ in _WITH_MOMENTUM


def _check_guider(name: str, guider: Any) -> None:
    """Stop where a guider would change its ways at some iteration of the loop."""
    start, stop = getattr(guider, "_start", 0.0), getattr(guider, "_stop", 1.0)
    later = getattr(guider, "adaptive_projected_guidance_start_step", -1)
    if (start, stop) != (0.0, 1.0) or later >= 0:
        changed = f"start={start:g}, stop={stop:g}" + (
            f", adaptive_projected_guidance_start_step={later}" if later >= 0 else ""
        )
        raise HostError(
            f"the {type(guider).__name__} of {name} changes its guidance by a count of loop "
            f"iterations ({changed}), which are fewer under a plan: give it start=0, stop=1 and no "
            "later start (adaptive_projected_guidance_start_step=-1), or run without a plan"
        )


_WITH_MOMENTUM = {"AceStepPipeline"}  # in the loop itself, whatever the arguments
# argument -> the value that makes no difference between iterations
_COUNTED: dict[str, Any] = {
    "control_guidance_start": 0.0,
    "control_guidance_end": 1.0,
    "cfg_trunc_ratio": 1.0,
    "skip_guidance_layers": None,
    "enable_temporal_reasoning": False,
}
