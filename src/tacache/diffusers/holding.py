"""Held calls of a pipeline as a fit sees them, shared out between processes."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import diffusers
import numpy as np
import torch
from torch import Tensor

from tacache.diffusers.driving import DrivenRun, drive
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import Run, run_arguments
from tacache.diffusers.solving import EulerSteps, SolverWalk
from tacache.errors import HostError, named
from tacache.fitting.samples import check_finite
from tacache.fitting.walking import Walk
from tacache.work.processes import Processes, Together

Value = TypeVar("Value")


class Failure(NamedTuple):
    """What a process sends in the place of its values when it cannot go on."""

    reason: str


class OtherProcessError(HostError):
    """Another process has failed and said so."""


class Job(NamedTuple):
    """A sample of a fit: its prompt and seed, and what the pipeline is called with beside."""

    run: Run
    call: dict[str, Any]

    def __str__(self) -> str:
        return str(self.run)

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything the pipeline is called with; a new generator each time."""
        return run_arguments(self.run, self.call)


class Grid(NamedTuple):
    """What all calls of a fit have in common."""

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    shape: tuple[int, ...]


class PipelineRuns:
    """Held calls of one pipeline, this process's share of them, as a fit sees them."""

    together = False

    def __init__(
        self,
        held: Sequence[DrivenRun],
        jobs: Sequence[Job],
        numbers: Sequence[int],
        group: Together,
        is_euler: bool,
    ) -> None:
        self.held, self.jobs, self.numbers = held, jobs, numbers
        self._group, self._is_euler = group, is_euler
        self.total, self.job = len(jobs), ""
        self._check_alike()
        self.times, self.breaks = held[0].times, held[0].breaks
        self.noise = torch.stack([run.noise for run in held])

    def walk(self, chosen: Sequence[int]) -> Walk:
        """By the pipeline's own solver; Euler's takes an interval in one step."""
        if self._is_euler:
            return EulerSteps(self.times)
        return SolverWalk([self.held[k].solver() for k in chosen], self.times)

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One evaluation of each chosen call, one after the other."""
        return torch.stack([self._one(k, x[s], step) for s, k in enumerate(chosen)])

    def _one(self, k: int, x: Tensor, step: int) -> Tensor:
        try:
            v = self.held[k].evaluate(x, step)
        except HostError as error:
            raise HostError(f"{self.jobs[self.numbers[k]]}: {error}") from error
        check_finite(v, step, str(self.jobs[self.numbers[k]]))
        if not torch.equal(self.held[k].state, x.to(self.held[k].state.dtype)):
            raise HostError(
                "the pipeline edits its latents between steps (inpainting): a plan cannot be "
                "fitted to it; calibrate it and make one by a rule"
            )
        return v

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Everyone's values by the samples' numbers; if a process failed, its reason."""
        values: dict[int, Value] = {}
        for part in self._group.exchange(dict(mine)):
            if isinstance(part, Failure):
                raise OtherProcessError(f"another process failed: {part.reason}")
            values |= part
        return values

    def finished(self, results: Tensor, held_out: int) -> dict[int, Tensor]:
        """The pictures the pipeline makes of its held-out samples' full-step results."""
        pictures: dict[int, Tensor] = {}
        for k, i in enumerate(self.numbers):
            if i < held_out and self.jobs[i].call.get("output_type") != "latent":
                with named(self.jobs[i]):
                    pictures[i] = pixels_of(self.held[k].finish(results[k].to(self.noise.device)))
        return pictures

    def _check_alike(self) -> None:
        """All calls, those of other processes too, walk the same noise levels in one size."""
        held = zip(self.numbers, self.held, strict=True)
        found = self.gathered({i: Grid(run.times, run.breaks, run.noise.shape) for i, run in held})
        first = found[0]
        for i, grid in found.items():
            if grid.times != first.times:
                raise HostError(
                    f"{self.jobs[i]} has other noise levels than {self.jobs[0]} (a dynamic shift "
                    "follows the size): fit prompts of one size and one number of steps together"
                )
            if grid.shape != first.shape:
                raise HostError(
                    f"{self.jobs[i]} has latents of shape {tuple(grid.shape)}, {self.jobs[0]} of "
                    f"{tuple(first.shape)}: fit one size at a time; guidance may be mixed"
                )
            if grid.breaks != first.breaks:
                raise HostError(
                    f"{self.jobs[i]} changes its expert or guidance at noise levels {grid.breaks}, "
                    f"{self.jobs[0]} at {first.breaks}: fit them apart"
                )


@contextmanager
def hold(pipe: Any, jobs: Sequence[Job], processes: Processes) -> Iterator[PipelineRuns]:
    """The calls of this process, held at their first step; the others are told of a failure."""
    group, scheduler = Together(processes.count), plain_scheduler(pipe)
    numbers = list(range(processes.rank, len(jobs), processes.count))
    try:
        if not numbers:
            raise HostError(
                f"{len(jobs)} prompts are too few for {processes.count} processes: give each one"
            )
        with ExitStack() as stack:
            held = [stack.enter_context(_driven(pipe, jobs[i])) for i in numbers]
            is_euler = isinstance(scheduler, diffusers.FlowMatchEulerDiscreteScheduler)
            yield PipelineRuns(held, jobs, numbers, group, is_euler)
    except OtherProcessError:
        raise
    except Exception as error:
        group.exchange(Failure(f"process {processes.rank}: {error}"))
        raise


@contextmanager
def _driven(pipe: Any, job: Job) -> Iterator[DrivenRun]:
    with ExitStack() as stack:
        try:
            run = stack.enter_context(drive(pipe, **with_pixels(pipe, job.arguments)))
        except HostError as error:
            raise HostError(f"{job}: {error}") from error
        yield run


def with_pixels(pipe: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The call with numbers as its output, where the pipeline lets one ask for that."""
    accepts = "output_type" in inspect.signature(type(pipe).__call__).parameters
    chosen = {"output_type": "np"} if accepts else {}
    return {**arguments, **chosen}


def pixels_of(output: Any) -> Tensor:
    """Pictures or frames of a pipeline's output, (samples, ...)."""
    return torch.from_numpy(np.asarray(output[0], dtype=np.float32))
