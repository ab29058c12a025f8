"""Input pictures, masks and clips, drawn from fixed seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature, PreTrainedTokenizerBase


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


class PictureProcessor:
    """Stands for Qwen2VLProcessor, whose constructor needs torchvision for its videos."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import Qwen2VLImageProcessorPil

        self.tokenizer = tokenizer
        self.pictures = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)

    def __call__(self, text: list[str], images: Image, **options: Any) -> BatchFeature:
        """One image mark for each merged patch, as the text encoder wants."""
        from transformers import BatchFeature

        pixels = self.pictures(images=images, return_tensors="pt")
        marks = int(pixels["image_grid_thw"].prod()) // self.pictures.merge_size**2
        expanded = [prompt.replace("<|image_pad|>", "<|image_pad|>" * marks) for prompt in text]
        return BatchFeature({**self.tokenizer(expanded, **options), **pixels})
