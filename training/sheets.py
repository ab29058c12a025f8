"""Sheets of pictures to look at."""

import textwrap
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

LINES, LINE = 3, 14  # of a caption at most, and the pixels each takes


def save_sheet(
    pictures: Tensor, path: Path, columns: int = 8, captions: list[str] | None = None
) -> None:
    """Pictures in [-1, 1], (count, 3, height, width), in rows, each with its caption below."""
    height, width = pictures.shape[-2:]
    room = LINES * LINE if captions else 0
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (width + 2), rows * (height + 2 + room)), "white")
    pixels = ((pictures.float().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    draw = ImageDraw.Draw(sheet)
    for i, picture in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
        x, y = i % columns * (width + 2), i // columns * (height + 2 + room)
        sheet.paste(Image.fromarray(np.ascontiguousarray(picture)), (x, y))
        if captions:
            draw.multiline_text((x + 2, y + height + 1), _wrapped(captions[i], width), "black")
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width // 6)[:LINES])
