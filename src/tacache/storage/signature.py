"""The signature of a run: what must agree for a plan to be used unasked, or to replace another.

The kind of host, pipeline, network, weights with adapters, size, dtype, scheduler with the options
of its steps, settings of the call, and grid.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import JsonValue

from tacache.grid import break_steps, same_grid
from tacache.plan import Plan
from tacache.storage.origin import Origin

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
    """Return what a fitted plan was fitted to come close to: "run" or "flow"."""
    measured = plan.certificate
    return "flow" if measured is not None and measured.flow_drift is not None else "run"


class RunSignature(NamedTuple):
    """A run as it is known before its first step: what two runs share where a plan is for both."""

    origin: Origin
    times: tuple[float, ...]
    breaks: tuple[float, ...] = ()
    whole: int = 0  # the steps of the run before a start midway cut it short; 0 where none did
    latents: Mapping[str, tuple[float, ...]] = {}  # the grids of what is stepped beside the first

    @property
    def steps(self) -> int:
        """Return how many steps are left to make."""
        return len(self.times) - 1

    @property
    def parts(self) -> int:
        """Return how many parts with a model or guidance of their own the run has."""
        return 1 + len(break_steps(self.times, self.breaks))

    @property
    def text(self) -> str:
        """Return all that must agree for a plan to be used unasked, as JSON that is equal then."""
        facts = {**_identity(self.origin), **_latents(self.origin), "call": _settings(self.origin)}
        grid = [round(float(t), 4) for t in self.times]
        facts |= {"times": grid, "breaks": list(break_steps(self.times, self.breaks))}
        if self.latents:
            facts["latents"] = {n: [round(t, 4) for t in own] for n, own in self.latents.items()}
        return json.dumps(facts, sort_keys=True)

    @property
    def key(self) -> str:
        """Return a name for the signature, which differs where a plan for one is for no other."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:20]

    def takes(self, plan: Plan) -> bool:
        """Return whether a plan that the user gave can be followed on this number of steps."""
        steps = (self.steps, self.whole or self.steps)
        return plan.rule != "fitted" or plan.has_own_times or plan.steps in steps

    def agrees(self, plan: Plan) -> bool:
        """Return whether a plan was made for just such a run, on the very same weights."""
        known = plan.origin
        if known.weights is None or _identity(known) != _identity(self.origin):
            return False
        before, now = _settings(known), _settings(self.origin)
        asked = {*now, *(name for name, value in before.items() if isinstance(value, dict))}
        shapes, needed = _latents(known), _latents(self.origin)
        return (
            all(before.get(name) == now.get(name) for name in asked)
            and all(value is None or shapes[name] == value for name, value in needed.items())
            and same_grid(plan.full_times, self.times)
            and _parts(plan) == break_steps(self.times, self.breaks)
            and _same_grids(latent_grids(plan), self.latents)
        )


def latent_grids(plan: Plan) -> dict[str, tuple[float, ...]]:
    """Return the grids of a plan's further latents, by their names."""
    return {name: latent.times for name, latent in (plan.latents or {}).items()}


def _same_grids(a: Mapping[str, tuple[float, ...]], b: Mapping[str, tuple[float, ...]]) -> bool:
    return a.keys() == b.keys() and all(same_grid(a[name], b[name]) for name in a)


def _parts(plan: Plan) -> tuple[int, ...]:
    """Return the steps of the full run at which a part begins."""
    return break_steps(plan.full_times, plan.breaks)


def plan_name(plan: Plan) -> str:
    """Return the name of a plan in the store: its model, its budget, and a hash of its run."""
    model = plan.origin.model or plan.origin.pipeline or plan.origin.kind
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[\\/]", model.rstrip("\\/"))[-1])
    run = RunSignature(plan.origin, plan.full_times, plan.breaks, latents=latent_grids(plan))
    purpose = [run.text, plan.rule, target_of(plan)]
    digest = hashlib.sha256(json.dumps(purpose).encode()).hexdigest()[:8]
    words = [short.strip(".-")[:40] or "plan", f"{plan.evaluations}of{plan.full_steps}"]
    words += ["flow"] if target_of(plan) == "flow" else []
    return "-".join([*words, digest])


def _identity(origin: Origin) -> dict[str, Any]:
    """Return what runs the model: no value of it may differ, and unknown is a value as well."""
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
    """Return what a call may not know before its first step."""
    shape = origin.latent_shape
    return {"latent_shape": None if shape is None else list(shape), "dtype": origin.dtype}


def _settings(origin: Origin) -> dict[str, JsonValue]:
    """Return the arguments of the call that shape its velocities: guidance, size, frames."""
    call = origin.call or {}
    shaping = {
        name: value
        for name, value in call.items()
        if name in TEXTS or (isinstance(value, bool | int | float | dict | list) and value != {})
    }
    return {name: value for name, value in shaping.items() if name not in NO_SETTINGS}


def same_purpose(plan: Plan, other: Plan) -> bool:
    """Return whether two plans have one signature, number of evaluations, rule and target."""
    a, b = _purpose(plan), _purpose(other)
    grids = latent_grids(plan), latent_grids(other)
    return a == b and same_grid(plan.full_times, other.full_times) and _same_grids(*grids)


def _purpose(plan: Plan) -> list[Any]:
    facts = {**_identity(plan.origin), **_latents(plan.origin), "call": _settings(plan.origin)}
    return [facts, _parts(plan), plan.evaluations, plan.rule, target_of(plan)]
