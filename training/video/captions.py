"""Captions of clips in many phrasings; what a caption leaves unsaid, the clip is free in."""

from __future__ import annotations

import random
from collections.abc import Sequence

from training.captions import colour_word, name_of, with_article
from training.emoji import Thing
from training.scenes import Placed, colour_of
from training.video.scenes import Actor, Clip

STYLES = (
    "a video of {}",
    "a clip of {}",
    "an animation of {}",
    "a short film of {}",
    "a gif of {}",
    "footage of {}",
)
BEHIND = (
    "{} on a {c} background",
    "{} on a {c} background",
    "{} on a {c} background",
    "{} against a {c} background",
    "{} on {c}",
    "{}, {c} background",
    "{} in front of a {c} wall",
    "on a {c} background, {}",
)
# a motion -> verb phrases as (for one: it ...s, as a participle: ...ing)
VERBS: dict[str, tuple[tuple[str, str], ...]] = {
    "still": (
        ("stands still", "standing still"),
        ("does not move", "not moving"),
        ("stays in place", "staying in place"),
        ("rests", "resting"),
    ),
    "left": (
        ("moves to the left", "moving to the left"),
        ("moves left", "moving left"),
        ("slides to the left", "sliding to the left"),
        ("goes from right to left", "going from right to left"),
        ("glides left", "gliding left"),
    ),
    "right": (
        ("moves to the right", "moving to the right"),
        ("moves right", "moving right"),
        ("slides to the right", "sliding to the right"),
        ("goes from left to right", "going from left to right"),
        ("glides right", "gliding right"),
    ),
    "up": (
        ("moves up", "moving up"),
        ("rises", "rising"),
        ("goes up", "going up"),
        ("moves upwards", "moving upwards"),
        ("flies up", "flying up"),
    ),
    "down": (
        ("moves down", "moving down"),
        ("falls", "falling"),
        ("goes down", "going down"),
        ("moves downwards", "moving downwards"),
        ("sinks", "sinking"),
    ),
    "bounce": (
        ("bounces up and down", "bouncing up and down"),
        ("bounces", "bouncing"),
        ("jumps up and down", "jumping up and down"),
        ("hops on the spot", "hopping on the spot"),
    ),
    "hop left": (
        ("hops to the left", "hopping to the left"),
        ("bounces to the left", "bouncing to the left"),
        ("jumps to the left", "jumping to the left"),
    ),
    "hop right": (
        ("hops to the right", "hopping to the right"),
        ("bounces to the right", "bouncing to the right"),
        ("jumps to the right", "jumping to the right"),
    ),
    "grow": (
        ("grows", "growing"),
        ("gets bigger", "getting bigger"),
        ("becomes larger", "becoming larger"),
        ("comes closer", "coming closer"),
    ),
    "shrink": (
        ("shrinks", "shrinking"),
        ("gets smaller", "getting smaller"),
        ("becomes smaller", "becoming smaller"),
        ("goes far away", "going far away"),
    ),
    "turn right": (
        ("turns clockwise", "turning clockwise"),
        ("spins clockwise", "spinning clockwise"),
        ("rotates clockwise", "rotating clockwise"),
    ),
    "turn left": (
        ("turns counterclockwise", "turning counterclockwise"),
        ("spins counterclockwise", "spinning counterclockwise"),
        ("rotates counterclockwise", "rotating counterclockwise"),
    ),
    "rock": (
        ("rocks from side to side", "rocking from side to side"),
        ("sways", "swaying"),
        ("wobbles", "wobbling"),
        ("tilts back and forth", "tilting back and forth"),
    ),
    "circle right": (
        ("moves in a circle clockwise", "moving in a circle clockwise"),
        ("circles clockwise", "circling clockwise"),
    ),
    "circle left": (
        ("moves in a circle counterclockwise", "moving in a circle counterclockwise"),
        ("circles counterclockwise", "circling counterclockwise"),
    ),
    "animated": (
        ("comes alive", "coming alive"),
        ("moves by itself", "moving by itself"),
    ),
}
SPEED_WORDS: dict[str, tuple[str, ...]] = {
    "slow": ("slowly", "slowly", "gently"),
    "medium": (),
    "fast": ("fast", "quickly", "rapidly"),
}
PAIRED = (("{} and {}", "{}, {}", "{} while {}"), ("{} and {}", "{}, {}", "{} next to {}"))
CROSSING = (
    "{a} and {b} cross",
    "{a} and {b} pass each other",
    "{a} crosses {b}",
    "{a} passes {b}",
)
ACROSS = {"left", "right"}


def caption(clip: Clip, rng: random.Random, things: Sequence[Thing]) -> str:
    """A caption that holds for the clip."""
    one = all(things[actor.thing].countable for actor in clip.actors)
    participle = rng.random() < 0.5 or not one
    words = WORDED.get(clip.kind, word_each)(clip, rng, things, participle)
    return finish(words, clip, rng, participle)


def word_each(clip: Clip, rng: random.Random, things: Sequence[Thing], participle: bool) -> str:
    """Every object with its own motion."""
    actors = rng.sample(clip.actors, len(clip.actors))
    parts = [phrase(a, rng, things) + " " + moving(a, rng, participle) for a in actors]
    return parts[0] if len(parts) == 1 else rng.choice(PAIRED[participle]).format(*parts)


def word_animated(clip: Clip, rng: random.Random, things: Sequence[Thing], participle: bool) -> str:
    """An object with a motion of its own: `an animated cat`."""
    if rng.random() < 0.4:
        return word_each(clip, rng, things, participle)
    thing = things[clip.actors[0].thing]
    lively = rng.choice(("animated", "animated", "lively"))
    return with_article(f"{lively} {name_of(thing, rng)[0]}", thing)


def word_together(clip: Clip, rng: random.Random, things: Sequence[Thing], participle: bool) -> str:
    """Two objects with one motion, in one verb where the words allow."""
    if not participle or rng.random() < 0.3:
        return word_each(clip, rng, things, participle)
    a, b = (phrase(actor, rng, things) for actor in rng.sample(clip.actors, 2))
    return f"{a} and {b} {moving(clip.actors[0], rng, participle=True)}"


def word_cross(clip: Clip, rng: random.Random, things: Sequence[Thing], participle: bool) -> str:
    """Two objects that pass each other, often with a direction each."""
    if participle or rng.random() < 0.2:
        return word_each(clip, rng, things, participle)
    first, second = rng.sample(clip.actors, 2)
    a, b = (phrase(actor, rng, things) for actor in (first, second))
    if rng.random() < 0.3:
        from_to = "from left and right" if first.motion in ACROSS else "from above and below"
        return f"{a} and {b} cross, coming {from_to}"
    return rng.choice(CROSSING).format(a=a, b=b)


WORDED = {
    "animated": word_animated,
    "together": word_together,
    "cross": word_cross,
}


def moving(actor: Actor, rng: random.Random, participle: bool) -> str:
    """The motion in words, often with its speed where that is slow or fast."""
    words = rng.choice(VERBS[actor.motion])[participle]
    speeds = SPEED_WORDS[actor.speed]
    said = actor.motion not in ("still", "animated") and speeds and rng.random() < 0.55
    return f"{words} {rng.choice(speeds)}" if said else words


def phrase(actor: Actor, rng: random.Random, things: Sequence[Thing]) -> str:
    """The object with its article, and its colour where it has another than its own."""
    thing = things[actor.thing]
    shown = colour_of(Placed(actor.thing, actor.colour, 0, 0, 0), things)
    chance = 0.1 if actor.colour is None else 0.9
    colour = f"{colour_word(shown, rng)} " if shown and rng.random() < chance else ""
    return with_article(colour + name_of(thing, rng)[0], thing)


def finish(words: str, clip: Clip, rng: random.Random, participle: bool) -> str:
    """The words with style and background, each now and then."""
    if participle and rng.random() < 0.25 and words.split()[0] in ("a", "an"):
        words = rng.choice(STYLES).format(words)
    if rng.random() < 0.5:
        colour = colour_word(clip.background.name, rng)
        words = rng.choice(BEHIND).format(words, c=colour).replace(" a orange", " an orange")
    if rng.random() < 0.08:
        words = words[0].upper() + words[1:]
    return words + "." if rng.random() < 0.08 else words
