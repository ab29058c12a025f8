"""How a skipped velocity is rebuilt from evaluated ones, as pure functions.

`init_direction`, `realign` and `advance` are the paper's TASU, equation by equation. They never
leave the plane of two vectors, so the same recursion also runs on coordinates in it (`Arc`): after
one preparation per interval a skipped step is a single weighted sum of two stored tensors. On a
device a step costs as much as it launches: `tests/test_stepping_cost.py` counts the launches.

A fitted plan carries one memory from anchor to anchor in the place of past velocities. Into
interval i goes m_i = v_{i-1} + r_i m_{i-1}, and its average velocity is a_i v_i + b_i m_i. A row of
weights is (a, b, r) or the beginning of it: without r the memory is v_{i-1}, and without b it is
not used.
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
Rows = Sequence[Sequence[float]]  # the weights of a fitted plan, one row an interval


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


def carry(v: Tensor, memory: Tensor | None = None, *, rate: float) -> Tensor:
    """What is carried into the next interval, v + rate * memory: a new tensor of v's dtype."""
    if memory is None or rate == 0:
        return v.clone()
    return torch.add(v.to(working_dtype(v)), memory, alpha=rate).to(v.dtype)


def memory_rate(row: Sequence[float]) -> float:
    """The rate r in a row (a, b, r) of weights with a carried memory; shorter ones have none."""
    return row[2] if len(row) > 2 else 0.0


def memory_sums(rows: Rows) -> list[float]:
    """What each interval's memory adds up to of all velocities before it: m_i of equal ones.

    A memory that begins later lacks a part of this sum, which velocities, all nearly parallel,
    need to be right: the oldest one it holds is multiplied by what the memory there should hold.
    """
    sums: list[float] = []
    for row in rows:
        sums.append(1 + memory_rate(row) * sums[-1] if memory_rate(row) else 1.0)
    return sums


def average_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """The average velocity of interval i, from that of its anchor and what is carried into it."""
    row, v = weights[i][:2], velocities[i]
    basis = [v] if len(row) == 1 else [v, memory_of(velocities, weights, i)]
    return weighted_sum(basis, row).to(v.dtype)


def memory_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """What is carried into interval i, where two velocities are known: v_{i-1} + r_i m_{i-1}."""
    first = i
    while memory_rate(weights[first]):  # the first rows of a part have no rate
        first -= 1
    memory = velocities[first - 1]
    for j in range(first + 1, i + 1):
        memory = carry(velocities[j - 1], memory, rate=memory_rate(weights[j]))
    return memory


def basis_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> list[Tensor]:
    """What an interval's average is a sum of: the last two velocities, and the memory of others."""
    memory = [memory_of(velocities, weights, i - 1)] if i > 1 else []
    return [*velocities[i::-1][:2], *memory]
