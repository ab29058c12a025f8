"""How objects move: few numbers for a whole clip, and where they put the object in each frame.

A motion is drawn by name and speed; ``track`` turns its numbers into centre, size and angle of
every frame, for all clips at once. Lengths are pixels of the frame, x to the right and y downwards,
angles are radians, positive clockwise as seen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from training.video.config import FRAMES, SIZE

SPEEDS = ("slow", "medium", "fast")
MARGIN = 1.0  # pixels kept between an object and the frame's edge
TRAVEL = {"slow": (0.14, 0.22), "medium": (0.28, 0.40), "fast": (0.48, 0.60)}  # of the frame
FACTOR = {"slow": (1.3, 1.45), "medium": (1.6, 1.85), "fast": (2.1, 2.5)}  # last to first size
TURN = {"slow": (45, 80), "medium": (120, 190), "fast": (290, 360)}  # degrees
HOPS = {"slow": 1, "medium": 2, "fast": 3}
ROCKS = {"slow": 1, "medium": 2, "fast": 3}  # swings to either side
ROUNDS = {"slow": 0.5, "medium": 1.0, "fast": 1.5}  # of a circle


@dataclass(frozen=True)
class Path:
    """The numbers of a motion: from one place and size to another, with extras on the way."""

    x: float
    y: float
    size: float
    across: float = 0.0  # travel over the clip
    down: float = 0.0
    factor: float = 1.0  # of the size, at the end
    turn: float = 0.0  # radians over the clip
    hops: float = 0.0
    height: float = 0.0  # of a hop
    rocks: float = 0.0
    tilt: float = 0.0  # radians to either side
    rounds: float = 0.0  # of a circle, positive clockwise
    radius: float = 0.0

    def numbers(self) -> tuple[float, ...]:
        """The fields in order."""
        return astuple(self)


NUMBERS = len(Path(0, 0, 0).numbers())


@dataclass(frozen=True)
class Box:
    """The part of the frame an object stays in."""

    left: float = MARGIN
    top: float = MARGIN
    right: float = SIZE - MARGIN
    bottom: float = SIZE - MARGIN

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top


Sampler = Callable[[random.Random, str, Box, float], Path]


def track(paths: Tensor, frames: int = FRAMES) -> Tensor:
    """Centre x and y, size and angle (..., frames, 4) of paths (..., NUMBERS)."""
    (x, y, size, across, down, factor, turn, hops, height, rocks, tilt, rounds, radius) = (
        paths[..., None, n] for n in range(NUMBERS)
    )
    t = torch.linspace(0, 1, frames, device=paths.device)
    swing = 2 * math.pi * rounds * t
    placed_x = x + across * t + radius * torch.sin(swing)
    placed_y = y + down * t - height * (math.pi * hops * t).sin().abs() - radius * torch.cos(swing)
    angle = turn * t + tilt * torch.sin(2 * math.pi * rocks * t)
    return torch.stack([placed_x, placed_y, size * factor**t, angle], dim=-1)


def still(rng: random.Random, speed: str, box: Box, size: float) -> Path:
    """Nothing moves."""
    x, y = _somewhere(rng, box, size)
    return Path(x, y, size)


def slide(across: int, down: int) -> Sampler:
    """A straight way at an even speed."""

    def sampler(rng: random.Random, speed: str, box: Box, size: float) -> Path:
        wanted = SIZE * rng.uniform(*TRAVEL[speed])
        room = (box.width if across else box.height) - size
        x, y = _somewhere(rng, box, size)
        way = min(wanted, room)
        start = rng.uniform(0, room - way) + (way if across + down < 0 else 0)
        if across:
            return Path(box.left + size / 2 + start, y, size, across=across * way)
        return Path(x, box.top + size / 2 + start, size, down=down * way)

    return sampler


def bounce(across: int) -> Sampler:
    """Hops on the spot, or along the way to a side."""

    def sampler(rng: random.Random, speed: str, box: Box, size: float) -> Path:
        height = min(box.height - size, SIZE * rng.uniform(0.28, 0.42))
        floor = rng.uniform(box.top + height + size / 2, box.bottom - size / 2)
        if not across:
            x = _somewhere(rng, box, size)[0]
            return Path(x, floor, size, hops=HOPS[speed], height=height)
        way = min(SIZE * rng.uniform(0.36, 0.5), box.width - size)
        start = rng.uniform(0, box.width - size - way) + (way if across < 0 else 0)
        x = box.left + size / 2 + start
        return Path(x, floor, size, across=across * way, hops=HOPS[speed], height=height)

    return sampler


def scale(outward: bool) -> Sampler:
    """The object grows or shrinks about its middle; `size` is that of its largest frame."""

    def sampler(rng: random.Random, speed: str, box: Box, size: float) -> Path:
        x, y = _somewhere(rng, box, size)
        factor = rng.uniform(*FACTOR[speed])
        return (
            Path(x, y, size / factor, factor=factor)
            if outward
            else Path(x, y, size, factor=1 / factor)
        )

    return sampler


def spin(clockwise: int) -> Sampler:
    """The object turns about its middle, within the circle its corners need."""

    def sampler(rng: random.Random, speed: str, box: Box, size: float) -> Path:
        x, y = _somewhere(rng, box, min(1.4 * size, box.width, box.height))
        return Path(x, y, size, turn=clockwise * math.radians(rng.uniform(*TURN[speed])))

    return sampler


def rock(rng: random.Random, speed: str, box: Box, size: float) -> Path:
    """The object tilts from side to side."""
    x, y = _somewhere(rng, box, min(1.1 * size, box.width, box.height))
    tilt = math.radians(rng.uniform(18, 32)) * rng.choice((-1, 1))
    return Path(x, y, size, rocks=ROCKS[speed], tilt=tilt)


def circle(clockwise: int) -> Sampler:
    """The object goes round in a circle, upright."""

    def sampler(rng: random.Random, speed: str, box: Box, size: float) -> Path:
        most = (min(box.width, box.height) - size) / 2
        radius = min(most, SIZE * rng.uniform(0.17, 0.26))
        x, y = _somewhere(rng, box, size + 2 * radius)
        return Path(x, y, size, rounds=clockwise * ROUNDS[speed], radius=radius)

    return sampler


MOTIONS: dict[str, Sampler] = {
    "still": still,
    "left": slide(-1, 0),
    "right": slide(1, 0),
    "up": slide(0, -1),
    "down": slide(0, 1),
    "bounce": bounce(0),
    "hop left": bounce(-1),
    "hop right": bounce(1),
    "grow": scale(outward=True),
    "shrink": scale(outward=False),
    "turn right": spin(1),
    "turn left": spin(-1),
    "rock": rock,
    "circle right": circle(1),
    "circle left": circle(-1),
}
# Sizes of a lone object, from and to, that leave room for the motion.
SIZES: dict[str, tuple[float, float]] = {
    "still": (36.0, 78.0),
    "left": (28.0, 40.0),
    "right": (28.0, 40.0),
    "up": (28.0, 40.0),
    "down": (28.0, 40.0),
    "bounce": (30.0, 46.0),
    "hop left": (28.0, 42.0),
    "hop right": (28.0, 42.0),
    "grow": (56.0, 84.0),
    "shrink": (56.0, 84.0),
    "turn right": (40.0, 66.0),
    "turn left": (40.0, 66.0),
    "rock": (40.0, 76.0),
    "circle right": (28.0, 40.0),
    "circle left": (28.0, 40.0),
}


def sample_path(rng: random.Random, motion: str, speed: str, box: Box, most: float = SIZE) -> Path:
    """A path of this motion that stays in the box, the object at most this large."""
    low, high = SIZES[motion]
    high = min(high, most)
    return MOTIONS[motion](rng, speed, box, rng.uniform(min(low, 0.8 * high), high))


def _somewhere(rng: random.Random, box: Box, size: float) -> tuple[float, float]:
    """A centre that keeps a square of this size in the box, mostly near the middle."""
    reach_x, reach_y = (box.width - size) / 2, (box.height - size) / 2
    across, down = rng.triangular(-reach_x, reach_x, 0), rng.triangular(-reach_y, reach_y, 0)
    return (box.left + box.right) / 2 + across, (box.top + box.bottom) / 2 + down
