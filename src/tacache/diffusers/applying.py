"""Putting a plan into a pipeline, and taking it out again."""

import copy
import functools
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers import ModularPipeline

from tacache.diffusers.calls import RunningCall, as_number, can_start_midway, logger
from tacache.diffusers.checks import ApplyOptions
from tacache.diffusers.fingerprint import check_host, warn_of_solver
from tacache.diffusers.hooks import copy_shift, like
from tacache.diffusers.joint import SUFFIX, further_schedulers, latent_names, scheduler_names
from tacache.diffusers.schedulers import (
    CONFIG_FIELDS,
    PlanSchedulerMixin,
    parent_class,
    plan_scheduler,
)
from tacache.diffusers.stepping import check_flow_scheduler, run_times
from tacache.errors import HostError
from tacache.plan import Plan, as_plan

Times = tuple[float, ...]

# A word in the name of a pipeline's class, or of a class it is derived from, and the reason.
REFUSED_PIPELINES = {
    "VisualClozePipeline": "its inner pipelines hold the scheduler",
    "SanaSprint": "it is a consistency sampler: every step draws new noise",
    "DiffusionForcing": "each frame has a timestep of its own",
    "LTX2VideoDiffusionDecodePipeline": "its decoder makes its steps by itself",
    "RFD4Proteina": "its steps draw noise, and each moves only what a mask names",
    "SanaWMLTX2Refiner": "it prepares each block's steps anew from those that it sees",
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
    """Make `pipe` follow a plan, or the plan of a file: its scheduler becomes one that carries it.

    Nothing else of the pipeline changes; call it as before. A plan that is already applied is
    replaced. If the loop is your own, its call cannot be read: then say with `strength` where it
    starts (1.0 for noise), and with `breaks` what changes on the way (() for nothing).

    Args:
        pipe: A flow pipeline of diffusers.
        plan: The plan, or the path of its file.
        strength: For image to image and its like: the plan starts at that noise level, and the
            pipeline is called with strength=1.0.
        breaks: The noise levels at which another expert or guidance takes over.

    Raises:
        HostError: The pipeline's scheduler cannot carry a plan, or the plan is for another model.
        PlanError: The plan is none.

    """
    plan = as_plan(plan)
    options = _apply_options(strength, breaks)
    plain = plain_scheduler(pipe)
    check_host(pipe, plan)
    warn_of_solver(plan, plain)
    if options.is_midway and options.breaks is None and not can_start_midway(pipe):
        raise HostError(f"{type(pipe).__name__} starts from noise alone: it has no strength to set")
    carried = {"plan": json.loads(plan.to_json()), **options._asdict()}
    put_each(pipe, lambda plain: like(plain, plan_scheduler(plain.__class__), **carried))


def put_each(pipe: Any, make: Callable[[Any], Any]) -> None:
    """Put what `make` makes of each plain scheduler in its place, one a latent."""
    carrying = {}
    for name in scheduler_names(pipe):
        plain = plain_scheduler(pipe, name)
        carrying[name] = make(plain)
        carrying[name]._plain, carrying[name]._applied_to = plain, weakref.ref(pipe)
    for name, scheduler in carrying.items():
        put(pipe, scheduler, name)


def apply_as(pipe: Any, follower: Any) -> None:
    """Make `pipe` follow the plan that a pipeline of the same kind follows, which was not called.

    What both can share is not made again: `apply` takes milliseconds, a copy a fraction of one.
    """
    for name in scheduler_names(follower):
        carrying = getattr(follower, name)
        shared = (carrying.plan, carrying.config, carrying._plain)
        copied = copy.deepcopy(carrying, {id(part): part for part in shared})
        copied._source, copied._is_copied_run = None, False
        copied._applied_to = weakref.ref(pipe)
        put(pipe, copied, name)


def _apply_options(strength: Any, breaks: Iterable[float] | None) -> ApplyOptions:
    """Return what the user said, as numbers of Python."""
    level = None if strength is None else as_number(strength)
    if strength is not None and not (level is not None and 0 < level <= 1):
        raise HostError(f"strength is a number above 0 and up to 1, not {strength}")
    levels = None if breaks is None else tuple(float(b) for b in breaks)
    if levels is not None and not all(0 < b < 1 for b in levels):
        raise HostError(f"breaks are noise levels between 0 and 1, not {levels}")
    return ApplyOptions(level, levels)


def remove(pipe: Any) -> None:
    """Give the pipeline back the very scheduler object it had before `apply` or `accelerate`.

    Args:
        pipe: A pipeline of diffusers.

    """
    for name in scheduler_names(pipe):
        scheduler = getattr(pipe, name, None)
        if isinstance(scheduler, PlanSchedulerMixin):
            scheduler.leave()
            put(pipe, plain_scheduler(pipe, name), name)


@contextmanager
def applied(
    pipe: Any,
    plan: Plan | str | Path,
    *,
    strength: float | None = None,
    breaks: Iterable[float] | None = None,
) -> Iterator[Any]:
    """Apply a plan for the length of a `with` block; then the former scheduler is put back.

    Args:
        pipe: A pipeline of diffusers.
        plan: A plan, or the path of its file.
        strength: The noise level that the plan starts at, in image to image and its like.
        breaks: Noise levels below which another expert or guidance takes over.

    Yields:
        Nothing: call the pipeline within the block.

    Raises:
        HostError: If calls of this pipeline cannot follow plans.

    """
    with _restored(pipe):
        apply(pipe, plan, strength=strength, breaks=breaks)
        schedulers = [getattr(pipe, name) for name in scheduler_names(pipe)]
        yield pipe
    for scheduler in schedulers:
        scheduler.tell_unfinished()  # not where an error has ended the block


def check_finished(pipe: Any) -> None:
    """Stop where the pipeline's last run under a plan ended before the plan did."""
    for name in scheduler_names(pipe):
        scheduler = getattr(pipe, name, None)
        if isinstance(scheduler, PlanSchedulerMixin) and (warning := scheduler.tell_unfinished()):
            raise HostError(f"{type(pipe).__name__}: {warning}")


@contextmanager
def without_plan(pipe: Any) -> Iterator[Any]:
    """Make full steps for the length of a `with` block, whatever plan the pipeline carries."""
    with _restored(pipe):
        for name in scheduler_names(pipe):
            put(pipe, plain_scheduler(pipe, name), name)
        yield pipe


@contextmanager
def _restored(pipe: Any) -> Iterator[None]:
    """Put the schedulers back that the pipeline had before a `with` block."""
    before = {name: getattr(pipe, name) for name in scheduler_names(pipe)}
    try:
        yield
    finally:
        for name, scheduler in before.items():
            put(pipe, scheduler, name)


def put(pipe: Any, scheduler: Any, name: str = "scheduler") -> None:
    """Make this the pipeline's scheduler, also in what a modular pipeline saves.

    One that carries a plan says so where something else takes its place by hand.
    """
    before = getattr(pipe, name, None)
    if isinstance(before, PlanSchedulerMixin) and before._watch is not None:
        before._watch.detach()
    if isinstance(scheduler, PlanSchedulerMixin):
        scheduler._watch = weakref.finalize(scheduler, _tell_replaced, weakref.ref(pipe), name)
        scheduler._watch.atexit = False
    if isinstance(pipe, ModularPipeline):
        pipe.update_components(**{name: scheduler})
    setattr(pipe, name, scheduler)


def _tell_replaced(pipe: "weakref.ref[Any]", name: str) -> None:
    """Say that a plan is gone with its scheduler, which has just been freed."""
    left = pipe()
    scheduler = getattr(left, name, None)
    if scheduler is not None and not isinstance(scheduler, PlanSchedulerMixin):
        logger.warning(
            "the %s of %s was replaced by another, and its plan went with it: calls make full "
            "steps until accelerate(pipe) or apply(pipe, plan) is called again",
            name, type(left).__name__,
        )  # fmt: skip


def plain_scheduler(pipe: Any, attribute: str = "scheduler") -> Any:
    """Return the pipeline's own scheduler, without a plan; an error where it cannot carry one."""
    name = type(pipe).__name__
    bases = " ".join(base.__name__ for base in type(pipe).__mro__)
    for refused, reason in REFUSED_PIPELINES.items():
        if refused in bases:
            raise HostError(f"{name} cannot be accelerated: {reason}")
    scheduler = getattr(pipe, attribute, None)
    if scheduler is None:
        raise HostError(f"{name} has no scheduler, so a plan has nowhere to go")
    if isinstance(scheduler, PlanSchedulerMixin):
        original = getattr(scheduler, "_plain", None)
        if original is None:
            config = {k: v for k, v in scheduler.config.items() if k not in CONFIG_FIELDS}
            plain: Any = parent_class(type(scheduler))
            original = plain.from_config(config)
        copy_shift(scheduler, original)
        return original
    check_flow_scheduler(scheduler)
    return scheduler


def run_grids(
    call: RunningCall, own: Any, prepare: Any, times: Times
) -> tuple[Times, dict[str, Times]]:
    """Return the grid of the first latent and those of further ones, as a run is prepared.

    `times` is that of the latent which is being prepared, by `prepare`, and `own` the pipeline's
    plain scheduler. A loop prepares all of them alike, one after the other, and each must choose
    the same plan.
    """
    names = latent_names(call.pipeline)
    if not names or not isinstance(prepare, functools.partial):
        return times, {}
    further = further_schedulers(call.pipeline)
    plain = {n: plain_scheduler(call.pipeline, n + SUFFIX) if n in further else own for n in names}

    def grid(name: str | None, plain: Any) -> Times:
        if name == call.latent:
            return times
        twin = like(plain, plain.__class__)
        twin.set_timesteps(*prepare.args[1:], **prepare.keywords)
        return run_times(twin)

    return grid(None, own), {name: grid(name, part) for name, part in plain.items()}
