"""One call of a pipeline, timed step by step without making the device wait."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from benchmarks.fullsize.models import Built
from tacache.diffusers.flow import run_times


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
        return torch.cuda.memory_allocated() if self.is_cuda else 0

    def peak(self) -> int:
        """The most that was allocated since the call began."""
        return torch.cuda.max_memory_allocated() if self.is_cuda else 0

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
    held: int = 0
    latent: torch.Tensor | None = None


@dataclass
class Timed:
    """Seconds of one call, and what it took in memory while it denoised."""

    total: float
    loop: float
    iterations: list[float]
    steps: list[float]  # of the scheduler's step alone
    peak: int
    held: int
    latent: torch.Tensor

    @property
    def rest(self) -> float:
        """Seconds outside the denoising loop: mostly the decoder's."""
        return self.total - self.loop


def timed_run(
    built: Built,
    clock: Clock,
    steps: int,
    *,
    output: str = "latent",
    position: Position | None = None,
) -> Timed:
    """Call the pipeline once, with its loop, its iterations and its scheduler's steps timed."""
    position, marks = position or Position(), Marks()
    position.step = 0

    def ended(pipe: Any, i: int, t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        marks.iterations.append(clock.mark())
        marks.peak, marks.held = clock.peak(), max(marks.held, clock.allocated())
        marks.latent, position.step = tensors["latents"], i + 1
        return {}

    clock.settle()
    if clock.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    with _marked(built.pipe, clock, marks):
        start = clock.mark()
        built.pipe(
            **built.call,
            num_inference_steps=steps,
            generator=torch.Generator(clock.device).manual_seed(0),
            output_type=output,
            callback_on_step_end=ended,
        )
        end = clock.mark()
    clock.settle()
    return _read(clock, marks, start, end)


def _read(clock: Clock, marks: Marks, start: Any, end: Any) -> Timed:
    assert marks.latent is not None
    ends = [marks.start, *marks.iterations]
    return Timed(
        total=clock.between(start, end),
        loop=clock.between(ends[0], ends[-1]),
        iterations=[clock.between(a, b) for a, b in pairwise(ends)],
        steps=[clock.between(a, b) for a, b in marks.steps],
        peak=marks.peak,
        held=marks.held,
        latent=marks.latent,
    )


@contextmanager
def _marked(pipe: Any, clock: Clock, marks: Marks) -> Iterator[None]:
    """Marks where the pipeline opens its progress bar, and around its scheduler's step."""

    def opened(*args: Any, **kwargs: Any) -> Any:
        marks.start = clock.mark()
        return type(pipe).progress_bar(pipe, *args, **kwargs)

    def around(step: Any, *args: Any, **kwargs: Any) -> Any:
        before = clock.mark()
        result = step(*args, **kwargs)
        marks.steps.append((before, clock.mark()))
        return result

    pipe.progress_bar = opened
    with wrapped_step(pipe.scheduler, around):
        try:
            yield
        finally:
            del pipe.progress_bar


@contextmanager
def wrapped_step(scheduler: Any, around: Callable[..., Any]) -> Iterator[None]:
    """The scheduler with `around(step, ...)` in the place of its step, its signature kept."""
    step = scheduler.step

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(step, *args, **kwargs)

    scheduler.step = wrapper
    try:
        yield
    finally:
        del scheduler.step


class Probe(NamedTuple):
    """What the first steps of a plain run show."""

    times: tuple[float, ...]
    step: float  # seconds of the scheduler's step, its first left out
    latent: torch.Tensor


def probe(built: Built, clock: Clock, steps: int, evaluations: int = 3) -> Probe:
    """The noise levels of a run of `steps`, by a call that is stopped after its first ones."""
    marks = Marks()

    def stop(pipe: Any, i: int, t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        marks.latent = tensors["latents"]
        pipe._interrupt = i + 1 >= evaluations
        return {}

    with _marked(built.pipe, clock, marks):
        built.pipe(
            **built.call,
            num_inference_steps=steps,
            generator=torch.Generator(clock.device).manual_seed(0),
            output_type="latent",
            callback_on_step_end=stop,
        )
    clock.settle()
    assert marks.latent is not None
    taken = [clock.between(a, b) for a, b in marks.steps]
    return Probe(run_times(built.pipe.scheduler), statistics.median(taken[1:]), marks.latent)


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": scale * statistics.median(values),
        "min": scale * min(values),
        "max": scale * max(values),
    }
