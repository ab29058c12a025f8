"""Input pictures, masks and clips, drawn from fixed seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def picture(size: int, seed: int = 0) -> Image:
    """A square of coloured noise."""
    from PIL.Image import fromarray

    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return fromarray(pixels)


def mask(size: int) -> Image:
    """White, hence repainted, in its left half."""
    from PIL.Image import fromarray

    pixels = np.zeros((size, size), dtype=np.uint8)
    pixels[:, : size // 2] = 255
    return fromarray(pixels)


def clip(size: int, frames: int) -> list[Image]:
    """As many different pictures as there are frames."""
    return [picture(size, seed) for seed in range(frames)]
