"""One call of a pipeline, timed step by step without making the device wait."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import torch
from benchmarks.fullsize.models import Built

from tacache.diffusers.joint import further_schedulers, latent_names
from tacache.diffusers.stepping import run_times
from tacache.errors import HostError

Number = TypeVar("Number", int, float)


class Clock:
    """Marks in time: CUDA events on a GPU, the processor's clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"

    def mark(self) -> Any:
        """Now, in the order of the device's work."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to the other; on a GPU `settle` comes first."""
        return float(start.elapsed_time(end) / 1000 if self.is_cuda else end - start)

    def settle(self) -> None:
        """Wait until all work is done."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def allocated(self) -> int:
        """Bytes of tensors alive on the device, zero where nobody counts them."""
        return self._bytes("current")

    def forget_peak(self) -> None:
        """Begin to look for the peak anew."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """The most that was alive at once since the last peak was forgotten."""
        return self._bytes("peak")

    def _bytes(self, which: str) -> int:
        """As asked for: what the allocator hands out is larger, by what it had at hand."""
        if not self.is_cuda:
            return 0
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])

    def per_call(
        self, call: Callable[[], object], calls: int = 100, repeats: int = 7
    ) -> list[float]:
        """Seconds a call, of `calls` in a row, warm; one number a repeat."""
        for _ in range(5):
            call()
        return [self._row(call, calls) / calls for _ in range(repeats)]

    def _row(self, call: Callable[[], object], calls: int) -> float:
        self.settle()
        start = self.mark()
        for _ in range(calls):
            call()
        end = self.mark()
        self.settle()
        return self.between(start, end)


@dataclass
class Position:
    """The step of the run that is under way, for caches that are told when to evaluate."""

    step: int = 0


@dataclass
class Marks:
    """What a call leaves behind: marks in time, and bytes."""

    start: Any = None
    iterations: list[Any] = field(default_factory=list)
    steps: list[tuple[Any, Any]] = field(default_factory=list)
    peak: int = 0
    # What each scheduler made last, in the order in which they step: a joint model has several.
    latents: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class Timed:
    """Seconds of one call, and what it took in memory while it denoised."""

    total: float
    loop: float
    iterations: list[float]
    steps: list[float]  # of an iteration's steps of the scheduler alone, of all latents together
    peak: int
    latents: list[torch.Tensor]  # shapes and dtypes alone: a run holds no memory of the next one's
    is_finite: bool
    is_decoded: bool

    @property
    def rest(self) -> float:
        """Seconds outside the denoising loop: mostly the decoder's."""
        return self.total - self.loop


def timed_run(
    built: Built,
    clock: Clock,
    steps: int,
    *,
    decode: bool = False,
    position: Position | None = None,
    stop_after: int | None = None,
) -> Timed:
    """Call the pipeline once, with its loop, its iterations and its scheduler's steps timed.

    Its loop is left after `stop_after` iterations where that is given. Memory is read when the loop
    is over, since reading it takes as long as launching a dozen kernels.
    """
    position, marks = position or Position(), Marks()
    position.step = 0

    def ended(pipe: Any, i: int, t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        marks.iterations.append(clock.mark())
        position.step = i + 1
        if i + 1 in (stop_after, pipe.num_timesteps):
            marks.peak = clock.peak()
            pipe._interrupt = i + 1 == stop_after
        return {}

    clock.settle()
    with _marked(built.pipe, clock, marks):
        start = clock.mark()
        built.pipe(
            **built.call,
            num_inference_steps=steps,
            generator=torch.Generator(clock.device).manual_seed(0),
            output_type="pt" if decode else "latent",
            callback_on_step_end=ended,
        )
        end = clock.mark()
    clock.settle()
    return _read(clock, marks, start, end, decode)


def _read(clock: Clock, marks: Marks, start: Any, end: Any, decoded: bool) -> Timed:
    ends = [marks.start, *marks.iterations]
    latents = list(marks.latents.values())
    stepped = [clock.between(a, b) for a, b in marks.steps]
    return Timed(
        total=clock.between(start, end),
        loop=clock.between(ends[0], ends[-1]),
        iterations=[clock.between(a, b) for a, b in pairwise(ends)],
        steps=by_iteration(stepped, len(marks.iterations)),
        peak=marks.peak,
        latents=[torch.empty_like(x, device="meta") for x in latents],
        is_finite=all(bool(x.isfinite().all()) for x in latents),
        is_decoded=decoded,
    )


def by_iteration(stepped: Sequence[Number], iterations: int) -> list[Number]:
    """The sum over each iteration, which steps every latent once."""
    latents, rest = divmod(len(stepped), iterations)
    if rest:
        raise HostError(f"{len(stepped)} steps of schedulers in {iterations} iterations")
    return [sum(stepped[n * latents : (n + 1) * latents]) for n in range(iterations)]


@contextmanager
def _marked(pipe: Any, clock: Clock, marks: Marks) -> Iterator[None]:
    """Marks where the pipeline opens its progress bar, and around its schedulers' steps."""

    def opened(*args: Any, **kwargs: Any) -> Any:
        clock.forget_peak()  # what reads the prompt before the loop may take more than the loop
        marks.start = clock.mark()
        return type(pipe).progress_bar(pipe, *args, **kwargs)

    def around(scheduler: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        before = clock.mark()
        result = step(*args, **kwargs)
        marks.steps.append((before, clock.mark()))
        marks.latents[id(scheduler)] = result[0]
        return result

    pipe.progress_bar = opened
    with wrapped_step(pipe.scheduler, around):
        try:
            yield
        finally:
            del pipe.progress_bar


@contextmanager
def wrapped_step(scheduler: Any, around: Callable[..., Any]) -> Iterator[None]:
    """The scheduler with `around(scheduler, step, ...)` in the place of its step.

    Its class is changed, since a joint pipeline steps its further latents by copies of it.
    """
    step = type(scheduler).step

    @functools.wraps(step)  # pipelines read the signature
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, functools.partial(step, self), *args, **kwargs)

    with mock.patch.object(type(scheduler), "step", wrapper):
        yield


class Probe(NamedTuple):
    """What the first steps of a plain run show."""

    times: tuple[float, ...]
    step: float  # seconds of an iteration's steps of the scheduler, the first left out
    latents: list[torch.Tensor]  # shapes and dtypes alone
    further: dict[str, tuple[float, ...]]  # the noise levels of a joint model's other latents


def probe(built: Built, clock: Clock, steps: int, evaluations: int = 4) -> Probe:
    """The noise levels of a run of `steps`, by a call that is stopped after its first ones."""
    run = timed_run(built, clock, steps, stop_after=evaluations)
    pipe, schedulers = built.pipe, further_schedulers(built.pipe)
    further = {n: run_times(schedulers.get(n, pipe.scheduler)) for n in latent_names(pipe)}
    return Probe(run_times(pipe.scheduler), statistics.median(run.steps[1:]), run.latents, further)


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": scale * statistics.median(values),
        "min": scale * min(values),
        "max": scale * max(values),
    }
