"""Clips in plain data: which objects, how each moves, on which background.

A clip is described here, worded by ``training.video.captions`` and drawn by
``training.video.render``; all three read the same description, so that they agree by construction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training.emoji import Thing
from training.scenes import COLOURS, Background, colour_of, sample_background
from training.scenes import Placed as StillPlaced
from training.video.config import SIZE
from training.video.motions import MARGIN, SPEEDS, TRAVEL, Box, Path, sample_path

KINDS: dict[str, float] = {
    "alone": 0.54,
    "animated": 0.10,
    "pair": 0.18,
    "together": 0.06,
    "cross": 0.12,
}
ALONE: dict[str, float] = {
    "still": 0.09,
    "left": 0.10,
    "right": 0.10,
    "up": 0.09,
    "down": 0.09,
    "bounce": 0.09,
    "hop left": 0.04,
    "hop right": 0.04,
    "grow": 0.08,
    "shrink": 0.08,
    "turn right": 0.06,
    "turn left": 0.06,
    "rock": 0.04,
    "circle right": 0.02,
    "circle left": 0.02,
}
# Motions for an object that has the left or right half, or the upper or lower half, to itself.
IN_A_COLUMN = ("still", "still", "up", "down", "bounce", "grow", "shrink", "turn right")
IN_A_ROW = ("still", "still", "left", "right", "grow", "shrink", "turn right", "rock")
DIRECTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}
HALF = SIZE / 2
HALVES: dict[str, Box] = {
    "left": Box(right=HALF),
    "right": Box(left=HALF),
    "top": Box(bottom=HALF),
    "bottom": Box(top=HALF),
}


@dataclass(frozen=True)
class Actor:
    """An object of the vocabulary in a colour (None: its own) with its motion."""

    thing: int
    colour: str | None
    motion: str
    speed: str
    path: Path
    animated: bool = False


@dataclass(frozen=True)
class Clip:
    """One clip to be: kind, background, actors from back to front."""

    kind: str
    background: Background
    actors: tuple[Actor, ...]


def sample_clips(
    count: int,
    seed: int | str,
    things: Sequence[Thing],
    animated: Sequence[int] = (),
    kind: str | None = None,
) -> list[Clip]:
    """Clips of this seed; `animated` are the indices of objects that have an animation."""
    rng = random.Random(seed)
    return [sample_clip(rng, things, animated, kind) for _ in range(count)]


def sample_clip(
    rng: random.Random, things: Sequence[Thing], animated: Sequence[int], kind: str | None = None
) -> Clip:
    """One clip; the kind is drawn by weight unless given."""
    kind = kind or rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    kind = "alone" if kind == "animated" and not animated else kind
    if kind == "animated":
        actors = [_animated(rng, animated)]
    elif kind == "alone":
        actors = [_alone(rng, things)]
    else:
        chosen = [_dressed(rng, i, things) for i in rng.sample(in_clips(things), 2)]
        actors = PAIRS[kind](rng, chosen)
    shown = {colour_of(_placed(actor), things) for actor in actors}
    return Clip(kind, sample_background(rng, {c for c in shown if c}), tuple(actors))


def in_clips(things: Sequence[Thing]) -> list[int]:
    """The objects that clips show."""
    return [i for i, thing in enumerate(things) if thing.video]


Dressed = tuple[int, str | None]


def _alone(rng: random.Random, things: Sequence[Thing]) -> Actor:
    motion = rng.choices(tuple(ALONE), tuple(ALONE.values()))[0]
    return _actor(rng, _dressed(rng, rng.choice(in_clips(things)), things), motion)


def _animated(rng: random.Random, animated: Sequence[int]) -> Actor:
    path = sample_path(rng, "rock", "slow", Box())
    lively = Path(path.x, path.y, path.size)
    return Actor(rng.choice(animated), None, "animated", "medium", lively, animated=True)


def _pair(rng: random.Random, chosen: Sequence[Dressed]) -> list[Actor]:
    """Each in its own half; one of them often stands still."""
    columns = rng.random() < 0.5
    places = ["left", "right"] if columns else ["top", "bottom"]
    rng.shuffle(places)
    motions = [rng.choice(IN_A_COLUMN if columns else IN_A_ROW) for _ in chosen]
    if motions == ["still", "still"]:
        motions[0] = "up" if columns else "right"
    return [
        _actor(rng, one, motion, HALVES[place])
        for one, motion, place in zip(chosen, motions, places, strict=True)
    ]


def _together(rng: random.Random, chosen: Sequence[Dressed]) -> list[Actor]:
    """Side by side in one direction, at one speed."""
    direction, speed = rng.choice(tuple(DIRECTIONS)), rng.choice(SPEEDS)
    places = ["top", "bottom"] if DIRECTIONS[direction][0] else ["left", "right"]
    rng.shuffle(places)
    return [
        _actor(rng, one, direction, HALVES[place], speed)
        for one, place in zip(chosen, places, strict=True)
    ]


def _cross(rng: random.Random, chosen: Sequence[Dressed]) -> list[Actor]:
    """In opposite directions on one line: they meet in the middle and pass each other."""
    first = rng.choice(tuple(DIRECTIONS))
    size = rng.uniform(28.0, 36.0)
    way = SIZE * rng.uniform(*TRAVEL["fast"])
    line = HALF + rng.uniform(-1, 1) * (HALF - MARGIN - 4 - size / 2)
    actors = []
    for one, direction in zip(chosen, (first, OPPOSITE[first]), strict=True):
        across, down = DIRECTIONS[direction]
        aside = line + rng.uniform(-4, 4)
        x = HALF - across * way / 2 if across else aside
        y = HALF - down * way / 2 if down else aside
        path = Path(x, y, size * rng.uniform(0.9, 1.0), across=across * way, down=down * way)
        actors.append(Actor(*one, direction, "fast", path))
    return actors


PAIRS = {"pair": _pair, "together": _together, "cross": _cross}


def _actor(
    rng: random.Random,
    one: Dressed,
    motion: str,
    box: Box | None = None,
    speed: str | None = None,
) -> Actor:
    box, speed = box or Box(), speed or rng.choice(SPEEDS)
    most = min(box.width, box.height)
    most = most / 1.3 if motion.startswith("turn") else most
    return Actor(*one, motion, speed, sample_path(rng, motion, speed, box, most))


def _dressed(rng: random.Random, thing: int, things: Sequence[Thing]) -> Dressed:
    recoloured = things[thing].recolour and rng.random() < 0.4
    return thing, rng.choice(COLOURS) if recoloured else None


def _placed(actor: Actor) -> StillPlaced:
    return StillPlaced(actor.thing, actor.colour, actor.path.x, actor.path.y, actor.path.size)
