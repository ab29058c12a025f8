"""How a skipped velocity is rebuilt from evaluated ones, as pure functions.

`init_direction`, `realign` and `advance` are the paper's TASU, equation by equation. They never
leave the plane of two vectors, so the same recursion is also a turn by known angles (`Arc`): after
one preparation per interval a skipped step is a single weighted sum of two stored tensors.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.decomposition import divide, dot, norm, orthogonal_part, working_dtype

# rule -> which of the profile's two indicators it uses (magnitude, direction)
PROFILE_RULES = {
    "tasu": (True, True),
    "magnitude": (True, False),
    "direction": (False, True),
    "reuse": (False, False),
}
RULES = (*PROFILE_RULES, "fitted")


def init_direction(v: Tensor, v_previous: Tensor) -> Tensor:
    """p, the part of the last change of velocity orthogonal to the earlier velocity (eq. 11)."""
    change = v.to(working_dtype(v)) - v_previous
    p = orthogonal_part(change, along=v_previous)
    return p.mul_(_is_meant(p, norm(v) + norm(v_previous)))


def realign(p: Tensor, v: Tensor) -> Tensor:
    """The unit vector of p's part orthogonal to v (eq. 12), zero where there is none."""
    orthogonal = orthogonal_part(p, along=v)
    return orthogonal.mul_(divide(_is_meant(orthogonal, norm(p)), norm(orthogonal)))


def advance(v: Tensor, u: Tensor, growth: float, turn: float) -> Tensor:
    """TASU (eq. 13): growth * v + turn * |v| * u, where growth = exp(k dt) and turn = d."""
    return growth * v + turn * norm(v) * u


def _is_meant(residual: Tensor, scale: Tensor) -> Tensor:
    """1 where a residual is more than the rounding of the vectors it was left by, else 0.

    What an orthogonalisation leaves of parallel vectors has a length but no meaning.
    """
    rounding = 8 * torch.finfo(residual.dtype).eps * scale
    return (norm(residual) > rounding).to(residual.dtype)


def weighted_sum(velocities: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The average velocity of a fitted interval, sum_i w_i v_i, newest anchor first."""
    total = weights[0] * velocities[0].to(working_dtype(velocities[0]))
    for v, weight in zip(velocities[1:], weights[1:], strict=True):
        total.add_(v, alpha=weight)
    return total


class Arc(NamedTuple):
    """A TASU interval as an arc in the plane of its anchor velocity `v` and its direction p.

    With w the part of p orthogonal to v, scaled to |v|, every reconstruction is
    length * (cos(angle) v + sin(angle) w). In this plane eq. 12 is the unit normal of the current
    velocity on p's side, so eq. 13 turns by atan(d / exp(k dt)) towards p, which stands at
    `limit`, and stretches by hypot(exp(k dt), d). A sample without a direction has w = 0 and
    angle = limit: it never turns, and only exp(k dt) remains.
    """

    v: Tensor
    w: Tensor
    length: Tensor
    angle: Tensor
    limit: Tensor

    def advance(self, growth: float, turn: float) -> "Arc":
        """The next point of the recursion (eq. 12-13), without touching the tensors v and w."""
        side = torch.sign(self.limit - self.angle)
        stretch = growth + side.abs() * (math.hypot(growth, turn) - growth)
        return self._replace(
            length=self.length * stretch,
            angle=self.angle + side * math.atan2(turn, growth),
        )

    def velocity(self) -> Tensor:
        """The reconstructed velocity at the current point, in working precision."""
        along = self.length * torch.cos(self.angle)
        across = self.length * torch.sin(self.angle)
        return (along * self.v).addcmul_(across, self.w)


def start_arc(v: Tensor, v_previous: Tensor | None) -> Arc:
    """The arc that leaves anchor velocity `v`; without an earlier velocity it has no direction."""
    size = norm(v)
    one, zero = torch.ones_like(size), torch.zeros_like(size)
    if v_previous is None:
        return Arc(v, torch.zeros_like(v, dtype=size.dtype), one, zero, zero)
    p = init_direction(v, v_previous)
    u = realign(p, v)
    limit = torch.atan2(dot(p, u), divide(dot(p, v), size))
    return Arc(v, u.mul_(size), one, zero, torch.where(norm(u) > 0, limit, zero))
