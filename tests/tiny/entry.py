"""What a tiny pipeline is: how to build it, how to call it, what to count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

PROMPT = "a red fox in the snow"


def first_output(result: Any) -> Tensor:
    """The pictures, frames or latents of a pipeline's return value, as one tensor."""
    return as_tensor(result[0])


def as_tensor(value: Any) -> Tensor:
    """One tensor from a tensor, an array, a PIL picture or a (nested) list of them."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple):
        return torch.stack([as_tensor(item) for item in value])
    return torch.from_numpy(np.array(value))


@dataclass(frozen=True)
class Tiny:
    """A real pipeline with tiny random weights, ready for CPU tests."""

    name: str
    build: Callable[[], DiffusionPipeline]
    call: Callable[[], dict[str, Any]]
    denoisers: tuple[str, ...] = ("transformer",)
    calls_per_step: int = 1
    calls_before: int = 0  # of a denoiser, whatever the steps
    latent_output: str = "latent"
    takes_steps: bool = True  # a number of them; else its call brings the noise levels
    output: Callable[[Any], Tensor] = first_output
