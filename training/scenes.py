"""Scenes in plain data: what is where, how large, in which colour, on which background.

A scene is described here, worded by ``training.captions`` and drawn by ``training.render``;
all three read the same description, so that picture and caption agree by construction.
Lengths are pixels of a 128x128 canvas, x to the right and y downwards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training.emoji import Thing

CANVAS = 128
MAX_OBJECTS = 4  # objects in a scene
MIN_SIDE = 32.0  # side of an object
SMALL, LARGE = 52.0, 90.0  # a lone object at most, at least this large is called small, large

KINDS: dict[str, float] = {
    "single_object": 0.22,
    "two_object": 0.16,
    "counting": 0.22,
    "colors": 0.10,
    "position": 0.18,
    "color_attr": 0.12,
}
COUNTED_SIZES = {2: (40.0, 60.0), 3: (36.0, 52.0), 4: (32.0, 48.0)}
PAIR_SIZES = (40.0, 62.0)

Shade = tuple[float, float, float]
BACKGROUNDS: dict[str, Shade] = {
    "white": (0.97, 0.97, 0.97),
    "gray": (0.60, 0.61, 0.63),
    "black": (0.07, 0.07, 0.09),
    "red": (0.80, 0.16, 0.18),
    "orange": (0.97, 0.60, 0.22),
    "yellow": (0.98, 0.86, 0.34),
    "green": (0.36, 0.70, 0.38),
    "teal": (0.20, 0.62, 0.62),
    "blue": (0.28, 0.50, 0.88),
    "purple": (0.54, 0.36, 0.76),
    "pink": (0.98, 0.70, 0.80),
    "brown": (0.50, 0.34, 0.24),
}
COLOURS = (
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "pink",
    "brown",
    "white",
    "black",
)


@dataclass(frozen=True)
class Background:
    """A named colour and its two shades along a direction (radians); equal shades are plain."""

    name: str
    first: Shade
    second: Shade
    angle: float


@dataclass(frozen=True)
class Placed:
    """An object of the vocabulary in a colour (None: its own) at a centre, ``size`` wide."""

    thing: int
    colour: str | None
    x: float
    y: float
    size: float


@dataclass(frozen=True)
class Scene:
    """One picture to be: kind, background, objects from back to front, strength of shadows."""

    kind: str
    background: Background
    objects: tuple[Placed, ...]
    shadow: float


@dataclass(frozen=True)
class Choices:
    """Indices of the vocabulary that each kind of scene may draw from."""

    all: tuple[int, ...]
    countable: tuple[int, ...]
    recolourable: tuple[int, ...]
    coloured: tuple[int, ...]


def choices_of(things: Sequence[Thing]) -> Choices:
    """What the sampler may choose from in this vocabulary."""
    indices = range(len(things))
    return Choices(
        all=tuple(indices),
        countable=tuple(i for i in indices if things[i].countable),
        recolourable=tuple(i for i in indices if things[i].recolour),
        coloured=tuple(i for i in indices if things[i].colors and not things[i].recolour),
    )


def colour_of(placed: Placed, things: Sequence[Thing]) -> str | None:
    """The colour an object shows, where it has a clear one."""
    own = things[placed.thing].colors
    return placed.colour or (own[0] if own else None)


def relation(first: Placed, second: Placed) -> str | None:
    """Where the first object lies seen from the second; None where it is not plain to see."""
    across, down = second.x - first.x, second.y - first.y
    apart = 0.45 * (first.size + second.size)
    if abs(across) >= max(apart, 1.4 * abs(down)):
        return "left of" if across > 0 else "right of"
    if abs(down) >= max(apart, 1.4 * abs(across)):
        return "above" if down > 0 else "below"
    return None


def sample_background(rng: random.Random, avoid: set[str]) -> Background:
    """A named background, seldom in a colour that an object has."""
    names = tuple(BACKGROUNDS)
    name = rng.choice(names)
    if name in avoid:
        name = rng.choice(names)
    tone = rng.uniform(-0.03, 0.03)
    tint = [value + tone + rng.uniform(-0.02, 0.02) for value in BACKGROUNDS[name]]
    slope = rng.uniform(0.04, 0.09) if rng.random() < 0.5 else 0.0
    first, second = (tuple(min(1.0, max(0.0, v + s)) for v in tint) for s in (slope, -slope))
    return Background(name, first, second, rng.uniform(0.0, 6.2832))  # type: ignore[arg-type]


def sample_alone(rng: random.Random) -> tuple[float, float, float]:
    """Centre and size of a lone object: mostly large and central, sometimes small and aside."""
    if rng.random() < 0.6:
        size = rng.uniform(72.0, 104.0)
        reach = (CANVAS - size) / 2
        across, down = (rng.triangular(-reach, reach, 0.0) for _ in range(2))
    else:
        size = rng.uniform(40.0, 88.0)
        reach = (CANVAS - size) / 2
        across, down = (rng.uniform(-reach, reach) for _ in range(2))
    return CANVAS / 2 + across, CANVAS / 2 + down, size


def spread(rng: random.Random, sizes: tuple[float, float]) -> tuple[float, float]:
    """Centres of two lengths laid one after the other within the canvas."""
    slack = CANVAS - sum(sizes)
    before, between = sorted((rng.uniform(0.0, slack), rng.uniform(0.0, slack)))
    return before + sizes[0] / 2, between + sizes[0] + sizes[1] / 2


def sample_pair(rng: random.Random, aligned: bool) -> list[tuple[float, float, float]]:
    """Two objects beside or above each other; aligned: little apart in the other direction."""
    low, high = PAIR_SIZES
    sizes = (rng.uniform(low, high), rng.uniform(low, high))
    along = spread(rng, sizes)
    if aligned:
        room = CANVAS / 2 - max(sizes) / 2
        middle = CANVAS / 2 + rng.uniform(-0.8, 0.8) * room
        other = [middle + rng.uniform(-8.0, 8.0) for _ in sizes]
    else:
        other = [rng.uniform(size / 2, CANVAS - size / 2) for size in sizes]
    other = [min(max(o, s / 2), CANVAS - s / 2) for o, s in zip(other, sizes, strict=True)]
    places = list(zip(along, other, sizes, strict=True))
    if rng.random() < 0.5:
        places = [(other, along, size) for along, other, size in places]
    rng.shuffle(places)
    return places


def fits(x: float, y: float, size: float, placed: Sequence[tuple[float, float, float]]) -> bool:
    """Whether a square keeps clear of those already placed."""
    return all(max(abs(x - a), abs(y - b)) >= 0.48 * (size + s) for a, b, s in placed)


def sample_places(rng: random.Random, count: int) -> list[tuple[float, float, float]]:
    """Places of several objects of about one size, shrunk when they do not fit."""
    base = rng.uniform(*COUNTED_SIZES[count])
    while True:
        placed: list[tuple[float, float, float]] = []
        for _ in range(12 * count):
            size = max(MIN_SIDE, base * rng.uniform(0.94, 1.06))
            x, y = (rng.uniform(size / 2, CANVAS - size / 2) for _ in range(2))
            if fits(x, y, size, placed):
                placed.append((x, y, size))
            if len(placed) == count:
                return placed
        base = max(MIN_SIDE, 0.97 * base)


def some_colour(rng: random.Random, thing: int, choices: Choices) -> str | None:
    """A colour for a recolourable object now and then, elsewhere None."""
    if thing in choices.recolourable and rng.random() < 0.4:
        return rng.choice(COLOURS)
    return None


def sample_objects(rng: random.Random, kind: str, choices: Choices) -> list[Placed]:
    """The objects of a scene of this kind."""
    if kind == "counting":
        count = rng.choice(tuple(COUNTED_SIZES))
        thing = rng.choice(choices.countable)
        colour = some_colour(rng, thing, choices)
        return [Placed(thing, colour, *place) for place in sample_places(rng, count)]
    if kind == "colors":
        if rng.random() < 0.25 and choices.coloured:
            return [Placed(rng.choice(choices.coloured), None, *sample_alone(rng))]
        thing = rng.choice(choices.recolourable)
        return [Placed(thing, rng.choice(COLOURS), *sample_alone(rng))]
    if kind == "color_attr":
        colours = rng.sample(COLOURS, 2)
        things = rng.sample(choices.recolourable, 2)
        if rng.random() < 0.1:
            things[1] = things[0]
    elif kind in ("two_object", "position"):
        things = rng.sample(choices.all, 2)
        colours = [some_colour(rng, thing, choices) for thing in things]  # type: ignore[misc]
    else:
        thing = rng.choice(choices.all)
        return [Placed(thing, some_colour(rng, thing, choices), *sample_alone(rng))]
    places = sample_pair(rng, aligned=kind == "position")
    return [Placed(t, c, *p) for t, c, p in zip(things, colours, places, strict=True)]


def sample_scene(
    rng: random.Random, things: Sequence[Thing], choices: Choices, kind: str | None = None
) -> Scene:
    """One scene; the kind is drawn by weight unless given."""
    kind = kind or rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    objects = sample_objects(rng, kind, choices)
    shown = {colour_of(placed, things) for placed in objects}
    background = sample_background(rng, {colour for colour in shown if colour})
    shadow = rng.uniform(0.15, 0.4) if rng.random() < 0.5 else 0.0
    return Scene(kind, background, tuple(objects), shadow)


def sample_scenes(
    count: int, seed: int, things: Sequence[Thing], kind: str | None = None
) -> list[Scene]:
    """Scenes of this seed; the same seed and vocabulary give the same scenes."""
    rng = random.Random(seed)
    choices = choices_of(things)
    return [sample_scene(rng, things, choices, kind) for _ in range(count)]
