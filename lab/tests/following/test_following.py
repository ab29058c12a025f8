import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from tacache.errors import HostError
from tacache_lab.following import (
    SIDE,
    TAGS,
    Architecture,
    Detector,
    Found,
    Item,
    Maps,
    check,
    detect,
    judge,
    load_detector,
    read_answers,
    read_items,
    relations,
    save_detector,
    score,
)

TINY = Architecture(
    nouns=("cat", "dog", "cup"), colours=("red", "blue"), widths=(4, 4, 8, 8), depths=(1, 1, 1)
)


def found(noun, x=64.0, y=64.0, colour=None, confidence=0.9, size=40.0):
    return Found(noun=noun, confidence=confidence, x=x, y=y, size=size, colour=colour)


def item(tag, *include):
    entries = [{"count": 1, **entry} for entry in include]
    return Item.model_validate({"tag": tag, "prompt": "", "include": entries})


CAT, DOG = {"class": "cat"}, {"class": "dog"}
LEFT = item("position", {**CAT, "position": ["left of", 1]}, DOG)


def test_a_single_object():
    assert check([found("cat")], item("single_object", CAT))
    assert check([found("cat", 20), found("cat", 90)], item("single_object", CAT))  # at least one
    assert not check([found("dog")], item("single_object", CAT))
    assert not check([], item("single_object", CAT))


def test_two_objects():
    assert check([found("dog"), found("cup"), found("cat")], item("two_object", CAT, DOG))
    assert not check([found("dog"), found("dog")], item("two_object", CAT, DOG))


@pytest.mark.parametrize(("count", "right"), [(1, False), (2, False), (3, True), (4, False)])
def test_counts_are_exact(count, right):
    cats = [found("cat", 30.0 * i) for i in range(count)]
    assert check([*cats, found("dog")], item("counting", {**CAT, "count": 3})) is right


def test_colours():
    red = item("colors", {**CAT, "color": "red"})
    assert check([found("cat", colour="red")], red)
    assert not check([found("cat", colour="blue")], red)
    assert not check([found("cat")], red)
    assert not check([found("dog", colour="red")], red)


def test_the_surest_objects_are_those_that_count():
    sure, less = found("cat", colour="red"), found("cat", colour="blue", confidence=0.5)
    assert check([less, sure], item("colors", {**CAT, "color": "red"}))
    assert not check([less, sure], item("colors", {**CAT, "color": "blue"}))


@pytest.mark.parametrize(
    ("where", "x", "y"),
    [("left of", 20, 64), ("right of", 108, 64), ("above", 64, 20), ("below", 64, 108)],
)
def test_positions(where, x, y):
    wanted = item("position", {**CAT, "position": [where, 1]}, DOG)
    assert check([found("cat", x, y), found("dog")], wanted)
    assert not check([found("dog", x, y), found("cat")], wanted)


def test_a_reference_may_come_first():
    wanted = item("position", DOG, {**CAT, "position": ["left of", 0]})
    assert check([found("cat", 20), found("dog", 100)], wanted)
    assert not check([found("cat", 100), found("dog", 20)], wanted)


def test_positions_need_both_objects():
    assert not check([found("cat", 20)], LEFT)
    assert not check([found("dog", 20)], LEFT)


def test_relations_as_geneval_has_them():
    assert relations(found("cat", 20, 20), found("dog", 100, 100)) == {"left of", "above"}
    assert relations(found("cat", 60), found("dog", 64)) == set()  # all but on each other
    assert relations(found("cat"), found("dog")) == set()
    assert relations(found("cat", 20, 60), found("dog", 100, 64)) == {"left of"}


def test_colour_attribution():
    wanted = item("color_attr", {**CAT, "color": "red"}, {**DOG, "color": "blue"})
    assert check([found("cat", colour="red"), found("dog", colour="blue")], wanted)
    assert not check([found("cat", colour="blue"), found("dog", colour="red")], wanted)
    assert not check([found("cat", colour="red")], wanted)


@pytest.mark.parametrize("reference", [0, 2, -1])
def test_references_must_exist(reference):
    with pytest.raises(ValidationError, match="not there"):
        item("position", {**CAT, "position": ["left of", reference]}, DOG)


def test_the_score_is_the_mean_over_tags():
    results = [("counting", True), ("single_object", True), ("counting", False), ("colors", False)]
    scores = score(results)
    assert scores == {"single_object": 1.0, "counting": 0.5, "colors": 0.0, "overall": 0.5}
    assert list(scores) == ["single_object", "counting", "colors", "overall"]
    assert score([(tag, True) for tag in TAGS])["overall"] == 1.0


def test_nothing_and_unknown_tags_do_not_score():
    with pytest.raises(HostError, match="nothing to score"):
        score([])
    with pytest.raises(HostError, match="unknown tag 'texture'"):
        score([("texture", True)])


class Fixed(nn.Module):
    """Answers with the same maps whatever it sees."""

    def __init__(self, *objects):
        super().__init__()
        self.architecture = TINY
        centre, nouns = torch.full((1, 1, 16, 16), -8.0), torch.zeros(1, 3, 16, 16)
        colours, box = torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16)
        for noun, colour, i, j, logit in objects:
            centre[0, 0, j, i] = logit
            nouns[0, noun, j, i] = colours[0, colour, j, i] = 9.0
            box[0, :, j, i] = torch.tensor([0.25, -0.25, -1.0])
        self.maps = Maps(centre, nouns, colours, box)

    def forward(self, images):  # noqa: D102
        return Maps(*(part.expand(len(images), -1, -1, -1) for part in self.maps))


def seen(*objects):
    return detect(Fixed(*objects), torch.zeros(2, 3, SIDE, SIDE))


def test_a_peak_is_an_object():
    first, second = seen((1, 0, 3, 12, 4.0))
    assert first == second
    (dog,) = first
    assert (dog.noun, dog.colour) == ("dog", "red")
    assert (dog.x, dog.y, dog.size) == pytest.approx((30.0, 98.0, 32.0))
    assert dog.confidence == pytest.approx(torch.tensor(4.0).sigmoid().item(), abs=1e-3)


def test_the_last_colour_is_none():
    assert seen((0, 2, 3, 3, 4.0))[0][0].colour is None


def test_objects_come_surest_first_and_weak_ones_not_at_all():
    nouns = [one.noun for one in seen((0, 0, 2, 2, 1.0), (1, 0, 9, 9, 4.0), (2, 0, 13, 2, -2.0))[0]]
    assert nouns == ["dog", "cat"]


@pytest.mark.parametrize("step", [1, 2])  # neighbours, and peaks of their own 16 pixels apart
def test_one_object_is_not_counted_twice(step):
    weaker = seen((0, 0, 5, 5, 4.0), (1, 0, 5 + step, 5, 3.0))[0]
    assert [one.noun for one in weaker] == (["cat"] if step == 1 else ["cat", "dog"])


def test_an_object_within_another_is_dropped():
    model = Fixed((0, 0, 5, 5, 4.0), (1, 0, 7, 5, 3.0))
    model.maps.box[0, 2] = 0.0  # both 64 pixels wide, 16 apart
    assert [one.noun for one in detect(model, torch.zeros(1, 3, SIDE, SIDE))[0]] == ["cat"]


def test_objects_side_by_side_are_kept():
    assert len(seen((0, 0, 4, 4, 4.0), (0, 0, 8, 4, 4.0), (0, 0, 4, 8, 4.0))[0]) == 3


def test_an_empty_picture_and_no_picture():
    assert seen() == [[], []]
    assert detect(Fixed(), torch.zeros(0, 3, SIDE, SIDE)) == []


@pytest.mark.parametrize("shape", [(3, SIDE, SIDE), (1, 1, SIDE, SIDE), (1, 3, 64, SIDE)])
def test_pictures_of_other_shapes_are_refused(shape):
    with pytest.raises(HostError, match="pictures are"):
        detect(Fixed(), torch.zeros(shape))


@pytest.mark.parametrize("value", [-1.0, 255.0, float("nan")])
def test_pictures_of_other_ranges_are_refused(value):
    with pytest.raises(HostError, match="outside"):
        detect(Fixed(), torch.full((1, 3, SIDE, SIDE), value))


def test_following_prompts():
    model, pictures = Fixed((0, 0, 3, 8, 4.0), (1, 1, 12, 8, 4.0)), torch.zeros(2, 3, SIDE, SIDE)
    wanted = [LEFT, item("colors", {**DOG, "color": "red"})]
    assert judge(model, pictures, wanted) == [("position", True), ("colors", False)]
    with pytest.raises(HostError, match="2 pictures for 1 prompts"):
        judge(model, pictures, wanted[:1])


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    detector = Detector(TINY)
    detector.train()(torch.rand(4, 3, SIDE, SIDE))  # so that the norms have seen something
    return detector.eval(), save_detector(detector, tmp_path / "detector.safetensors")


@pytest.mark.slow
def test_a_detector_comes_back_as_it_was(saved):
    detector, path = saved
    loaded = load_detector(path)
    assert loaded.architecture == TINY
    assert not loaded.training
    pictures = torch.rand(2, 3, SIDE, SIDE)
    with torch.no_grad():
        for expected, part in zip(detector(pictures), loaded(pictures), strict=True):
            assert part.shape[-2:] == (16, 16)
            assert part.dtype == torch.float32
            torch.testing.assert_close(part, expected, atol=2e-2, rtol=2e-2)
    assert len(detect(loaded, pictures, threshold=0.0, batch=1)) == 2


def test_convolutions_are_kept_in_half_precision(saved):
    weights = load_file(saved[1])
    assert {value.dtype for value in weights.values() if value.dim() == 4} == {torch.float16}


def metadata(**changed):
    plain = {"format": "tacache-detector", "version": "1", "architecture": TINY.model_dump_json()}
    return {name: value for name, value in {**plain, **changed}.items() if value is not None}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": None}, "not a tacache-detector file"),
        ({"format": "pt"}, "its format is 'pt'"),
        ({"version": "2"}, "version '2'"),
        ({"architecture": None}, "architecture cannot be read"),
        ({"architecture": "{"}, "architecture cannot be read"),
        ({"architecture": json.dumps({"nouns": [], "colours": []})}, "architecture cannot be read"),
        ({"architecture": json.dumps({"nouns": ["cat"], "colours": []})}, "weights do not fit"),
    ],
)
def test_files_that_are_no_detectors(saved, changed, message):
    save_file(load_file(saved[1]), saved[1], metadata=metadata(**changed))
    with pytest.raises(HostError, match=message):
        load_detector(saved[1])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(HostError, match="cannot read a detector"):
        load_detector(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("not weights")
    with pytest.raises(HostError, match="cannot read a detector"):
        load_detector(tmp_path / "text")


def test_the_prompts_of_the_training_folder():
    items = read_items(Path(__file__).parents[3] / "training" / "following.jsonl")
    assert {one.tag for one in items} == set(TAGS)
    assert all(one.prompt for one in items)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ('{"tag": "texture", "prompt": "", "include": [{"class": "cat", "count": 1}]}', "tag"),
        ('{"tag": "colors", "prompt": "", "include": []}', "include"),
        ('{"tag": "colors", "prompt": "", "include": [{"class": "cat"}]}', "include.0.count"),
    ],
)
def test_prompts_that_cannot_be_read(tmp_path, line, message):
    (tmp_path / "items.jsonl").write_text(line + "\n")
    with pytest.raises(HostError, match=message):
        read_items(tmp_path / "items.jsonl")
    with pytest.raises(HostError, match="cannot read prompts"):
        read_items(tmp_path / "none.jsonl")


CATS = {"tag": "counting", "include": [{"class": "cat", "count": 2}]}


def lines(path, *fields):
    path.write_text("".join(json.dumps(one) + "\n" for one in fields), encoding="utf-8")
    return path


def test_answers_stand_beside_other_fields(tmp_path):
    with_answers = {"prompt": "two cats", "category": "counting", **CATS}
    file = lines(tmp_path / "p.jsonl", with_answers, {"prompt": "a fox", "tag": "animals"})
    file.write_text(f"# a comment\n\n{file.read_text()}")
    found = read_answers(file)
    assert found.keys() == {"two cats"}
    assert found["two cats"] == Item.model_validate({"prompt": "two cats", **CATS})


def test_other_sources_of_prompts_have_no_answers(tmp_path):
    (tmp_path / "p.txt").write_text("two cats\n")
    assert read_answers(tmp_path / "p.txt") == read_answers("test") == {}
    (tmp_path / "list.jsonl").write_text('["two cats"]\n')  # `read_prompts` complains of it
    assert read_answers(tmp_path / "list.jsonl") == {}


def test_answers_that_cannot_be_read_are_named(tmp_path):
    wrong = {"prompt": "a cat", "tag": "colors", "include": [{"class": "cat"}]}
    file = lines(tmp_path / "p.jsonl", {"prompt": "two cats", **CATS}, wrong)
    with pytest.raises(HostError, match=r"p.jsonl, line 2: include\.0\.count: Field required"):
        read_answers(file)


def test_what_a_detector_does_not_know_is_not_judged():
    pictures = torch.zeros(1, 3, SIDE, SIDE)
    for entry, word in (({"class": "fox"}, "fox"), ({**CAT, "color": "teal"}, "teal")):
        with pytest.raises(HostError, match=f"does not know '{word}'"):
            judge(Fixed(), pictures, [item("colors", entry)])


# --- the detector that ships


def test_the_shipped_detector_knows_the_vocabulary():
    from training.emoji import load_vocabulary
    from training.scenes import COLOURS

    architecture = load_detector().architecture
    assert architecture.nouns == tuple(thing.noun for thing in load_vocabulary())
    assert architecture.colours == COLOURS


@pytest.mark.slow
def test_the_shipped_detector_reads_fresh_scenes():
    """Scenes of twelve Fluent Emoji (MIT, Microsoft), in `golden/sprites.npz`."""
    import numpy as np
    from training.audit import counted
    from training.emoji import load_vocabulary
    from training.render import build_bank, render
    from training.scenes import KINDS, sample_scenes

    with np.load(Path(__file__).parents[3] / "tests" / "golden" / "sprites.npz") as archive:
        pictures, nouns = archive["pictures"], archive["nouns"].tolist()
    by_noun = {thing.noun: thing for thing in load_vocabulary()}
    things = [by_noun[noun] for noun in nouns]
    scenes = [s for n, kind in enumerate(KINDS) for s in sample_scenes(8, 77 + n, things, kind)]
    images = torch.as_tensor(render(scenes, build_bank(pictures, things))).float() / 255
    figures = counted(detect(load_detector(), images), scenes, things)
    assert figures["recall"] >= 0.98
    assert figures["precision"] >= 0.98
    assert figures["colours"] >= 0.95
    assert figures["accepted"] >= 0.97
    assert figures["rejected"] >= 0.97
    assert figures["pixels off"] < 2
