"""The samples of a fit: what a fit asks of them, and those of a velocity function."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacache.errors import HostError, PlanError
from tacache.fitting.integrators import EulerIntegrator, Integrator
from tacache.fitting.latents import Latents
from tacache.grid import as_times, divided
from tacache.plan import Plan
from tacache.stepper import sample
from tacache.velocity import Condition, Velocity, batches, check_velocity

Value = TypeVar("Value")


class FitSamples(Protocol):
    """Samples a fit can evaluate: of a velocity function, or held calls of a pipeline.

    `noise` holds those of this process, (samples, ...); `numbers` are their numbers among all.
    """

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    noise: Tensor
    numbers: Sequence[int]
    total: int
    together: bool  # a part cannot be evaluated alone
    job: str  # what the runs depend on beside noise and times: kept files name it
    latents: Latents  # of a joint model, whose states hold them one behind the other; else none

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """Return the velocities of these samples (positions in `noise`) at states x and a step."""

    def integrator(self, chosen: Sequence[int]) -> Integrator:
        """Return what moves the chosen samples (positions in `noise`) on from step 0."""

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Return everyone's values by the samples' numbers."""

    def on_steps(self, steps: int) -> AbstractContextManager["FitSamples"]:
        """Return the same samples from the same noise on a grid of another number of steps."""

    def on_levels(self, times: tuple[float, ...]) -> AbstractContextManager["FitSamples"]:
        """Return the same samples from the same noise on these noise levels, by Euler's steps."""


class FunctionSamples:
    """A velocity function's samples; without a condition it always gets the whole batch."""

    latents: Latents = ()

    def __init__(
        self,
        velocity: Velocity,
        noise: Tensor,
        times: Iterable[float],
        condition: Condition | None = None,
        batch_size: int | None = None,
    ) -> None:
        next(batches(noise, condition, batch_size))  # refuse before any work
        self.velocity, self.noise, self.times = velocity, noise, as_times(times)
        self.condition, self.batch_size = condition, batch_size
        self.breaks: tuple[float, ...] = ()
        self.numbers: Sequence[int] = range(len(noise))
        self.total = len(noise)
        self.together, self.job = condition is None, ""

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """Call the function once for each batch."""
        picked = {name: _picked(values, chosen) for name, values in (self.condition or {}).items()}
        velocities = torch.cat(
            [
                check_velocity(
                    self.velocity(batch.noise, self.times[step], **batch.condition), batch.noise
                ).clone()
                for batch in batches(x, picked, self.batch_size)
            ]
        )
        for s, k in enumerate(chosen):
            check_finite(velocities[s], step, f"sample {k}")
        return velocities

    def ends_by(self, plan: Plan, chosen: Sequence[int]) -> Tensor:
        """Return where the chosen samples end that follow a plan."""
        numbers = list(range(self.total)) if self.together else list(chosen)
        picked = {name: _picked(values, numbers) for name, values in (self.condition or {}).items()}
        parts = batches(self.noise[numbers], picked, self.batch_size)
        ends = [sample(self.velocity, part.noise, plan, condition=part.condition) for part in parts]
        return torch.cat(ends)[[numbers.index(k) for k in chosen]]

    def integrator(self, chosen: Sequence[int]) -> Integrator:
        """Return Euler's steps, which is all that a velocity function has."""
        return EulerIntegrator(self.times)

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Return the values as they are: all samples are in this process."""
        return dict(mine)

    def divided_into(self, steps: int) -> tuple[float, ...]:
        """Return the grid with every step divided, or with every so many of its levels."""
        now = len(self.times) - 1
        if max(steps, now) % min(steps, now):
            raise PlanError(
                f"a grid of {now} steps is divided into a multiple of them, not into {steps}: "
                f"give reference_steps={max(2, round(steps / now)) * now}"
            )
        return divided(self.times, steps // now) if steps > now else self.times[:: now // steps]

    @contextmanager
    def on_steps(self, steps: int) -> Iterator["FunctionSamples"]:
        """Open the same samples on a grid of so many steps."""
        with self.on_levels(self.divided_into(steps)) as runs:
            yield runs

    @contextmanager
    def on_levels(self, times: tuple[float, ...]) -> Iterator["FunctionSamples"]:
        """Open the same samples on any noise levels."""
        runs = FunctionSamples(self.velocity, self.noise, times, self.condition, self.batch_size)
        runs.breaks = self.breaks
        yield runs


def check_finite(v: Tensor, step: int, sample: str) -> None:
    """Raise with the sample's name where a velocity is not finite."""
    if not bool(torch.isfinite(v).all()):
        raise HostError(f"{sample}: the velocity at step {step} is infinite or not a number")


def _picked(values: object, chosen: Sequence[int]) -> object:
    if isinstance(values, Tensor | np.ndarray):
        return values[list(chosen)]
    return [values[k] for k in chosen]  # type: ignore[index]
