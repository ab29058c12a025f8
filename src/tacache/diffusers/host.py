"""Putting a plan into a pipeline, and taking it out again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tacache.diffusers.calls import can_start_midway
from tacache.diffusers.fingerprint import check_host
from tacache.diffusers.flow import check_flow_scheduler
from tacache.diffusers.matching import warn_of_solver
from tacache.diffusers.schedulers import FollowsPlan, parent_class, plan_scheduler
from tacache.errors import HostError
from tacache.plan import Plan, check_plan

REFUSED_PIPELINES = {
    "VisualClozePipeline": "its inner pipelines hold the scheduler",
    "SanaSprintPipeline": "it is a consistency sampler: every step draws new noise",
}


def apply(pipe: Any, plan: Plan, *, strength: float | None = None) -> None:
    """Make `pipe` follow `plan`: its scheduler becomes one that carries the plan.

    Nothing else of the pipeline changes; call it as before. `strength` is for image-to-image and
    its like: the plan starts at that noise level, and the pipeline is called with strength=1.0.
    A plan that is already applied is replaced.
    """
    check_plan(plan)
    if strength is not None and not 0 < strength <= 1:
        raise HostError(f"strength is a number above 0 and up to 1, not {strength}")
    plain = plain_scheduler(pipe)
    check_host(pipe, plan)
    warn_of_solver(plan, plain)
    if strength is not None and not can_start_midway(pipe):
        raise HostError(f"{type(pipe).__name__} starts from noise alone: it has no strength to set")
    carrier: Any = plan_scheduler(plain.__class__)
    scheduler = carrier.from_config(
        plain.config, plan=json.loads(plan.to_json()), strength=strength
    )
    _set_shift(scheduler, plain)
    scheduler._plain = plain
    pipe.scheduler = scheduler


def remove(pipe: Any) -> None:
    """Give the pipeline back the very scheduler object it had before `apply`."""
    if isinstance(getattr(pipe, "scheduler", None), FollowsPlan):
        pipe.scheduler = plain_scheduler(pipe)


@contextmanager
def applied(pipe: Any, plan: Plan, *, strength: float | None = None) -> Iterator[Any]:
    """`apply` for the length of a `with` block; what was there before comes back, come what may."""
    before = pipe.scheduler
    apply(pipe, plan, strength=strength)
    try:
        yield pipe
    finally:
        pipe.scheduler = before


@contextmanager
def without_plan(pipe: Any) -> Iterator[Any]:
    """Full steps for the length of a `with` block, whatever plan the pipeline was saved with."""
    before = pipe.scheduler
    pipe.scheduler = plain_scheduler(pipe)
    try:
        yield pipe
    finally:
        pipe.scheduler = before


def _set_shift(scheduler: Any, other: Any) -> None:
    """The other's shift, which `set_shift` changes without the configuration."""
    if hasattr(other, "_shift"):
        scheduler._shift = other._shift


def plain_scheduler(pipe: Any) -> Any:
    """The pipeline's own scheduler, without a plan; an error where it cannot carry one."""
    name = type(pipe).__name__
    if name in REFUSED_PIPELINES:
        raise HostError(f"{name} cannot be accelerated: {REFUSED_PIPELINES[name]}")
    if "DiffusionForcing" in name:
        raise HostError(f"{name} cannot be accelerated: each frame has a timestep of its own")
    scheduler = getattr(pipe, "scheduler", None)
    if scheduler is None:
        raise HostError(f"{name} has no scheduler, so a plan has nowhere to go")
    if isinstance(scheduler, FollowsPlan):
        original = getattr(scheduler, "_plain", None)
        if original is None:
            config = {k: v for k, v in scheduler.config.items() if k not in ("plan", "strength")}
            plain: Any = parent_class(type(scheduler))
            original = plain.from_config(config)
        _set_shift(original, scheduler)
        return original
    check_flow_scheduler(scheduler)
    return scheduler
