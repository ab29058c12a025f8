"""Integrators: how states move during a fit, by Euler or by a host's own solver with its memory.

Both are affine in the velocity of an interval: the state at its end is a sum of what each velocity
contributes. That is all that least squares need.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tacache.velocity import adams_bashforth, euler


class Moves(Protocol):
    """Some samples that move through the steps, from noise on."""

    remembers: bool  # where a step leads depends on those before it

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Return the states at step m that one velocity leads to from those at step n."""


class Integrator(Moves, Protocol):
    """The same, where least squares can ask what each velocity of an interval contributes."""

    def columns(
        self, x: Tensor, basis: Sequence[Tensor], wanted: Tensor, n: int, m: int
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Return what each velocity of a basis moves per unit of time, and what leads to `wanted`.

        Weights whose sum of columns meets the target are those whose sum of velocities leads there.
        """


class EulerIntegrator:
    """One Euler step an interval, which is all of its steps together."""

    remembers = False

    def __init__(self, times: Sequence[float]) -> None:
        self.times = times

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Make one step; v is the velocity at its start, and is kept for the next one."""
        return euler(x, v, self.times[n], self.times[m])

    def columns(
        self, x: Tensor, basis: Sequence[Tensor], wanted: Tensor, n: int, m: int
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Return the velocities themselves, and the one that leads there, in float32 at least."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return basis, (x.to(dtype) - wanted.to(dtype)) / (self.times[n] - self.times[m])


class AdamsBashforthIntegrator:
    """Steps by Adams-Bashforth of order 2; the first one, and the first of a part, is Euler's."""

    remembers = True

    def __init__(self, times: Sequence[float], parts: Sequence[int] = ()) -> None:
        self.times, self._starts = times, {0, *parts}
        self._before: Tensor | None = None

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Return one step; v is the velocity at its start, and is kept for the next one."""
        times, average = self.times, v
        if self._before is not None and n not in self._starts:
            ratio = (times[n] - times[m]) / (times[n - 1] - times[n])
            average = adams_bashforth(v, self._before, ratio)
        self._before = v
        return euler(x, average, times[n], times[m])
