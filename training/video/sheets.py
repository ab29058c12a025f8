"""Clips to look at: frames side by side in a PNG, and moving in a GIF."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from training.video.config import FPS

GAP, LINE = 2, 13


def to_pixels(clips: Tensor) -> NDArray[np.uint8]:
    """Clips in [-1, 1], (count, 3, frames, height, width), as bytes with channels last."""
    pixels = ((clips.float().cpu().clamp(-1, 1) + 1) * 127.5).round()
    return pixels.permute(0, 2, 3, 4, 1).numpy().astype(np.uint8)


def save_frames(
    pixels: NDArray[np.uint8], captions: Sequence[str], path: Path, shown: int = 6, columns: int = 2
) -> None:
    """Some frames of each clip side by side under its caption."""
    count, frames, height, width = pixels.shape[:4]
    chosen = [round(n * (frames - 1) / (shown - 1)) for n in range(shown)]
    across, down = shown * (width + GAP) + 8, height + LINE + 6
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * across, rows * down), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (clip, words) in enumerate(zip(pixels, captions, strict=True)):
        x, y = i % columns * across, i // columns * down
        pen.text((x + 2, y), textwrap.shorten(words, across // 6, placeholder="..."), "black")
        for n, frame in enumerate(chosen):
            sheet.paste(Image.fromarray(clip[frame]), (x + n * (width + GAP), y + LINE))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, optimize=True)


def save_moving(
    pixels: NDArray[np.uint8], captions: Sequence[str], path: Path, columns: int = 6
) -> None:
    """All clips in one GIF, each with its caption below."""
    count, frames, height, width = pixels.shape[:4]
    across, down = width + 2 * GAP, height + 3 * LINE + GAP
    rows = -(-count // columns)
    ground = Image.new("RGB", (columns * across, rows * down), "white")
    pen = ImageDraw.Draw(ground)
    for i, words in enumerate(captions):
        wrapped = "\n".join(textwrap.wrap(words, across // 6)[:3])
        place = (i % columns * across + GAP, i // columns * down + height + GAP)
        pen.multiline_text(place, wrapped, "black", spacing=1)
    drawn = []
    for n in range(frames):
        sheet = ground.copy()
        for i, clip in enumerate(pixels):
            place = (i % columns * across + GAP, i // columns * down + GAP)
            sheet.paste(Image.fromarray(clip[n]), place)
        drawn.append(sheet)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=1000 // FPS, loop=0)
