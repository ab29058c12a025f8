"""The loop of a driven pipeline: its timesteps, its scheduler, and the thread it runs in.

`driving` says how the parts work together.
"""

import copy
import functools
import inspect
import queue
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from tacache.diffusers.calls import calling_pipeline, run_breaks
from tacache.diffusers.host import plain_scheduler
from tacache.errors import HostError

# --- where the two threads meet ---------------------------------------------------------------


class Held(NamedTuple):
    """A loop that waits in its scheduler's `step`, with what the pipeline gave it."""

    v: Tensor
    x: Tensor
    options: dict[str, Any]
    negated: bool  # the scheduler counts time the other way

    @property
    def velocity(self) -> Tensor:
        """A copy of v, in our sign."""
        return -self.v if self.negated else self.v.clone()


class Request(NamedTuple):
    """Go on at step n from state x; n is the number of steps where the loop shall end."""

    x: Tensor
    n: int


class Returned(NamedTuple):
    """The pipeline's call is over."""

    output: Any


class Failed(NamedTuple):
    """The pipeline's call has raised."""

    error: BaseException


class Abandoned(BaseException):
    """Ends a pipeline's call from within; no `except Exception` of it takes this for its own."""


class Loop:
    """The pipeline's loop as both threads know it, and the two queues between them."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Held | Returned | Failed] = queue.SimpleQueue()
        self.start = self.steps = 0
        self.seen: tuple[dict[str, Any], tuple[float, ...]] = {}, ()  # the call and its breaks
        self.ahead = 0  # how much further than i + 1 the step lies that comes next
        self._turn: int | None = None
        self._next: int | None = None

    def enumerate(self, items: Iterable[Any], start: int = 0) -> Iterable[tuple[int, Any]]:
        """`enumerate`, but over the loop's timesteps in the order they are asked for."""
        items = getattr(items, "iterable", items)  # a progress bar
        return self.turns(items) if isinstance(items, LoopTimesteps) else enumerate(items, start)

    def turns(self, timesteps: "LoopTimesteps") -> Iterator[tuple[int, Tensor]]:
        """One turn of the loop per request, from step 0 on."""
        if self.steps:
            raise HostError(
                "the pipeline walks through its steps more than once a call: it has no one state "
                "to be driven by"
            )
        self.start, self.steps = timesteps.start, len(timesteps)
        n = 0
        while n < self.steps:
            self.ahead, self._turn, self._next = 0, n, None
            yield n, timesteps[n]
            if self._next is None:
                raise HostError("the pipeline's loop went on without a step of its scheduler")
            n = self._next
        self.ahead, self._turn = 0, None

    def hold(self, held: Held) -> Request:
        """Hand the velocity over and wait for what comes next."""
        if self._turn is None:
            raise HostError(
                "the pipeline does not loop over its scheduler's timesteps in its own __call__: "
                "it cannot be driven"
            )
        if self._next is not None:
            raise HostError("the pipeline calls its scheduler's step twice in a turn of its loop")
        self.replies.put(held)
        request = self.requests.get()
        if request is None:
            raise Abandoned
        self._next, self.ahead = request.n, request.n - self._turn - 1
        return request


class LoopTimesteps(Tensor):
    """The timesteps of a run, as its pipeline sees them.

    After `step`, index i + 1 is that of the step which comes next, whichever it is, and lies beyond
    the end where none does: inpainting puts its known part back at the level of timesteps[i + 1].
    """

    # operations give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    loop: Loop
    start: int

    @staticmethod
    def of(timesteps: Tensor, loop: Loop, start: int = 0) -> "LoopTimesteps":
        """`timesteps`, which are the run's from step `start` on, for this loop."""
        view = timesteps.as_subclass(LoopTimesteps)
        view.loop, view.start = loop, start
        return view

    @property
    def plain(self) -> Tensor:
        """The same as a tensor like any other."""
        return self.as_subclass(Tensor)

    def __len__(self) -> int:
        return len(self.plain) - self.loop.ahead

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int) and index >= 0:
            return self.plain[index + self.loop.ahead]
        found = self.plain[index]
        if isinstance(index, slice) and index.step in (None, 1):
            first = index.indices(len(self.plain))[0]
            return LoopTimesteps.of(found, self.loop, self.start + first)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain.clone()


# --- the scheduler and the pipeline of a driven run -------------------------------------------


@functools.cache
def driven_scheduler(parent: type) -> Any:
    """`parent` with a `step` that hands its velocity over and takes the next state instead."""
    plain: Any = parent
    plain_set_timesteps, plain_step = plain.set_timesteps, plain.step

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_set_timesteps(self, *args, **kwargs)
        if self.loop is not None:
            self.timesteps = LoopTimesteps.of(self.timesteps, self.loop)

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        bound = inspect.signature(plain_step).bind(
            self, model_output, timestep, sample, *args, **kwargs
        )
        options = dict(list(bound.arguments.items())[4:])
        request = self.loop.hold(_held(self, model_output, sample, options))
        self._step_index = self.loop.start + request.n  # as the parent leaves it
        if options.get("return_dict", True):
            return SchedulerOutput(prev_sample=request.x)
        return (request.x,)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:  # noqa: N807
        raise HostError(
            "the pipeline steps something beside its latents with a copy of its scheduler (sound "
            "with pictures): one state does not say what its velocity is, so it cannot be driven"
        )

    members: dict[str, Any] = {
        "loop": None,
        "set_timesteps": set_timesteps,
        "step": step,
        "plain_step": plain_step,
        "__deepcopy__": __deepcopy__,
    }
    if not hasattr(parent, "scale_model_input"):  # Bria calls it on every class but the plain one
        members["scale_model_input"] = lambda self, sample, *args, **kwargs: sample
    return type(f"Driven{parent.__name__}", (parent,), members)


def _held(scheduler: Any, v: Tensor, x: Tensor, options: dict[str, Any]) -> Held:
    """What is handed over at a step; the running call is read at the first, as in calibration."""
    if not scheduler.loop.seen[0]:
        pipeline, call = calling_pipeline(scheduler)
        scheduler.loop.seen = call, run_breaks(pipeline, call)
    negated = bool(scheduler.config.get("invert_sigmas")) or (
        options.get("per_token_timesteps") is not None
    )
    return Held(v.detach().clone(), x.detach().clone(), options, negated)


def scheduler_for(pipe: Any, loop: Loop) -> Any:
    """A scheduler like the pipeline's own, without a plan, for one run."""
    plain = plain_scheduler(pipe)
    scheduler = driven_scheduler(plain.__class__).from_config(plain.config)
    if hasattr(plain, "_shift"):  # set_shift changes it without the configuration
        scheduler._shift = plain._shift
    scheduler.loop = loop
    return scheduler


def pipeline_with(pipe: Any, scheduler: Any) -> Any:
    """The pipeline object again, with the same modules, another scheduler and no progress bar."""
    copied = copy.copy(pipe)
    copied.scheduler = scheduler
    shown = getattr(pipe, "_progress_bar_config", {})
    copied._progress_bar_config = {**shown, "disable": True}
    return copied


# --- the thread -------------------------------------------------------------------------------


def run_call(pipe: Any, call: dict[str, Any], loop: Loop, settings: list[Any]) -> None:
    """The thread's work: the pipeline's call, and word of how it ended."""
    try:
        with ExitStack() as stack:
            for setting in settings:
                stack.enter_context(setting)
            try:
                output = _counted_by(loop, type(pipe).__call__)(pipe, **call)
            except BaseException:
                pipe.maybe_free_model_hooks()  # the call itself does so only where it succeeds
                raise
        loop.replies.put(Returned(output))
    except Abandoned:
        pass
    except BaseException as error:
        loop.replies.put(Failed(error))


def _counted_by(loop: Loop, function: Any) -> Callable[..., Any]:
    """The same code, where `enumerate` means the loop's; the function itself stays as it is."""
    plain = inspect.unwrap(function)
    names = {**plain.__globals__, "enumerate": loop.enumerate}
    counted = types.FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    counted.__kwdefaults__ = plain.__kwdefaults__
    return counted


def thread_settings() -> list[Any]:
    """What PyTorch keeps for each thread, as contexts that bring it from here to another one."""
    inference = torch.is_inference_mode_enabled()
    settings: list[Any] = [torch.inference_mode() if inference else torch.no_grad()]
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
