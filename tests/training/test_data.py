import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tacache import models
from tacache.lab.demo import run as demo
from tacache.lab.following import TAGS, read_answers
from tacache.prompts import read_prompts
from training import prompts as prompts_module
from training.captions import BESIDE, GROUPS, NUMBERS, OTHER_WORDS, caption, place_words
from training.emoji import Thing, load_vocabulary
from training.prompts import CATEGORIES, SET_SIZE, SETS, SHEET, make_prompts, make_sets, place
from training.recolour import TARGETS, recolour, to_hsv, to_rgb
from training.render import Bank, build_bank, render
from training.scenes import (
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    KINDS,
    LARGE,
    SMALL,
    Background,
    Placed,
    Scene,
    colour_of,
    relation,
    sample_scenes,
)

THINGS = [
    Thing("1", "disc", "discs", "shape", {"round plate": "round plates"}, ("red",), recolour=True),
    Thing("2", "box", "boxes", "shape", {"crate": "crates"}, ("blue",), recolour=True),
    Thing("3", "apple", "apples", "fruit", {"pippin": "pippins"}),
    Thing("4", "scissors", "scissors", "tool", {"shears": "shears"}, countable=False),
]
WHITE = Background("white", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 0.0)


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


def test_captions_count() -> None:
    for scene, words in captions_of("counting"):
        count = len(scene.objects)
        groups = [form.format("").strip() for form in GROUPS[count]]
        wanted = [*NUMBERS[count], *groups]
        assert any(re.search(rf"\b{number} ", words) for number in wanted), words
        for other in set(NUMBERS) - {count}:
            assert not any(re.search(rf"\b{number}\b", words) for number in NUMBERS[other])


def said_relation(words: str) -> tuple[str, int, int] | None:
    """The relation a caption states between two objects, by every form there is."""
    for where, forms in BESIDE.items():
        for form in sorted(forms, key=len, reverse=True):
            pattern = re.escape(form).replace(r"\{a\}", "(?P<a>.+)").replace(r"\{b\}", "(?P<b>.+)")
            if found := re.search(pattern, words):
                first, second = find_thing(found["a"]), find_thing(found["b"])
                if len(first) == len(second) == 1:
                    return where, first[0][1], second[0][1]
    return None


def test_captions_state_positions_that_hold() -> None:
    seen = set()
    for scene, words in captions_of("position"):
        stated = said_relation(strip_background(words)[0])
        assert stated is not None, words
        where, a, b = stated
        by_thing = {placed.thing: placed for placed in scene.objects}
        assert relation(by_thing[a], by_thing[b]) == where, words
        seen.add(where)
    assert seen == set(BESIDE)


def test_captions_vary_and_are_well_formed() -> None:
    pairs = [pair for kind in KINDS for pair in captions_of(kind, 200)]
    assert len({words for _, words in pairs}) > 400
    for _, words in pairs:
        assert "  " not in words
        assert words == words.strip()
        assert not re.search(r"\ba (?:orange|apple)|\ban (?!orange|apple|icon|ill|image)", words)
        assert not re.search(r"\ba (?:scissors|shears)", words)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (64, 64, "in the center"),
        (30, 66, "on the left"),
        (98, 60, "on the right"),
        (64, 30, "at the top"),
        (70, 98, "at the bottom"),
        (30, 98, "in the bottom left corner"),
        (76, 64, ""),
    ],
)
def test_a_lone_object_is_said_to_lie_where_it_does(x: float, y: float, words: str) -> None:
    assert place_words(Placed(0, None, x, y, 40.0)) == words


def test_captions_call_small_only_what_is_small() -> None:
    for scene, words in captions_of("single_object"):
        size = scene.objects[0].size
        if re.search(r"\b(small|little|tiny)\b", words):
            assert size <= SMALL
        if re.search(r"\b(large|big|huge)\b", words):
            assert size >= LARGE


def test_scenes_lie_within_the_canvas_and_keep_apart() -> None:
    for scene in sample_scenes(2000, 3, THINGS):
        for n, one in enumerate(scene.objects):
            assert one.size >= 32
            assert one.size / 2 - 1e-6 <= min(one.x, one.y)
            assert max(one.x, one.y) <= CANVAS - one.size / 2 + 1e-6
            for other in scene.objects[:n]:
                gap = max(abs(one.x - other.x), abs(one.y - other.y))
                assert gap >= 0.47 * (one.size + other.size)


def test_scenes_depend_on_the_seed_alone(bank: Bank) -> None:
    first, again = sample_scenes(20, 5, THINGS), sample_scenes(20, 5, THINGS)
    assert first == again
    assert first != sample_scenes(20, 6, THINGS)
    assert torch.equal(render(first, bank), render(again, bank))
    worded = [[caption(s, random.Random(n), THINGS) for n, s in enumerate(first)] for _ in "ab"]
    assert worded[0] == worded[1]


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


def test_a_batch_draws_the_same_as_one_by_one(bank: Bank) -> None:
    scenes = sample_scenes(30, 7, THINGS)
    together = render(scenes, bank).int()
    alone = torch.cat([render([scene], bank) for scene in scenes]).int()
    assert int((together - alone).abs().max()) <= 1


def test_shadows_darken_below_the_object(bank: Bank) -> None:
    placed = (Placed(1, None, 64.0, 64.0, 40.0),)
    plain, shaded = render(
        [Scene("single_object", WHITE, placed, shadow) for shadow in (0.0, 0.4)], bank
    )
    assert int(plain[0, 86, 64]) == 255
    assert int(shaded[0, 86, 64]) < 230
    assert torch.equal(plain[:, 64, 64], shaded[:, 64, 64])


@pytest.mark.parametrize("colour", COLOURS)
def test_recoloured_objects_have_the_colour(bank: Bank, colour: str) -> None:
    sprite = bank.sprites[bank.rows[0, colour]].float() / 255
    hue, saturation, value = (float(c[48, 48]) for c in to_hsv(sprite[:3]))
    wanted = TARGETS["red" if colour == "red" else colour]
    assert abs((hue - wanted[0] + 180) % 360 - 180) < 10 or wanted[1] < 0.2
    assert saturation == pytest.approx(wanted[1], abs=0.12)
    assert value == pytest.approx(wanted[2], abs=0.12)


def test_recolouring_stays_in_range_and_keeps_gray() -> None:
    noise = torch.rand(4, 16, 16, generator=torch.Generator().manual_seed(0))
    for colour in COLOURS:
        changed = recolour(noise, colour)
        assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    gray = torch.full((4, 8, 8), 0.5)
    assert torch.allclose(recolour(gray, "red"), gray)
    assert torch.allclose(to_rgb(*to_hsv(noise[:3])), noise[:3], atol=1e-5)


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


def test_prompts_have_known_answers() -> None:
    things = load_vocabulary()
    prompts = make_prompts(things, each=10)
    nouns = {thing.noun: thing for thing in things}
    assert len({prompt["prompt"] for prompt in prompts}) == len(prompts) == 60
    for prompt in prompts:
        for wanted in prompt["include"]:
            thing = nouns[wanted["class"]]
            name = thing.noun if wanted["count"] == 1 else thing.plural
            assert name in prompt["prompt"]
            assert wanted.get("color", "") in prompt["prompt"]
            assert wanted.get("position", ["left of", 1])[0] in BESIDE
    assert len(SHEET.splitlines()) == 40


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
    assert (tmp_path / "sheet.txt").read_bytes() == (FOLDER / "sheet.txt").read_bytes()
    for name in SETS:
        made = (tmp_path / f"{name}.jsonl").read_bytes()
        assert made == (OWN / f"{name}.jsonl").read_bytes()


def test_the_models_prompts_are_in_no_other_set() -> None:
    known = [json.loads(line) for line in (FOLDER / "following.jsonl").read_text().splitlines()]
    others = [
        bare([item["prompt"] for item in known]),
        bare(SHEET.splitlines()),
        bare(demo.PROMPTS),
    ]
    calibration, test = (bare(read_prompts(OWN / f"{name}.jsonl")) for name in SETS)
    assert len(calibration) == len(test) == SET_SIZE == 60
    assert not calibration & test
    for other in others:
        assert not (calibration | test) & other


def test_the_models_prompts_are_balanced_from_the_first_on() -> None:
    for chosen in make_sets(load_vocabulary(), []).values():
        categories = [one["category"] for one in chosen]
        assert set(categories[: len(CATEGORIES)]) == set(CATEGORIES)
        counts = Counter(categories)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_the_models_prompts_have_answers_where_they_can_be_checked() -> None:
    nouns = {thing.noun: thing for thing in load_vocabulary()}
    for name in SETS:
        lines = [json.loads(line) for line in (OWN / f"{name}.jsonl").read_text().splitlines()]
        answers = read_answers(OWN / f"{name}.jsonl")
        assert {item.tag for item in answers.values()} == set(TAGS)
        for line in lines:
            item = answers.get(line["prompt"])
            assert (item is None) == (line["category"] == "backgrounds")
            for wanted in item.include if item else ():
                thing = nouns[wanted.noun]
                names = {thing.noun, thing.plural, *thing.synonyms}
                assert any(word in line["prompt"] for word in names)
                assert (wanted.color or "") in line["prompt"]


def test_places_are_told_from_the_first_object() -> None:
    """Whichever way a prompt is worded, as the captions of scenes have it."""
    things, rng = load_vocabulary(), random.Random(0)
    for _ in range(200):
        prompt, (first, second) = place(rng, things)
        where, other = first["position"]
        assert other == 1
        words = [f" {entry['class']}" for entry in (first, second)]
        forms = {form.format(a="a" + words[0], b="a" + words[1]) for form in BESIDE[where]}
        assert prompt.replace("an ", "a ") in {form.replace("an ", "a ") for form in forms}


def test_the_models_prompts_avoid_what_is_taken() -> None:
    things = load_vocabulary()
    first = make_sets(things, [])["calibration"]
    taken = [f"A photo of {one['prompt']}" for one in first]
    again = {one["prompt"] for chosen in make_sets(things, taken).values() for one in chosen}
    assert not again & {one["prompt"] for one in first}
