"""Clips as films: one picture with all frames under each other, which a page plays in step.

Browsers start every GIF or WebP when they like; two films share a clock, and lose no colour.
"""

import io
import math
from pathlib import Path
from typing import NamedTuple

MOVING = (".gif", ".webp")
DURATION = 100  # milliseconds of a frame that does not say its own


class Film(NamedTuple):
    """A PNG, the size of a frame, how many there are, and how long they take."""

    content: bytes
    width: int
    height: int
    frames: int
    seconds: float


def film(file: Path) -> Film | None:
    """Return the film of a clip; None of a file that does not move or cannot be read.

    Writers join frames that are alike into a longer one; here they are apart again.
    """
    from PIL import Image, ImageSequence

    if file.suffix.lower() not in MOVING:
        return None
    seen = []
    try:
        with Image.open(file) as clip:
            for frame in ImageSequence.Iterator(clip):
                picture = frame.convert("RGB")  # reads it, and with it how long it is shown
                seen.append((picture, int(frame.info.get("duration") or DURATION)))
    except OSError:  # of no picture, or of half of one
        return None
    unit = math.gcd(*(length for _, length in seen))
    frames = [picture for picture, length in seen for _ in range(length // unit)]
    if len(frames) < 2:
        return None
    width, height = frames[0].size
    whole, content = Image.new("RGB", (width, height * len(frames))), io.BytesIO()
    for n, frame in enumerate(frames):
        whole.paste(frame, (0, n * height))
    whole.save(content, "PNG", optimize=True)
    return Film(content.getvalue(), width, height, len(frames), len(frames) * unit / 1000)
