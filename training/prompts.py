"""Prompts with known answers, in the manner of GenEval, the sheet's prompts and the model's own.

``python -m training.prompts -o training/following.jsonl`` writes one JSON object a line: ``tag``,
``prompt`` and ``include``, a list of ``class`` (a noun of the vocabulary), ``count`` and, where
asked for, ``color`` and ``position`` as [relation, index of the other object in the list]. The
sheet's prompts go to ``sheet.txt`` beside it, and to ``turbo.jsonl`` the captions of the
distillation (``set`` is ``train`` or ``held-out``); ``calibration.jsonl`` and ``test.jsonl``, of
``category``, ``prompt`` and, where the detector can tell the answer, ``tag`` and ``include``, into
the model's folder. No prompt is in two of these files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacache.models import embedded
from tacache_lab.demo.demo_request import PROMPTS
from training.captions import BEHIND, BESIDE, NUMBERS, with_article
from training.emoji import FOLDER, Thing, load_vocabulary
from training.scenes import BACKGROUNDS, COLOURS

Prompt = dict[str, Any]
Made = tuple[str, list[Prompt]]  # a prompt and its answers
Kind = Callable[[random.Random, Sequence[Thing]], Made]
EACH = 20
SETS, SET_SIZE, SETS_SEED = ("calibration", "test"), 60, 1
TURBO_SETS, TURBO_SEED = {"train": 680, "held-out": 24}, 2
STYLE = "a photo of "  # how GenEval begins every prompt
RELATIONS = tuple(BESIDE)
PLAIN = {
    "left of": "to the left of",
    "right of": "to the right of",
    "above": "above",
    "below": "below",
}
SHEET = """\
a red apple
a cat
a dog on a blue background
a rocket
a spaceship on a black background
an automobile
a puppy
a bunny on a green background
a slice of pizza
an aeroplane against a pink backdrop
a donut
two cats
three rockets
four strawberries
3 balloons on a yellow background
two dice
four fish
a trio of penguins
a blue car
a purple umbrella
a green heart on a white background
a yellow t-shirt
a pink backpack
a black telephone
a cat to the left of a dog
a dog with a cat on its left
a hamburger above a guitar
an owl below a crescent moon
a bicycle to the right of a house
a lion on the right and a tiger on the left
a cup of coffee under an umbrella
a blue car and a red book
a green apple and a yellow star
a purple dress and an orange heart
a white rose next to a black handbag
a pink balloon above a blue gift
a banana and a carrot
a kitten beside a birthday cake on an orange background
a jack-o-lantern and a ghost on a purple background
a frog with a crown
"""


def answer(thing: Thing, count: int = 1, **more: Any) -> Prompt:
    """What a picture must hold."""
    return {"class": thing.noun, "count": count, **more}


def single_object(rng: random.Random, things: Sequence[Thing]) -> Made:
    """One object."""
    thing = rng.choice(things)
    return f"{STYLE}{with_article(thing.noun, thing)}", [answer(thing)]


def two_object(rng: random.Random, things: Sequence[Thing]) -> Made:
    """Two different objects."""
    first, second = rng.sample(things, 2)
    words = [with_article(thing.noun, thing) for thing in (first, second)]
    return f"{STYLE}{words[0]} and {words[1]}", [answer(first), answer(second)]


def counting(rng: random.Random, things: Sequence[Thing]) -> Made:
    """Two, three or four of one object."""
    thing = rng.choice([thing for thing in things if thing.countable])
    count = rng.choice(tuple(NUMBERS))
    return f"{STYLE}{NUMBERS[count][0]} {thing.plural}", [answer(thing, count)]


def colors(rng: random.Random, things: Sequence[Thing]) -> Made:
    """One object in a colour that is not its own."""
    thing = rng.choice([thing for thing in things if thing.recolour])
    colour = rng.choice([colour for colour in COLOURS if colour not in thing.colors])
    words = with_article(f"{colour} {thing.noun}", thing)
    return f"{STYLE}{words}", [answer(thing, color=colour)]


def position(rng: random.Random, things: Sequence[Thing]) -> Made:
    """Two objects, the second placed by the first; the second in the list is the reference."""
    first, second = rng.sample(things, 2)
    where = rng.choice(RELATIONS)
    words = [with_article(thing.noun, thing) for thing in (first, second)]
    prompt = f"{STYLE}{words[0]} {PLAIN[where]} {words[1]}"
    return prompt, [answer(first, position=[where, 1]), answer(second)]


def color_attr(rng: random.Random, things: Sequence[Thing]) -> Made:
    """Two objects in two colours."""
    pair = rng.sample([thing for thing in things if thing.recolour], 2)
    chosen = rng.sample(COLOURS, 2)
    words = [with_article(f"{c} {t.noun}", t) for c, t in zip(chosen, pair, strict=True)]
    answers = [answer(t, color=c) for c, t in zip(chosen, pair, strict=True)]
    return f"{STYLE}{words[0]} and {words[1]}", answers


KINDS: tuple[Kind, ...] = (
    single_object,
    two_object,
    counting,
    colors,
    position,
    color_attr,
)


def make_prompts(things: Sequence[Thing], each: int = EACH, seed: int = 0) -> list[Prompt]:
    """The test set: ``each`` different prompts of every kind."""
    rng = random.Random(seed)
    prompts: list[Prompt] = []
    for kind in KINDS:
        made: dict[str, list[Prompt]] = {}
        while len(made) < each:
            prompt, include = kind(rng, things)
            made.setdefault(prompt, include)
        prompts += [{"tag": kind.__name__, "prompt": p, "include": i} for p, i in made.items()]
    return prompts


def backgrounds(rng: random.Random, things: Sequence[Thing]) -> Made:
    """One object on a coloured ground, in several forms; no detector tells the ground."""
    thing = rng.choice(things)
    ground = rng.choice([name for name in BACKGROUNDS if name not in thing.colors])
    words = rng.choice(BEHIND).format(with_article(thing.noun, thing), c=ground)
    return words.replace("a orange", "an orange"), []


def synonyms(rng: random.Random, things: Sequence[Thing]) -> Made:
    """One object by another name."""
    thing = rng.choice([thing for thing in things if thing.synonyms])
    return with_article(rng.choice(list(thing.synonyms)), thing), [answer(thing)]


def place(rng: random.Random, things: Sequence[Thing]) -> Made:
    """Two objects and their places, in every form the captions have."""
    chosen = rng.sample([thing for thing in things if thing.countable], 2)  # "on its left"
    first, second = (with_article(thing.noun, thing) for thing in chosen)
    where = rng.choice(RELATIONS)
    prompt = rng.choice(BESIDE[where]).format(a=first, b=second)
    return prompt, [answer(chosen[0], position=[where, 1]), answer(chosen[1])]


# category -> how its prompts are made, and the tag of their answers where it has some
CATEGORIES: dict[str, tuple[Kind, str | None]] = {
    "single object": (single_object, "single_object"),
    "two objects": (two_object, "two_object"),
    "counting": (counting, "counting"),
    "colours": (colors, "colors"),
    "position": (place, "position"),
    "colour attribution": (color_attr, "color_attr"),
    "backgrounds": (backgrounds, None),
    "synonyms": (synonyms, "single_object"),
}


def categorised(category: str, rng: random.Random, things: Sequence[Thing]) -> Prompt:
    """A prompt of a category without GenEval's style, with its answers where it has some."""
    make, tag = CATEGORIES[category]
    prompt, include = make(rng, things)
    answers = {"tag": tag, "include": include} if tag else {}
    return {"category": category, "prompt": prompt.removeprefix(STYLE), **answers}


def make_sets(
    things: Sequence[Thing],
    taken: Sequence[str],
    sizes: Mapping[str, int] | None = None,
    seed: int = SETS_SEED,
) -> dict[str, list[Prompt]]:
    """Return sets of prompts, by default the model's own: categories in turn, none taken."""
    rng = random.Random(seed)
    used = {prompt.lower().removeprefix(STYLE) for prompt in taken}
    sets: dict[str, list[Prompt]] = {}
    for name, size in (sizes or dict.fromkeys(SETS, SET_SIZE)).items():
        sets[name] = []
        while len(sets[name]) < size:
            category = tuple(CATEGORIES)[len(sets[name]) % len(CATEGORIES)]
            made = categorised(category, rng, things)
            if made["prompt"] not in used:
                used.add(made["prompt"])
                sets[name].append(made)
    return sets


def make_captions(things: Sequence[Thing], taken: Sequence[str]) -> list[Prompt]:
    """Return the captions of the distillation, none of those taken, each with its set."""
    sets = make_sets(things, taken, TURBO_SETS, TURBO_SEED)
    return [
        {"set": name, "category": caption["category"], "prompt": caption["prompt"]}
        for name, captions in sets.items()
        for caption in captions
    ]


def write_lines(path: Path, prompts: Sequence[Prompt]) -> None:
    """Prompts as JSON lines."""
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts), encoding="utf-8")


def main() -> None:
    """Write the test set with answers, the sheet, the model's prompts and the captions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "following.jsonl")
    parser.add_argument("--each", type=int, default=EACH, help="prompts of every kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sets", type=Path, default=embedded("tiny-flux").folder)
    arguments = parser.parse_args()
    things = load_vocabulary()
    prompts = make_prompts(things, arguments.each, arguments.seed)
    write_lines(arguments.output, prompts)
    sheet = arguments.output.with_name("sheet.txt")
    sheet.write_text(SHEET, encoding="utf-8")
    print(f"{len(prompts)} prompts -> {arguments.output}; the sheet's -> {sheet}")
    taken = [*(prompt["prompt"] for prompt in prompts), *SHEET.splitlines(), *PROMPTS]
    for name, chosen in make_sets(things, taken).items():
        write_lines(arguments.sets / f"{name}.jsonl", chosen)
        print(f"{len(chosen)} prompts -> {arguments.sets / name}.jsonl")
        taken += [prompt["prompt"] for prompt in chosen]
    write_lines(arguments.output.with_name("turbo.jsonl"), make_captions(things, taken))


if __name__ == "__main__":
    main()
