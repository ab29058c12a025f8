"""How a skipped velocity is rebuilt from evaluated ones, as pure functions.

`init_direction`, `realign` and `advance` are the paper's TASU, equation by equation. They never
leave the plane of two vectors, so the same recursion also runs on coordinates in it (`Arc`): after
one preparation per interval a skipped step is a single weighted sum of two stored tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.decomposition import divide, norm, orthogonal_part, share, working_dtype

# rule -> which of the profile's two indicators it uses (magnitude, direction)
PROFILE_RULES = {
    "tasu": (True, True),
    "magnitude": (True, False),
    "direction": (False, True),
    "reuse": (False, False),
}
# rule -> whether its plans need magnitude and direction; `damped` has d cos(theta) as direction
RATES = {**PROFILE_RULES, "damped": (True, True)}
RULES = (*RATES, "fitted")


def init_direction(v: Tensor, v_previous: Tensor) -> Tensor:
    """p, the part of the last change of velocity orthogonal to the earlier velocity (eq. 11)."""
    p = orthogonal_part(v.to(working_dtype(v)) - v_previous, along=v_previous)
    return p.mul_(_is_meant(norm(p), norm(v) + norm(v_previous)))


def realign(p: Tensor, v: Tensor) -> Tensor:
    """The unit vector of p's part orthogonal to v (eq. 12), zero where there is none."""
    orthogonal = orthogonal_part(p, along=v)
    size = norm(orthogonal)
    return orthogonal.mul_(divide(_is_meant(size, norm(p)), size))


def advance(v: Tensor, u: Tensor, growth: float, turn: float) -> Tensor:
    """TASU (eq. 13): growth * v + turn * |v| * u, where growth = exp(k dt) and turn = d."""
    return growth * v + turn * norm(v) * u


def _is_meant(residual: Tensor, scale: Tensor) -> Tensor:
    """1 where a residual's norm is more than rounding of the vectors it was left by, else 0.

    What an orthogonalisation leaves of parallel vectors has a length but no meaning.
    """
    return (residual > 8 * torch.finfo(residual.dtype).eps * scale).to(residual.dtype)


def weighted_sum(velocities: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The average velocity of a fitted interval, sum_i w_i v_i, newest anchor first."""
    total = weights[0] * velocities[0].to(working_dtype(velocities[0]))
    for v, weight in zip(velocities[1:], weights[1:], strict=True):
        total.add_(v, alpha=weight)
    return total


class Arc(NamedTuple):
    """A TASU interval as a path in the plane of its anchor velocity `v` and its direction p.

    With w the part of p orthogonal to v, scaled to |v|, every reconstruction is along * v +
    across * w. Turned by a right angle it is -across * v + along * w, of the same norm; eq. 12 is
    that direction, or its opposite where p lies on the other side. So eq. 13 only changes the two
    numbers of each sample. A sample without a direction has p = 0 and no side: it only grows.
    """

    v: Tensor
    w: Tensor
    along: Tensor
    across: Tensor
    p_along: Tensor
    p_across: Tensor

    def advance(self, growth: float, turn: float) -> "Arc":
        """The next point of the recursion (eq. 12-13), without touching the tensors v and w."""
        side = torch.addcmul(self.along * self.p_across, self.across, self.p_along, value=-1).sign()
        return self._replace(
            along=torch.addcmul(growth * self.along, side, self.across, value=-turn),
            across=torch.addcmul(growth * self.across, side, self.along, value=turn),
        )

    def velocity(self) -> Tensor:
        """The reconstructed velocity at the current point, in working precision."""
        return (self.along * self.v).addcmul_(self.across, self.w)


def start_arc(v: Tensor, v_previous: Tensor | None) -> Arc:
    """The arc that leaves anchor velocity `v`; without an earlier velocity it has no direction."""
    size = norm(v)
    one, zero = torch.ones_like(size), torch.zeros_like(size)
    if v_previous is None:
        return Arc(v, torch.zeros_like(v, dtype=size.dtype), one, zero, zero, zero)
    p = init_direction(v, v_previous)
    p_along = share(p, along=v)
    w = torch.addcmul(p, p_along, v, value=-1)
    strength = norm(w)
    strength = strength * _is_meant(strength, norm(p))
    return Arc(v, w.mul_(divide(size, strength)), one, zero, p_along, divide(strength, size))
