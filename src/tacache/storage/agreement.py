"""What must agree for a plan to be used unasked, and when two plans are for the same purpose.

The kind of host, pipeline, network, weights with adapters, size, dtype, scheduler with the options
of its steps, settings of the call, and grid.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from tacache.grid import break_steps, same_grid
from tacache.plan import Plan
from tacache.profile import Origin

# of a scheduler's configuration, what its steps are made by; the rest shows in the grid
SOLVER_OPTIONS = (
    "solver_order",
    "solver_type",
    "algorithm_type",
    "predict_x0",
    "disable_corrector",
    "lower_order_final",
    "euler_at_final",
    "final_sigmas_type",
)
STEP_OPTIONS = (*SOLVER_OPTIONS, "prediction_type", "stochastic_sampling", "thresholding")
# arguments of a call that change no velocity, or that the grid shows
NO_SETTINGS = (
    "batch_size",
    "num_images_per_prompt",
    "num_inference_steps",
    "num_timesteps",
    "num_videos_per_prompt",
    "return_dict",
    "timestep_shift",
)
TEXTS = ("cfg_renorm_type",)  # that shape velocities; others are prompts and names of formats


def target_of(plan: Plan) -> str:
    """What a fitted plan was fitted to come close to: "run" or "flow"."""
    measured = plan.certificate
    return "flow" if measured is not None and measured.flow_drift is not None else "run"


def setting(origin: Origin, times: Sequence[float], breaks: Sequence[float] = ()) -> str:
    """All that must agree for a plan to be used unasked, as JSON: equal texts, equal settings."""
    facts = {**_identity(origin), **_latents(origin), "call": _settings(origin)}
    grid = [round(float(t), 4) for t in times]
    facts |= {"times": grid, "breaks": list(break_steps(times, breaks))}
    return json.dumps(facts, sort_keys=True)


def agrees(
    plan: Plan, origin: Origin, times: Sequence[float], breaks: Sequence[float] = ()
) -> bool:
    """Whether a plan was made for just such a run, on a model with the very same weights."""
    known = plan.host
    if known.weights is None or _identity(known) != _identity(origin):
        return False
    before, now = _settings(known), _settings(origin)
    asked = {*now, *(name for name, value in before.items() if isinstance(value, dict))}
    shapes, wanted = _latents(known), _latents(origin)
    return (
        all(before.get(name) == now.get(name) for name in asked)
        and all(value is None or shapes[name] == value for name, value in wanted.items())
        and same_grid(plan.times, times)
        and plan.break_steps == break_steps(times, breaks)
    )


def plan_name(plan: Plan) -> str:
    """The name that a plan gets in the store: its model, its budget, and a hash of its setting."""
    model = plan.host.model or plan.host.pipeline or plan.host.kind
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[\\/]", model.rstrip("\\/"))[-1])
    purpose = [setting(plan.host, plan.times, plan.breaks), plan.rule, target_of(plan)]
    digest = hashlib.sha256(json.dumps(purpose).encode()).hexdigest()[:8]
    words = [short.strip(".-")[:40] or "plan", f"{plan.evaluations}of{plan.steps}"]
    words += ["flow"] if target_of(plan) == "flow" else []
    return "-".join([*words, digest])


def _identity(origin: Origin) -> dict[str, Any]:
    """What runs the model: no value of it may differ, and unknown is a value as well."""
    config = origin.scheduler_config or {}
    guided = "true_cfg_scale" in (origin.call or {})  # where only a negative prompt guides
    return {
        "kind": origin.kind,
        "pipeline": origin.pipeline,
        "denoiser": origin.denoiser,
        "weights": origin.weights,
        "negative": origin.negative if guided else None,
        "scheduler": origin.scheduler,
        "solver": {name: config.get(name) for name in STEP_OPTIONS},
    }


def _latents(origin: Origin) -> dict[str, Any]:
    """What a call may not know before its first step."""
    shape = origin.latent_shape
    return {"latent_shape": None if shape is None else list(shape), "dtype": origin.dtype}


def _settings(origin: Origin) -> dict[str, JsonValue]:
    """The arguments of the call that shape its velocities: guidance, size, frames and the like."""
    call = origin.call or {}
    shaping = {
        name: value
        for name, value in call.items()
        if name in TEXTS or (isinstance(value, bool | int | float | dict | list) and value != {})
    }
    return {name: value for name, value in shaping.items() if name not in NO_SETTINGS}


def same_purpose(plan: Plan, other: Plan) -> bool:
    """Whether two plans have one setting, number of evaluations, rule and target."""
    a, b = (_purpose(one) for one in (plan, other))
    return a == b and same_grid(plan.times, other.times)


def _purpose(plan: Plan) -> list[Any]:
    facts = {**_identity(plan.host), **_latents(plan.host), "call": _settings(plan.host)}
    return [facts, plan.break_steps, plan.evaluations, plan.rule, target_of(plan)]
