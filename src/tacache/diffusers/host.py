"""Putting a plan into a pipeline, and taking it out again."""

import json
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers import ModularPipeline

from tacache.diffusers.calls import as_number, can_start_midway
from tacache.diffusers.checks import Said
from tacache.diffusers.derived import copy_shift, like
from tacache.diffusers.fingerprint import check_host
from tacache.diffusers.flow import check_flow_scheduler
from tacache.diffusers.matching import warn_of_solver
from tacache.diffusers.schedulers import FollowsPlan, parent_class, plan_scheduler
from tacache.errors import HostError
from tacache.plan import Plan, as_plan

OURS = ("plan", "strength", "breaks")  # what a scheduler with a plan adds to its configuration
# A word in the name of a pipeline's class, or of a class it is derived from, and the reason.
REFUSED_PIPELINES = {
    "VisualClozePipeline": "its inner pipelines hold the scheduler",
    "SanaSprint": "it is a consistency sampler: every step draws new noise",
    "DiffusionForcing": "each frame has a timestep of its own",
    "LTXI2VLongMultiPromptPipeline": "its loop leaves the last timestep out, which under a plan is "
    "the whole last interval",
}


def apply(
    pipe: Any,
    plan: Plan | str | Path,
    *,
    strength: float | None = None,
    breaks: Iterable[float] | None = None,
) -> None:
    """Make `pipe` follow `plan`, or that of a file: its scheduler becomes one that carries it.

    Nothing else of the pipeline changes; call it as before. `strength` is for image-to-image and
    its like: the plan starts at that noise level, and the pipeline is called with strength=1.0.
    A plan that is already applied is replaced.

    Where the loop is your own, its call cannot be read: say with `strength` where it starts (1.0
    for noise) and with `breaks` the noise levels at which another expert or guidance takes over,
    () for none.
    """
    plan = as_plan(plan)
    said = _said(strength, breaks)
    plain = plain_scheduler(pipe)
    check_host(pipe, plan)
    warn_of_solver(plan, plain)
    if said.is_midway and said.breaks is None and not can_start_midway(pipe):
        raise HostError(f"{type(pipe).__name__} starts from noise alone: it has no strength to set")
    carrier = plan_scheduler(plain.__class__)
    scheduler = like(plain, carrier, plan=json.loads(plan.to_json()), **said._asdict())
    scheduler._plain, scheduler._applied_to = plain, weakref.ref(pipe)
    put(pipe, scheduler)


def _said(strength: Any, breaks: Iterable[float] | None) -> Said:
    """What the user said, as numbers of Python."""
    level = None if strength is None else as_number(strength)
    if strength is not None and not (level is not None and 0 < level <= 1):
        raise HostError(f"strength is a number above 0 and up to 1, not {strength}")
    levels = None if breaks is None else tuple(float(one) for one in breaks)
    if levels is not None and not all(0 < one < 1 for one in levels):
        raise HostError(f"breaks are noise levels between 0 and 1, not {levels}")
    return Said(level, levels)


def remove(pipe: Any) -> None:
    """Give the pipeline back the very scheduler object it had before `apply` or `accelerate`."""
    scheduler = getattr(pipe, "scheduler", None)
    if isinstance(scheduler, FollowsPlan):
        scheduler.leave()
        put(pipe, plain_scheduler(pipe))


@contextmanager
def applied(
    pipe: Any,
    plan: Plan | str | Path,
    *,
    strength: float | None = None,
    breaks: Iterable[float] | None = None,
) -> Iterator[Any]:
    """`apply` for the length of a `with` block; afterwards the former scheduler is put back."""
    before = pipe.scheduler
    apply(pipe, plan, strength=strength, breaks=breaks)
    scheduler = pipe.scheduler
    try:
        yield pipe
    finally:
        put(pipe, before)
    scheduler.tell_unfinished()  # not where an error has ended the block


def check_finished(pipe: Any) -> None:
    """Stop where the pipeline's last run under a plan ended before the plan did."""
    scheduler = getattr(pipe, "scheduler", None)
    found = scheduler.tell_unfinished() if isinstance(scheduler, FollowsPlan) else None
    if found is not None:
        raise HostError(f"{type(pipe).__name__}: {found}")


@contextmanager
def without_plan(pipe: Any) -> Iterator[Any]:
    """Full steps for the length of a `with` block, whatever plan the pipeline was saved with."""
    before = pipe.scheduler
    put(pipe, plain_scheduler(pipe))
    try:
        yield pipe
    finally:
        put(pipe, before)


def put(pipe: Any, scheduler: Any) -> None:
    """Make this the pipeline's scheduler, also in what a modular pipeline saves."""
    if isinstance(pipe, ModularPipeline):
        pipe.update_components(scheduler=scheduler)
    pipe.scheduler = scheduler


def plain_scheduler(pipe: Any) -> Any:
    """The pipeline's own scheduler, without a plan; an error where it cannot carry one."""
    name = type(pipe).__name__
    bases = " ".join(base.__name__ for base in type(pipe).__mro__)
    for refused, reason in REFUSED_PIPELINES.items():
        if refused in bases:
            raise HostError(f"{name} cannot be accelerated: {reason}")
    scheduler = getattr(pipe, "scheduler", None)
    if scheduler is None:
        raise HostError(f"{name} has no scheduler, so a plan has nowhere to go")
    if isinstance(scheduler, FollowsPlan):
        original = getattr(scheduler, "_plain", None)
        if original is None:
            config = {k: v for k, v in scheduler.config.items() if k not in OURS}
            plain: Any = parent_class(type(scheduler))
            original = plain.from_config(config)
        copy_shift(scheduler, original)
        return original
    check_flow_scheduler(scheduler)
    return scheduler
