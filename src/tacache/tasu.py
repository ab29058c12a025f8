"""TASU, the trajectory-aware skip-update, and POVD, the decomposition that it undoes.

POVD splits the change of velocity over a step into a part along it and a part across (eq. 2-5).
TASU goes the other way: it rebuilds a skipped velocity from evaluated ones (eq. 9-13).

It stands here twice. `init_direction`, `realign` and `advance` are eq. 11, 12 and 13 as the paper
writes them; diagnostics use them. They never leave the plane of two vectors, so sampling runs the
same recursion on coordinates in it: `start_arc`, `Arc.advance` and `Arc.velocity`. After one
preparation per interval a skipped step is then a single weighted sum of two stored tensors. On a
device a step costs as much as it launches: `tests/test_stepping_cost.py` counts the launches, and
`tests/test_tasu.py` holds both forms together.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# rule -> which of the profile's two indicators it uses (magnitude, direction)
PROFILE_RULES = {
    "tasu": (True, True),
    "magnitude": (True, False),
    "direction": (False, True),
    "reuse": (False, False),
}
# rule -> whether its plans need magnitude and direction; `damped` has d cos(theta) as direction
RATES = {**PROFILE_RULES, "damped": (True, True)}


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of arithmetic on `x`: float32, or float64 for float64 input."""
    return torch.promote_types(x.dtype, torch.float32)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each sample, shaped (samples, 1, ..., 1) to broadcast."""
    products = (a.to(working_dtype(a)) * b).reshape(len(a), -1).sum(dim=1)
    return products.reshape(-1, *[1] * (a.ndim - 1))


def norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample, shaped (samples, 1, ..., 1) to broadcast."""
    rows = x.reshape(len(x), math.prod(x.shape[1:]))  # also where a process has no sample
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=working_dtype(x))
    return norms.reshape(len(x), *[1] * (x.ndim - 1))


def relative_distance(x: Tensor, reference: Tensor) -> Tensor:
    """Return |x - reference| / |reference| of each sample, shaped (samples, 1, ..., 1).

    The arithmetic is done in float64. Where the reference is zero the result is infinite, or not a
    number if x is zero too.
    """
    precise = reference.to(precise_dtype(reference))
    return norm(x.to(precise) - precise) / norm(precise)


def precise_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of measurements: float64, or float32 on Apple's GPU."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide per-sample numbers, zero where the denominator is zero; without a host branch."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def share(change: Tensor, along: Tensor) -> Tensor:
    """Return <change, along> / |along|^2 of each sample: how much of `change` is along it."""
    return divide(dot(change, along), dot(along, along))


def orthogonal_part(change: Tensor, along: Tensor) -> Tensor:
    """Return what is left of `change` without its projection on `along` (eq. 3)."""
    return torch.addcmul(change, share(change, along), along, value=-1)


def indicators(v: Tensor, v_next: Tensor, length: float) -> tuple[list[float], list[float]]:
    """Measure k_n and d_n of each sample (eq. 2-4) from two neighbouring velocities.

    Each sample is reduced on its own in float64, so that its numbers do not depend on the batch it
    came in. A zero velocity gives nan or inf: magnitude and direction are not defined there.
    """
    precise = precise_dtype(v)
    magnitude, direction = [], []
    for sample, sample_next in zip(v, v_next, strict=True):
        v_n = sample.to(precise).reshape(1, -1)
        change = sample_next.to(precise).reshape(1, -1) - v_n
        magnitude.append(dot(change, v_n) / dot(v_n, v_n) / length)
        direction.append(norm(orthogonal_part(change, along=v_n)) / norm(v_n))
    return torch.cat(magnitude).flatten().tolist(), torch.cat(direction).flatten().tolist()


def init_direction(v: Tensor, v_previous: Tensor) -> Tensor:
    """Return p, the part of the last change of velocity across the earlier velocity (eq. 11)."""
    p = orthogonal_part(v.to(working_dtype(v)) - v_previous, along=v_previous)
    return p.mul_(_is_meant(norm(p), norm(v) + norm(v_previous)))


def realign(p: Tensor, v: Tensor) -> Tensor:
    """Return the unit vector of p's part orthogonal to v (eq. 12), zero where there is none."""
    orthogonal = orthogonal_part(p, along=v)
    size = norm(orthogonal)
    return orthogonal.mul_(divide(_is_meant(size, norm(p)), size))


def advance(v: Tensor, u: Tensor, growth: float, turn: float) -> Tensor:
    """Return the next velocity (eq. 13), growth v + turn |v| u: growth = exp(k dt), turn = d."""
    return growth * v + turn * norm(v) * u


def _is_meant(residual: Tensor, scale: Tensor) -> Tensor:
    """Return 1 where a residual's norm is more than rounding of what it was left by, else 0.

    What an orthogonalisation leaves of parallel vectors has a length but no meaning.
    """
    return (residual > 8 * torch.finfo(residual.dtype).eps * scale).to(residual.dtype)


class Arc(NamedTuple):
    """A path of TASU in the plane of the last two evaluated velocities, as sampling follows it.

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
        """Return the next point of the recursion, by eq. 12 and eq. 13 on its coordinates alone."""
        grown, side = growth * self.across, self.along.sign()
        return self._replace(
            along=torch.addcmul(growth * self.along, side, self.across, value=-turn),
            across=grown.addcmul_(self.turns, self.along.abs(), value=turn),
        )

    def velocity(self) -> Tensor:
        """Return the reconstructed velocity at the current point, in working precision."""
        return (self.along * self.base).addcmul_(self.across, self.p)


def start_arc(v: Tensor, v_previous: Tensor | None) -> Arc:
    """Return the arc that leaves anchor velocity `v`, with the direction p of eq. 11.

    Without an earlier velocity it has no direction. v is v_previous, `along` times, and p; what
    follows are numbers of |v_previous|. On a device every line is a launch or two, so there are
    few of them.
    """
    dtype = working_dtype(v)
    if v_previous is None:
        ones = torch.ones(len(v), *[1] * (v.ndim - 1), dtype=dtype, device=v.device)
        zeros = torch.zeros_like(ones)
        return Arc(v, zeros, ones, zeros, zeros)
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
