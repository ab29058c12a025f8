"""Joint models in a fit: the state of a run holds all of its latents, one behind the other.

Each has its own grid, weights and distance to its full run. Their velocities come from the same
evaluations, so that all of them advance together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.fitting.integrators import EulerIntegrator
from tacache.stepper import Rows, average_of, basis_of
from tacache.tasu import relative_distance

Times = tuple[float, ...]
Index = tuple[Any, ...]
WHOLE: Index = (...,)  # of a state that is one latent


class Latent(NamedTuple):
    """A latent of a joint model: its name, its grid, and where it lies in a run's flat state."""

    name: str | None  # None for the first
    times: Times
    breaks: Times
    shape: tuple[int, ...]  # as its scheduler steps it
    start: int
    stop: int

    @property
    def place(self) -> Index:
        """Return the index of this latent in states with anything before their last dimension."""
        return (..., slice(self.start, self.stop))


Latents = tuple[Latent, ...]  # none where the state is one latent


def indices(latents: Latents) -> list[Index]:
    """Return the index of each latent in a state."""
    return [latent.place for latent in latents] or [WHOLE]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the state of these latents."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


def basis(
    latents: Latents, velocities: Sequence[Tensor], tables: Sequence[Rows], i: int
) -> list[Tensor]:
    """Return what the average of interval i is a sum of, in each latent by its own weights."""
    each = (
        basis_of([v[index] for v in velocities], rows, i)
        for index, rows in zip(indices(latents), tables, strict=True)
    )
    return [joined(parts) for parts in zip(*each, strict=True)]


def average(
    latents: Latents, velocities: Sequence[Tensor], tables: Sequence[Rows], i: int
) -> Tensor:
    """Return the average velocity of interval i, of each latent by its own weights."""
    return joined(
        [
            average_of([v[index] for v in velocities], rows, i)
            for index, rows in zip(indices(latents), tables, strict=True)
        ]
    )


def distance(latents: Latents, x: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative distance of each sample, of several latents their geometric mean."""
    if not latents:
        return relative_distance(x, wanted)
    each = [relative_distance(x[latent.place], wanted[latent.place]) for latent in latents]
    return torch.stack(each).clamp(min=1e-30).log().mean(dim=0).exp()


def rate(latents: Latents, times: Times, states: Tensor, n: int) -> Tensor:
    """Return the velocity that leads from step n of recorded states to the next."""
    grids = [latent.times for latent in latents] or [times]
    moved = states[n] - states[n + 1]
    spans = [grid[n] - grid[n + 1] for grid in grids]
    return joined([moved[i] / span for i, span in zip(indices(latents), spans, strict=True)])


class JointEuler:
    """Euler's steps of several latents (`tacache.fitting.integrators.Integrator`)."""

    remembers = False

    def __init__(self, latents: Latents, kind: type[EulerIntegrator] = EulerIntegrator) -> None:
        self._parts = [(latent.place, kind(latent.times)) for latent in latents]

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Make one step with each latent."""
        return joined([own.move(x[i], v[i], n, m) for i, own in self._parts])

    def columns(
        self, x: Tensor, basis: Sequence[Tensor], wanted: Tensor, n: int, m: int
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Return the velocities themselves, and those that lead there."""
        return basis, joined([own.columns(x[i], (), wanted[i], n, m)[1] for i, own in self._parts])
