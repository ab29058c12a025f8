"""POVD, the parallel-orthogonal velocity decomposition (eq. 2-5), per sample along dim 0."""

import torch
from torch import Tensor


def working_dtype(x: Tensor) -> torch.dtype:
    """The precision arithmetic on `x` is done in: float32, or float64 for float64 input."""
    return torch.promote_types(x.dtype, torch.float32)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each sample, shaped (samples, 1, ..., 1) so that it broadcasts back."""
    products = (a.to(working_dtype(a)) * b).reshape(len(a), -1).sum(dim=1)
    return products.reshape(-1, *[1] * (a.ndim - 1))


def norm(x: Tensor) -> Tensor:
    """Euclidean norm of each sample, shaped (samples, 1, ..., 1) so that it broadcasts back."""
    norms: Tensor = torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1, dtype=working_dtype(x))
    return norms.reshape(-1, *[1] * (x.ndim - 1))


def relative_distance(x: Tensor, reference: Tensor) -> Tensor:
    """|x - reference| / |reference| of each sample, shaped (samples, 1, ..., 1).

    The arithmetic is done in float64. Where the reference is zero the result is infinite, or not a
    number if x is zero too.
    """
    precise = reference.to(precise_dtype(reference))
    return norm(x.to(precise) - precise) / norm(precise)


def precise_dtype(x: Tensor) -> torch.dtype:
    """The precision that measurements are made in: float64, or float32 on Apple's GPU."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient of per-sample numbers, zero where the denominator is zero; no host branch."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def share(change: Tensor, along: Tensor) -> Tensor:
    """How many times `along` is contained in `change`: <change, along> / |along|^2, per sample."""
    return divide(dot(change, along), dot(along, along))


def orthogonal_part(change: Tensor, along: Tensor) -> Tensor:
    """What is left of `change` without its projection on `along` (eq. 3)."""
    return torch.addcmul(change, share(change, along), along, value=-1)


def indicators(v: Tensor, v_next: Tensor, length: float) -> tuple[list[float], list[float]]:
    """k_n and d_n of each sample (eq. 2-4) from two neighbouring velocities and the step's length.

    Each sample is reduced on its own in float64, so that its numbers do not depend on the batch it
    came in. A zero velocity gives nan or inf: magnitude and direction are not defined there.
    """
    precise = precise_dtype(v)
    magnitude, direction = [], []
    for one, one_next in zip(v, v_next, strict=True):
        v_n = one.to(precise).reshape(1, -1)
        change = one_next.to(precise).reshape(1, -1) - v_n
        magnitude.append(dot(change, v_n) / dot(v_n, v_n) / length)
        direction.append(norm(orthogonal_part(change, along=v_n)) / norm(v_n))
    return torch.cat(magnitude).flatten().tolist(), torch.cat(direction).flatten().tolist()
