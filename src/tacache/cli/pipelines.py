"""What the commands know of diffusers' pipelines: hub ids, folders and models that ship."""

from pathlib import Path
from typing import Any

from tacache.errors import TACacheError
from tacache.grid import MOST_STEPS
from tacache.models import default_call, own_prompts
from tacache.plan import Plan

BATCHES = True  # a call makes several samples
STEPS = "num_inference_steps"


def load(model: str, asked: dict[str, Any], bars: bool) -> Any:
    """Return the host of the pipeline that --load asks for."""
    from tacache.diffusers.loading import Loading, load_pipeline
    from tacache.diffusers.pipeline import PipelineHost

    pipe = load_pipeline(model, Loading(**asked))
    pipe.set_progress_bar_config(disable=not bars)
    return PipelineHost(pipe)


def accelerate(pipe: Any, wish: dict[str, Any]) -> None:
    """Make the pipeline's calls faster."""
    from tacache.diffusers import accelerate as faster

    faster(pipe, **wish)


def prompts_of(model: str, source: str) -> str | Path:
    """Return a model's own set of prompts of this name, where it has one."""
    return own_prompts(model, source)


def call_arguments(model: str, plan: Plan | None, **given: Any) -> dict[str, Any]:
    """Return the pipeline's arguments: the model's own, then a plan's, then our options."""
    remembered: dict[str, Any] = {}
    if plan is not None:
        remembered = {STEPS: plan.steps, **(plan.host.call or {})}
    own = "true_cfg_scale" if "true_cfg_scale" in default_call(model) else "guidance_scale"
    names = {"steps": STEPS, "frames": "num_frames", "guidance": own}
    named = {names.get(name, name): value for name, value in given.items() if value is not None}
    return {**default_call(model), **remembered, **named}


def steps_of(call: dict[str, Any]) -> int:
    """Return the number of steps of a full run."""
    return whole(call, STEPS)


def whole(call: dict[str, Any], name: str) -> int:
    """Return an argument that is a number of steps: a whole one that a grid can have."""
    value = call[name]
    if type(value) is not int or not 1 <= value <= MOST_STEPS:
        raise TACacheError(f"{name} is a whole number from 1 to {MOST_STEPS}, not {value!r}")
    return value
