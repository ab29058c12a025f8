"""Flows whose velocity is known in closed form, for tests and benchmarks.

All are `velocity(x, t)` functions on the straight path x_t = t noise + (1 - t) data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def _normal_velocity(x: Tensor, t: float, mean: Tensor, std: float) -> Tensor:
    """E[noise - data | x_t = x] where the data are normal with this mean and deviation."""
    variance = t * t + (1 - t) ** 2 * std * std
    return (t - (1 - t) * std * std) / variance * (x - (1 - t) * mean) - mean


@dataclass(frozen=True)
class GaussianFlow:
    """Data are normal around `mean` (one sample's shape) with deviation `std`."""

    mean: Tensor
    std: float

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The exact velocity."""
        return _normal_velocity(x, t, self.mean.to(x), self.std)

    def solution(self, noise: Tensor, t: float) -> Tensor:
        """Where the exact flow carries `noise` (the state at t = 1) by time t."""
        scale = math.sqrt(t * t + (1 - t) ** 2 * self.std**2)
        return (1 - t) * self.mean.to(noise) + scale * noise


@dataclass(frozen=True)
class GaussianMixtureFlow:
    """Data are a mixture of normals: `means` (components along dim 0), `stds`, `weights`."""

    means: Tensor
    stds: Sequence[float]
    weights: Sequence[float]

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The exact velocity: the components' velocities, weighted by their share at x."""
        shares = self.shares(x, t).reshape(len(x), -1, *[1] * (x.ndim - 1))
        v = torch.zeros_like(x)
        for i, (mean, std) in enumerate(zip(self.means.to(x), self.stds, strict=True)):
            v += shares[:, i] * _normal_velocity(x, t, mean, std)
        return v

    def shares(self, x: Tensor, t: float) -> Tensor:
        """Posterior probability of each component at x, shaped (samples, components)."""
        dimension = x[0].numel()
        logits = []
        for mean, std, weight in zip(self.means.to(x), self.stds, self.weights, strict=True):
            variance = t * t + (1 - t) ** 2 * std * std
            distance = ((x - (1 - t) * mean).reshape(len(x), -1) ** 2).sum(dim=1)
            constant = math.log(weight) - dimension / 2 * math.log(variance)
            logits.append(constant - distance / (2 * variance))
        return torch.softmax(torch.stack(logits, dim=1), dim=1)


@dataclass(frozen=True)
class RotatingFlow:
    """A velocity that turns at `rate` radians and grows at `growth` per unit time.

    It is the same for every state. `first` and `second` are orthonormal, of one sample's shape.
    """

    first: Tensor
    second: Tensor
    rate: float
    growth: float = 0.0

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The velocity at time t, for every sample of x."""
        angle = self.rate * (1 - t)
        v = math.cos(angle) * self.first.to(x) + math.sin(angle) * self.second.to(x)
        return (math.exp(self.growth * (1 - t)) * v).expand_as(x)

    def magnitude(self, length: float) -> float:
        """k_n of a step of this length (eq. 3)."""
        grown = math.exp(self.growth * length)
        return (grown * math.cos(self.rate * length) - 1) / length

    def direction(self, length: float) -> float:
        """d_n of a step of this length (eq. 4)."""
        return math.exp(self.growth * length) * abs(math.sin(self.rate * length))


def picture_flow(size: int = 24) -> GaussianMixtureFlow:
    """A flow whose data are soft discs and bars of several colours, with some noise."""
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    discs = [((x - cx) ** 2 + (y - cy) ** 2) / 0.15 for cx, cy in ((-0.4, -0.3), (0.4, 0.3))]
    bars = [(x / 0.3) ** 2, (y / 0.3) ** 2, ((x + y) / 0.4) ** 2]
    colours = torch.tensor([[1.0, -0.5, -0.8], [-0.8, 0.9, -0.2], [-0.5, 0.1, 1.0]])
    pictures = [
        colour[:, None, None] * (2 * torch.exp(-shape) - 0.5)
        for shape in (*discs, *bars)
        for colour in colours
    ]
    return GaussianMixtureFlow(
        torch.stack(pictures), [0.1] * len(pictures), [1 / len(pictures)] * len(pictures)
    )
