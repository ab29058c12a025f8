"""Captions of scenes in many phrasings; what a caption leaves unsaid, the scene is free in."""

from __future__ import annotations

import random
from collections.abc import Sequence

from training.emoji import Thing
from training.scenes import CANVAS, LARGE, SMALL, Placed, Scene, colour_of, relation

NUMBERS = {2: ("two", "2"), 3: ("three", "3"), 4: ("four", "4")}
GROUPS = {
    2: ("a pair of {}", "a couple of {}"),
    3: ("a group of three {}", "a trio of {}"),
    4: ("a group of four {}", "a set of four {}"),
}
STYLES = (
    "a photo of {}",
    "a picture of {}",
    "an image of {}",
    "a 3d render of {}",
    "a rendering of {}",
    "an illustration of {}",
    "an icon of {}",
    "a photo showing {}",
    "a scene with {}",
)
STYLED = {"a", "an", "both", "two", "three", "four", "2", "3", "4"}  # first words that take one
BEHIND = (
    "{} on a {c} background",
    "{} on a {c} background",
    "{} on a {c} background",
    "{}, {c} background",
    "{} against {c}",
    "{} on {c}",
    "{} against a {c} background",
    "{} with a {c} backdrop",
    "{} with a {c} background",
    "{} in front of a {c} wall",
    "on a {c} background, {}",
    "a {c} background with {}",
)
PAIRS = (
    "{a} and {b}",
    "{a} and {b}",
    "{a} and {b}",
    "{a} next to {b}",
    "{a} beside {b}",
    "{a} with {b}",
    "{a}, {b}",
    "both {a} and {b}",
    "{a} together with {b}",
)
BESIDE = {
    "left of": (
        "{a} to the left of {b}",
        "{a} left of {b}",
        "{a} on the left of {b}",
        "{b} with {a} on its left",
        "{b} with {a} to its left",
        "{a} on the left and {b} on the right",
        "on the left {a}, on the right {b}",
    ),
    "right of": (
        "{a} to the right of {b}",
        "{a} right of {b}",
        "{a} on the right of {b}",
        "{b} with {a} on its right",
        "{b} with {a} to its right",
        "{a} on the right and {b} on the left",
        "on the right {a}, on the left {b}",
    ),
    "above": (
        "{a} above {b}",
        "{a} over {b}",
        "{a} on top of {b}",
        "{b} with {a} above it",
        "{a} at the top and {b} at the bottom",
        "above {b}, {a}",
    ),
    "below": (
        "{a} below {b}",
        "{a} under {b}",
        "{a} beneath {b}",
        "{a} underneath {b}",
        "{b} with {a} below it",
        "{a} at the bottom and {b} at the top",
    ),
}
MEASURES = ("pair", "bunch", "head", "bucket")  # these make one of what is not counted
OTHER_WORDS = {"gray": "grey", "purple": "violet", "teal": "turquoise"}
SMALL_WORDS, LARGE_WORDS = ("small", "little", "tiny"), ("large", "big", "huge")
ASIDE, CENTRAL = 16.0, 8.0  # pixels from the middle that count as aside, as central


def article(phrase: str) -> str:
    """``a`` or ``an`` before a phrase, by its sound."""
    if phrase.startswith(("uni", "ufo", "eu", "use")):
        return "a"
    return "an" if phrase[0] in "aeiou" or phrase.startswith("hour") else "a"


def with_article(phrase: str, thing: Thing) -> str:
    """The phrase with its article where the object takes one."""
    takes = thing.countable or any(f"{word} of " in phrase for word in MEASURES)
    return f"{article(phrase)} {phrase}" if takes else phrase


def colour_word(colour: str, rng: random.Random) -> str:
    """The colour, seldom by another name."""
    return OTHER_WORDS[colour] if colour in OTHER_WORDS and rng.random() < 0.25 else colour


def said_colour(scene: Scene, placed: Placed, things: Sequence[Thing], rng: random.Random) -> str:
    """The colour the caption gives an object, followed by a blank; empty where unsaid."""
    colour = colour_of(placed, things)
    if colour is None:
        return ""
    if scene.kind in ("colors", "color_attr"):
        chance = 1.0
    else:
        chance = 0.15 if placed.colour is None else 0.85
    return f"{colour_word(colour, rng)} " if rng.random() < chance else ""


def name_of(thing: Thing, rng: random.Random) -> tuple[str, str]:
    """Singular and plural of the noun, or of a synonym one time in three."""
    names = thing.names
    return rng.choice(names[1:]) if len(names) > 1 and rng.random() < 0.33 else names[0]


def phrase(scene: Scene, placed: Placed, things: Sequence[Thing], rng: random.Random) -> str:
    """One object with its article."""
    thing = things[placed.thing]
    words = said_colour(scene, placed, things, rng) + name_of(thing, rng)[0]
    return with_article(words, thing)


def size_word(placed: Placed, rng: random.Random) -> str:
    """A word for an uncommon size of a lone object, followed by a blank, now and then."""
    if rng.random() < 0.7 or SMALL < placed.size < LARGE:
        return ""
    return rng.choice(SMALL_WORDS if placed.size <= SMALL else LARGE_WORDS) + " "


def place_words(placed: Placed) -> str:
    """Where a lone object lies, empty where neither central nor clearly aside."""
    across, down = placed.x - CANVAS / 2, placed.y - CANVAS / 2
    if max(abs(across), abs(down)) <= CENTRAL:
        return "in the center"
    side = ("left" if across < 0 else "right") if abs(across) >= ASIDE else ""
    end = ("top" if down < 0 else "bottom") if abs(down) >= ASIDE else ""
    if side and end:
        return f"in the {end} {side} corner" if abs(across) + abs(down) > 50 else ""
    if side:
        return f"on the {side}"
    return f"at the {end}" if end else ""


def word_single(scene: Scene, things: Sequence[Thing], rng: random.Random) -> str:
    """A lone object: often only its name."""
    placed = scene.objects[0]
    thing = things[placed.thing]
    words = said_colour(scene, placed, things, rng) + name_of(thing, rng)[0]
    words = size_word(placed, rng) + words if thing.countable else words
    if rng.random() < 0.3:
        return words
    words = with_article(words, thing)
    where = place_words(placed) if rng.random() < 0.2 else ""
    return f"{words} {where}".strip()


def word_count(scene: Scene, things: Sequence[Thing], rng: random.Random) -> str:
    """Several of one object."""
    count, placed = len(scene.objects), scene.objects[0]
    words = said_colour(scene, placed, things, rng) + name_of(things[placed.thing], rng)[1]
    if rng.random() < 0.15:
        return rng.choice(GROUPS[count]).format(words)
    number = NUMBERS[count][0 if rng.random() < 0.75 else 1]
    return f"{number} {words}"


def word_pair(scene: Scene, things: Sequence[Thing], rng: random.Random) -> str:
    """Two objects, with their places where the kind asks for it or now and then."""
    first, second = rng.sample(scene.objects, 2)
    a, b = (phrase(scene, placed, things, rng) for placed in (first, second))
    where = relation(first, second)
    if where and (scene.kind == "position" or rng.random() < 0.15):
        return rng.choice(BESIDE[where]).format(a=a, b=b)
    if rng.random() < 0.1:
        a, b = (words.removeprefix("a ").removeprefix("an ") for words in (a, b))
        return f"{a} and {b}"
    return rng.choice(PAIRS).format(a=a, b=b)


def finish(words: str, scene: Scene, rng: random.Random) -> str:
    """The words with style, background, capital and full stop, each now and then."""
    starts_plainly = not words.startswith(("on the ", "above "))
    if rng.random() < 0.25 and words.split()[0] in STYLED:
        words = rng.choice(STYLES).format(words)
    if rng.random() < 0.4:
        frame = rng.choice(BEHIND if starts_plainly else BEHIND[:3])
        colour = colour_word(scene.background.name, rng)
        words = frame.format(words, c=colour).replace(" a orange", " an orange")
        words = "an" + words[1:] if words.startswith("a orange") else words
    if rng.random() < 0.1:
        words = words[0].upper() + words[1:]
    return words + "." if rng.random() < 0.1 else words


def caption(scene: Scene, rng: random.Random, things: Sequence[Thing]) -> str:
    """A caption that holds for the scene."""
    if len(scene.objects) == 1:
        words = word_single(scene, things, rng)
    elif scene.kind == "counting":
        words = word_count(scene, things, rng)
    else:
        words = word_pair(scene, things, rng)
    return finish(words, scene, rng)
