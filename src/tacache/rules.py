"""How a skipped velocity is rebuilt from evaluated ones, as pure functions.

`init_direction`, `realign` and `advance` are the paper's TASU, equation by equation. They never
leave the plane of two vectors, so the same recursion also runs on coordinates in it (`Arc`): after
one preparation per interval a skipped step is a single weighted sum of two stored tensors. On a
device what it costs is launches: `tests/test_stepping_cost.py` counts them.
"""

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
    """A TASU interval as a path in the plane of the last two evaluated velocities.

    The direction p (eq. 11) is orthogonal to the earlier velocity, `base`. With `p` scaled to its
    length, every reconstruction is along * base + across * p, and eq. 12 is that vector turned by a
    right angle towards p: (-across, along) times the sign of `along`. So eq. 13 only changes the
    two numbers of each sample. A sample without a direction has turns = across = 0: it only grows.
    """

    base: Tensor
    p: Tensor
    along: Tensor
    across: Tensor
    turns: Tensor

    def advance(self, growth: float, turn: float) -> "Arc":
        """The next point of the recursion (eq. 12-13), without touching the tensors base and p."""
        grown, side = growth * self.across, self.along.sign()
        return self._replace(
            along=torch.addcmul(growth * self.along, side, self.across, value=-turn),
            across=grown.addcmul_(self.turns, self.along.abs(), value=turn),
        )

    def velocity(self) -> Tensor:
        """The reconstructed velocity at the current point, in working precision."""
        return (self.along * self.base).addcmul_(self.across, self.p)


def start_arc(v: Tensor, v_previous: Tensor | None) -> Arc:
    """The arc that leaves anchor velocity `v`; without an earlier velocity it has no direction.

    v is v_previous, `along` times, and p; what follows are numbers of |v_previous|. On a device
    every line is a launch or two, so there are few of them.
    """
    dtype = working_dtype(v)
    if v_previous is None:
        one = torch.ones(len(v), *[1] * (v.ndim - 1), dtype=dtype, device=v.device)
        zero = torch.zeros_like(one)
        return Arc(v, zero, one, zero, zero)
    limits = torch.finfo(dtype)
    earlier = v_previous.to(dtype)
    square = dot(earlier, earlier).clamp_min_(limits.tiny)  # of the zero vector: anything but zero
    along = dot(earlier, v).div_(square)
    p = torch.addcmul(v, along, earlier, value=-1)
    across = norm(p).div_(square.sqrt_()).clamp_min_(limits.eps**2)
    p.div_(across)
    # As in `_is_meant`, |v| being |along| times |v_previous| where p is rounding.
    meant = torch.add(across, along.abs(), alpha=-8 * limits.eps) > 8 * limits.eps
    across.mul_(meant)
    return Arc(v_previous, p, along, across, across.sign())
