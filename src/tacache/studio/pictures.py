"""Pictures and clips for a page: as addresses that hold them, and how two of them differ."""

import base64
import io
from functools import partial
from html import escape

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tacache.fidelity import capped, per_frame, psnr, ssim
from tacache.hosts import Pixels

AMPLIFIED = 4  # times that a difference is shown larger
SMALL_PREVIEW = 256  # pixels to a side of a preview at most


def as_image(pixels: Pixels) -> Image.Image:
    """Return a picture of numbers from 0 to 1 in bytes; of a clip all frames, in one column."""
    shown = np.concatenate(list(pixels)) if pixels.ndim == 4 else pixels
    return Image.fromarray((shown.clip(0, 1) * 255).round().astype(np.uint8))


def address(pixels: Pixels) -> str:
    """Return an address that holds a picture, or all frames of a clip, without loss."""
    content = io.BytesIO()
    as_image(pixels).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def small(pixels: Pixels) -> Pixels:
    """Return every so many pixels of a preview, so that it is quickly sent."""
    every = -(-max(pixels.shape[:2]) // SMALL_PREVIEW)
    return pixels[::every, ::every]


def difference(full: Pixels, fast: Pixels) -> Pixels:
    """Return how far a picture or clip is from another, amplified, and black where they agree."""
    apart: Pixels = np.clip(np.abs(full - fast) * AMPLIFIED, 0, 1)
    return apart


def fidelity(full: Pixels, fast: Pixels) -> tuple[float, float]:
    """Return PSNR in dB and SSIM of a picture to another; of clips, means over their frames."""
    pair, alike = [_samples(full), _samples(fast)], partial(ssim, dtype=torch.float32)
    if full.ndim == 3:
        return capped(float(psnr(*pair))), float(alike(*pair))
    return capped(float(per_frame(psnr, *pair))), float(per_frame(alike, *pair))


def together(pixels: Pixels | None, fps: int, content: str) -> str:
    """Return HTML of pictures beside each other, or of clips that one clock moves in step.

    `pixels` are those of any of them; None where there is none yet.
    """
    if pixels is None or pixels.ndim == 3:
        return f'<div class="stage">{content}</div>'
    clock = f"--frames:{len(pixels)};--seconds:{len(pixels) / fps:.3f}s"
    return f'<div class="stage clips" style="{clock}">{content}</div>'


def shown(pixels: Pixels, label: str) -> str:
    """Return HTML of a picture, or of a clip as one picture of all frames, moved by a clock."""
    if pixels.ndim == 3:
        return f'<img src="{address(pixels)}" alt="{escape(label)}">'
    height, width = pixels.shape[1:3]
    style = f"aspect-ratio:{width}/{height};background-image:url({address(pixels)})"
    return f'<div class="film" role="img" aria-label="{escape(label)}" style="{style}"></div>'


def _samples(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).movedim(-1, -3)[None]
