"""The call of a driven pipeline: its scheduler, its copy, the thread it runs in, and its check.

Driving rests on what pipelines look like inside (a loop with `enumerate`, a `step` a turn). So the
first driven call of a kind of pipeline is compared with a plain one up to its first step.
"""

import copy
import inspect
import logging
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from diffusers import ModularPipeline
from diffusers.modular_pipelines.modular_pipeline import LoopSequentialPipelineBlocks
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from tacache.diffusers.applying import plain_scheduler
from tacache.diffusers.calls import run_breaks, running_call
from tacache.diffusers.driven_loop import (
    Abandoned,
    Failed,
    HeldStep,
    Loop,
    LoopTimesteps,
    Returned,
)
from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.diffusers.solving import copy_run
from tacache.diffusers.stepping import run_times, velocity_factor
from tacache.errors import HostError
from tacache.fitting.latents import Latent


class DrivenHooks(SchedulerHooks):
    """Hooks whose `step` hands its velocity over and takes the next state instead."""

    loop: Loop | None = None
    is_beside = False  # it steps a further latent of a joint model
    _source: Any = None  # the scheduler this one is a copy of

    @classmethod
    def class_members(cls, parent: Any) -> dict[str, Any]:
        """Return the parent's own step, by which a `Solver` walks."""
        return {"plain_step": parent.step}

    def _prepare(self, prepare: Callable[[], None]) -> None:
        prepare()
        if self.loop is not None and self.is_beside:
            self.loop.beside.add(id(self))
        elif self.loop is not None:
            self.timesteps = LoopTimesteps.of(self.timesteps, loop=self.loop)

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: dict[str, Any]
    ) -> Any:
        assert self.loop is not None
        x_next = self.loop.hold(_held(self, self.loop, v, x, options), x)
        self._step_index = self.loop.next_index  # as the parent leaves it
        if options.get("return_dict", True):
            return SchedulerOutput(prev_sample=x_next)
        return (x_next,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy in the same loop, by which a joint model steps a further latent."""
        copied = copy_run(self)
        copied.loop, copied.is_beside, copied._source = self.loop, True, self
        if self.loop is not None:
            self.loop.beside.add(id(copied))
        return copied


def _held(scheduler: Any, loop: Loop, v: Tensor, x: Tensor, options: dict[str, Any]) -> HeldStep:
    """Return what is handed over at a step; the running call is read at the first one."""
    if not loop.seen[0]:
        call = running_call(scheduler)
        loop.seen = call.arguments, run_breaks(call.pipeline, call.arguments)
    by_token = options.get("per_token_timesteps") is not None  # which turns the sign
    factor = -1.0 if by_token else velocity_factor(scheduler)
    latent = _latent(scheduler, loop, x) if loop.beside else None
    return HeldStep(v.detach().clone(), x.detach().clone(), options, factor, latent)


def _latent(scheduler: Any, loop: Loop, x: Tensor) -> Latent:
    """Return the latent that a scheduler steps; its name is read in the call, the first time."""
    key = id(scheduler)
    if key not in loop.names:
        loop.names[key] = running_call(scheduler).latent
    if scheduler.is_beside == (loop.names[key] is None):
        raise HostError(
            "the pipeline steps several latents, and it is not seen which of them this is: it "
            "cannot be driven"
        )
    times = run_times(scheduler)[loop.start : loop.start + loop.steps + 1]
    return Latent(loop.names[key], times, (), tuple(x.shape[1:]), 0, 0)


class FirstStep(NamedTuple):
    """A run's first step: the state it starts from, the velocity there, and where that leads."""

    state: Tensor
    velocity: Tensor
    result: Tensor


class StoppingHooks(SchedulerHooks):
    """Hooks whose `step` keeps the first step and ends the call there."""

    first: FirstStep | None = None

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: dict[str, Any]
    ) -> Any:
        velocity, state = v.detach().clone(), x.detach().clone()
        result = step(v, timestep, x, **options)
        self.first = FirstStep(state, velocity, result[0].detach().clone())
        raise Abandoned


def pipeline_with(pipe: Any, scheduler: Any, **further: Any) -> Any:
    """Copy the pipeline object, with the same modules, these schedulers and no progress bar."""
    copied = copy.copy(pipe)
    for name, part in {"scheduler": scheduler, **further}.items():
        setattr(copied, name, part)
    if isinstance(pipe, ModularPipeline):  # a plan registers its scheduler there
        copied._component_specs = dict(pipe._component_specs)
    shown = getattr(pipe, "_progress_bar_config", {})
    copied._progress_bar_config = {**shown, "disable": True}
    return copied


def run_call(pipe: Any, call: dict[str, Any], loop: Loop, settings: list[Any]) -> None:
    """Make the pipeline's call in its thread, and put how it ended into the loop's replies."""
    try:
        with ExitStack() as stack:
            for setting in settings:
                stack.enter_context(setting)
            with freeing_hooks(pipe), not_logged():
                if isinstance(pipe, ModularPipeline):
                    pipe._blocks = _counted_blocks(loop, pipe._blocks)
                output = _counted_by(loop, type(pipe).__call__)(pipe, **call)
        loop.replies.put(Returned(output))
    except Abandoned:
        pass
    except BaseException as error:
        loop.replies.put(Failed(error))


@contextmanager
def not_logged() -> Iterator[None]:
    """Keep blocks from logging an error of this thread once more at each level: it is raised."""
    mine, log = threading.get_ident(), logging.getLogger(ModularPipeline.__module__)

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != mine

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


@contextmanager
def freeing_hooks(pipe: Any) -> Iterator[None]:
    """Offload models again if a call fails; a call itself does so only at its end."""
    try:
        yield
    except BaseException:
        if hasattr(pipe, "maybe_free_model_hooks"):  # modular pipelines have none
            pipe.maybe_free_model_hooks()
        raise


def _counted_by(loop: Loop, function: Any) -> Callable[..., Any]:
    """Copy a function so that `enumerate` in its code is the loop's; the original stays."""
    plain = inspect.unwrap(function)
    names = {**plain.__globals__, "enumerate": loop.enumerate}
    counted = types.FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    counted.__kwdefaults__ = plain.__kwdefaults__
    return counted


def _counted_blocks(loop: Loop, blocks: Any) -> Any:
    """Copy the blocks of a modular pipeline, where the loop is one of them; it is counted."""
    copied = copy.deepcopy(blocks)
    waiting = [copied]
    while waiting:
        block = waiting.pop()
        waiting += block.sub_blocks.values()
        if hasattr(block, "set_progress_bar_config"):
            block.set_progress_bar_config(disable=True)
        if isinstance(block, LoopSequentialPipelineBlocks):
            kind = type(block)
            members = {"__call__": _counted_by(loop, kind.__call__), "__module__": kind.__module__}
            block.__class__ = type(kind.__name__, (kind,), members)
    return copied


def thread_settings() -> list[Any]:
    """Return contexts that give another thread the settings that PyTorch keeps for this one."""
    inference = torch.is_inference_mode_enabled()
    settings: list[Any] = [torch.inference_mode() if inference else torch.no_grad()]
    settings.append(_threads_within(torch.get_num_threads()))
    device = torch.empty(0).device  # torch.get_default_device() misses a `with` of torch 2.7
    if device != torch.device("cpu"):
        settings.append(device)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        settings.append(torch.cuda.stream(torch.cuda.current_stream()))  # and its device
    kinds = {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
    for kind in sorted(kinds):
        if torch.is_autocast_enabled(kind):
            dtype, cached = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
            settings.append(torch.autocast(kind, dtype=dtype, cache_enabled=cached))
    return settings


@contextmanager
def _threads_within(count: int) -> Iterator[None]:
    """Use so many threads within an operation: OpenMP keeps the number for each thread apart."""
    torch.set_num_threads(count)
    yield


class Repeatable:
    """A call with the random numbers it begins with, to be made again."""

    def __init__(self, call: dict[str, Any]) -> None:
        self._call = {name: _copied(value) for name, value in call.items()}
        self._state = torch.get_rng_state()
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._devices = [torch.cuda.current_device()] if started else []
        self._device_states = [torch.cuda.get_rng_state(device) for device in self._devices]

    def first_step(self, pipe: Any) -> FirstStep:
        """Return the first step of the plain call, which ends there."""
        scheduler = hooked_like(plain_scheduler(pipe), StoppingHooks)
        plain = pipeline_with(pipe, scheduler)
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._state)
            for device, state in zip(self._devices, self._device_states, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                with freeing_hooks(plain):
                    plain(**self._call)
            except Abandoned:
                pass
        if scheduler.first is None:
            raise HostError(f"{type(pipe).__name__} never called its scheduler's step")
        first: FirstStep = scheduler.first
        return first


def check_same(name: str, driven: FirstStep, plain: FirstStep) -> None:
    """Refuse a pipeline whose driven call begins in another way than its plain one."""
    differ = [
        part
        for part, value, expected in zip(FirstStep._fields, driven, plain, strict=True)
        if value.shape != expected.shape or not torch.equal(value, expected)
    ]
    if differ:
        raise HostError(
            f"{name} cannot be driven: held in its loop, its first step has another "
            f"{' and '.join(differ)} than in a plain call. Its loop is not what driving takes it "
            "for, or its results do not repeat"
        )


def _copied(value: Any) -> Any:
    """Return an argument that may be used twice: generators go on from where they are now."""
    if isinstance(value, list):
        return [_copied(element) for element in value]
    return value.clone_state() if isinstance(value, torch.Generator) else value
