import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.video_support import THINGS, WHITE
from training import prompts as prompts_module
from training.captions import OTHER_WORDS, caption
from training.emoji import load_vocabulary
from training.prompts import (
    SET_SIZE,
    SETS,
    SHEET,
    TURBO_SETS,
)
from training.render import Bank, build_bank, render
from training.scenes import (
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    KINDS,
    Placed,
    Scene,
    colour_of,
    sample_scenes,
)
from training.turbo import read_captions

from tacache import models
from tacache.prompts import read_prompts
from tacache_lab.demo.demo_request import PROMPTS

pytestmark = pytest.mark.slow


def picture(rgb: tuple[int, int, int], round_off: bool) -> np.ndarray:
    line = np.linspace(-1, 1, 96)
    inside = line[:, None] ** 2 + line**2 <= 1 if round_off else np.ones((96, 96), bool)
    return np.where(inside[..., None], np.array([*rgb, 255]), 0).astype(np.uint8)


@pytest.fixture(scope="module")
def bank() -> Bank:
    fills = [(200, 20, 30), (30, 60, 220), (20, 160, 40), (20, 20, 20)]
    pictures = np.stack([picture(rgb, n % 2 == 0) for n, rgb in enumerate(fills)])
    return build_bank(pictures, THINGS)


def captions_of(kind: str, count: int = 400) -> list[tuple[Scene, str]]:
    rng = random.Random(1)
    return [(s, caption(s, rng, THINGS).lower()) for s in sample_scenes(count, 2, THINGS, kind)]


def strip_background(words: str) -> tuple[str, str | None]:
    """The caption without its background, and the colour said of it."""
    shades = "|".join([*BACKGROUNDS, *OTHER_WORDS.values()])
    found = re.search(
        rf"(?:on an? |against an? |with an? |an? |, )({shades}) (?:background|backdrop)(?: with|,)?"
        rf"|in front of an? ({shades}) wall|(?:on|against) ({shades})(?=\.?$)",
        words,
    )
    if not found:
        return words, None
    colour = next(group for group in found.groups() if group)
    return words[: found.start()] + words[found.end() :], base_colour(colour)


def base_colour(word: str) -> str:
    return {other: name for name, other in OTHER_WORDS.items()}.get(word, word)


def find_thing(words: str) -> list[tuple[int, int]]:
    """(position in the words, index of the object) of every name, in order."""
    found = []
    for index, thing in enumerate(THINGS):
        for name in {name for pair in thing.names for name in pair}:
            found += [(m.start(), index) for m in re.finditer(rf"\b{name}\b", words)]
    return sorted(found)


def colours_before(words: str) -> list[tuple[str, int]]:
    """(colour, object) where a colour stands before a name."""
    shades = "|".join([*COLOURS, "violet"])
    found = re.finditer(rf"\b({shades}) (\w+(?: plates?)?)", words)
    return [(base_colour(m[1]), find_thing(m[2])[0][1]) for m in found]


@pytest.mark.parametrize("kind", KINDS)
def test_captions_name_what_the_scene_holds(kind: str) -> None:
    for scene, words in captions_of(kind):
        rest, background = strip_background(words)
        assert background in (None, scene.background.name), words
        named = [index for _, index in find_thing(rest)]
        shown = [placed.thing for placed in scene.objects]
        assert sorted(named) == sorted(shown[:1] if kind == "counting" else shown), words


@pytest.mark.parametrize("kind", KINDS)
def test_captions_give_objects_their_colours(kind: str) -> None:
    for scene, words in captions_of(kind):
        said = colours_before(strip_background(words)[0])
        shown = [(colour_of(placed, THINGS), placed.thing) for placed in scene.objects]
        assert all(pair in shown for pair in said), (words, shown)
        if kind in ("colors", "color_attr"):
            assert sorted(said) == sorted(shown), (words, shown)


@pytest.mark.parametrize(("x", "y", "size"), [(40, 80, 40), (70.5, 50.25, 33.3), (64, 64, 104)])
def test_objects_are_drawn_where_the_scene_says(
    bank: Bank, x: float, y: float, size: float
) -> None:
    scene = Scene("single_object", WHITE, (Placed(1, "black", x, y, size),), 0.0)
    drawn = render([scene], bank)[0].float()
    assert drawn.shape == (3, CANVAS, CANVAS)
    mass = (255 - drawn).mean(0)
    line = torch.arange(CANVAS) + 0.5
    assert float((mass.sum(0) * line).sum() / mass.sum()) == pytest.approx(x, abs=0.2)
    assert float((mass.sum(1) * line).sum() / mass.sum()) == pytest.approx(y, abs=0.2)
    area = float(mass.sum() / mass.max())
    assert area == pytest.approx(size**2, rel=0.02)
    inner = mass[round(y) - 8 : round(y) + 8, round(x) - 8 : round(x) + 8]
    assert float(inner.max() - inner.min()) <= 1  # flat stays flat: the filter's weights sum to 1


def test_the_vocabulary_is_consistent() -> None:
    things = load_vocabulary()
    assert 250 <= len(things) <= 350
    assert len({thing.code for thing in things}) == len(things)
    owners: dict[str, str] = {}
    for thing in things:
        assert 1 <= len(thing.synonyms) <= 3, thing.noun
        for name in {name for pair in thing.names for name in pair}:
            assert name == name.strip().lower() != ""
            assert owners.setdefault(name, thing.noun) == thing.noun, name
        assert (
            thing.plural != thing.noun
            or not thing.countable
            or thing.noun in ("deer", "fish", "sheep", "jellyfish")
        )
        assert set(thing.colors) <= {*COLOURS, "gray"}
    assert sum(thing.recolour for thing in things) >= 40


FOLDER = Path(prompts_module.__file__).parent
OWN = models.embedded("tiny-flux").folder


def bare(prompts: list[str] | tuple[str, ...]) -> set[str]:
    return {prompt.lower().removeprefix("a photo of ") for prompt in prompts}


def test_the_command_writes_the_committed_prompts(tmp_path, monkeypatch) -> None:
    output = tmp_path / "following.jsonl"
    command = ["prompts", "-o", str(output), "--sets", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    prompts_module.main()
    assert output.read_bytes() == (FOLDER / "following.jsonl").read_bytes()
    for name in ("sheet.txt", "turbo.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    for name in SETS:
        made = (tmp_path / f"{name}.jsonl").read_bytes()
        assert made == (OWN / f"{name}.jsonl").read_bytes()


def test_the_models_prompts_are_in_no_other_set() -> None:
    known = [json.loads(line) for line in (FOLDER / "following.jsonl").read_text().splitlines()]
    others = [
        bare([item["prompt"] for item in known]),
        bare(SHEET.splitlines()),
        bare(PROMPTS),
    ]
    calibration, test = (bare(read_prompts(OWN / f"{name}.jsonl")) for name in SETS)
    assert len(calibration) == len(test) == SET_SIZE == 60
    assert not calibration & test
    turbo = bare([caption["prompt"] for caption in read_captions()])
    assert len(turbo) == sum(TURBO_SETS.values())
    for other in others:
        assert not (calibration | test) & other
        assert not (calibration | test | other) & turbo
