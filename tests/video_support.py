"""Four made-up objects and their pictures, for tests of the video model's training."""

import sys

import numpy as np
import pytest
from training.emoji import Thing
from training.scenes import Background
from training.video import emoji
from training.video.config import FRAMES

THINGS = [
    Thing("1", "disc", "discs", "shape", {"round plate": "round plates"}, ("red",), recolour=True),
    Thing("2", "box", "boxes", "shape", {"crate": "crates"}, ("blue",), recolour=True),
    Thing("3", "apple", "apples", "fruit", {"pippin": "pippins"}),
    Thing("4", "scissors", "scissors", "tool", {"shears": "shears"}, countable=False),
]
WHITE = Background("white", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 0.0)
ANIMATED = (2,)


def picture(rgb: tuple[int, int, int]) -> np.ndarray:
    line = np.linspace(-1, 1, 96)
    inside = line[:, None] ** 2 + line**2 <= 1
    return np.where(inside[..., None], np.array([*rgb, 255]), 0).astype(np.uint8)


def pictures() -> np.ndarray:
    drawn = [picture(rgb) for rgb in ((200, 20, 30), (30, 60, 220), (20, 160, 40), (20, 20, 20))]
    drawn[1][:, :48] = 0  # of the second only the right half is left
    return np.stack(drawn)


def animation() -> np.ndarray:
    """A gray bar that sinks."""
    frames = np.zeros((FRAMES, emoji.SIDE, emoji.SIDE, 4), np.uint8)
    for n in range(FRAMES):
        frames[n, 3 * n : 3 * n + 10] = (90, 90, 90, 255)
    return frames


def run_main(module, *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        module.main()
