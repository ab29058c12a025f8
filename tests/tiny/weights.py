"""Seeded construction, so that every build of a pipeline has the same, non-trivial weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SEED = 20260
GAIN = 0.8
# The first layer after a sinusoidal time embedding, and which share of its input is the time.
CLOCKS = {
    "TimestepEmbedding": ("linear_1", 1),
    "TimestepEmbedder": ("mlp.0", 1),
    "ChromaApproximator": ("in_proj", 4),
}
SLOW = 0.005  # radians per timestep, of which there are 1000


def seeded(assemble: Callable[..., DiffusionPipeline]) -> Callable[..., DiffusionPipeline]:
    """Build under a fixed seed, leaving the caller's random state as it was."""

    @wraps(assemble)
    def build(*args, **kwargs) -> DiffusionPipeline:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            pipe = assemble(*args, **kwargs)
            for component in pipe.components.values():
                if isinstance(component, nn.Module):
                    initialise(component)
                    component.eval().requires_grad_(False)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return build


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Matrices near unit gain let time and prompt through; zeros would give a constant velocity."""
    for parameter in module.parameters():
        if parameter.dim() > 1 and parameter.numel():
            parameter.normal_(std=GAIN * parameter[0].numel() ** -0.5)
        elif not parameter.any():
            parameter.normal_(std=0.05)
    for child in module.modules():
        if type(child).__name__ in CLOCKS:
            layer, share = CLOCKS[type(child).__name__]
            weight = child.get_submodule(layer).weight
            width = weight.shape[1] // share
            weight[:, :width] *= damping(width)


def damping(width: int) -> Tensor:
    """Weights of a sinusoidal embedding that forget what turns faster than a trajectory does."""
    half = width // 2
    radians_per_timestep = 10_000 ** (-torch.arange(half) / half)
    return (SLOW / radians_per_timestep).clamp(max=1.0).repeat(2)
