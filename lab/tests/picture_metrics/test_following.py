"""Prompt following as a metric: the shipped detector, and what it says where it cannot run."""

import pytest
import torch
from torch import nn

from tacache.errors import HostError
from tacache.models import embedded
from tacache_lab.following import TAGS, Item
from tacache_lab.picture_metrics import METRICS, Samples, following, measure, quality

DETECTOR = embedded("tiny-flux").detector
PICTURES = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))


def item(tag, noun, **more):
    entry = {"class": noun, "count": 1, **more}
    return Item.model_validate({"tag": tag, "prompt": f"a {noun}", "include": [entry]})


CAT, RED_DOG = item("single_object", "cat"), item("colors", "dog", color="red")


@pytest.fixture
def sees_cats(monkeypatch):
    """Every picture has verdicts as if it showed a cat and nothing else."""

    def follow(detector, images, items):
        assert isinstance(detector, nn.Module)
        assert images.min() >= 0
        assert images.max() <= 1
        return [(one.tag, one.include[0].noun == "cat") for one in items]

    monkeypatch.setattr(quality, "judge", follow)


def test_a_picture_is_right_or_wrong(sees_cats):
    samples = Samples(PICTURES * 1.5 - 0.2, answers=[CAT, RED_DOG], detector=DETECTOR)
    assert measure(["following"], samples) == {"following": [1.0, 0.0]}
    assert METRICS["following"].kinds_of(samples) == ["single_object", "colors"]
    assert METRICS["following"].kinds == TAGS


def test_the_shipped_detector_sees_nothing_in_noise():
    assert following(PICTURES, [CAT, RED_DOG], DETECTOR).tolist() == [0.0, 0.0]


def reason(samples):
    return measure(["following"], samples)["following"]


def test_what_is_missing_is_said():
    answers = [CAT, RED_DOG]
    assert reason(Samples(PICTURES, detector=DETECTOR)) == "not run: no answers were given"
    assert reason(Samples(PICTURES, answers=answers)) == (
        "not run: no detector knows this model's pictures: one ships for tiny-flux"
    )
    clips = Samples(PICTURES[None], answers=answers, detector=DETECTOR)
    assert reason(clips).startswith("not run: Prompt following takes pictures")
    small = Samples(PICTURES[..., :64, :64], answers=answers, detector=DETECTOR)
    assert reason(small).startswith("not run: pictures are (count, 3, 128, 128)")
    few = Samples(PICTURES, answers=answers[:1], detector=DETECTOR)
    assert reason(few) == "not run: 2 pictures for 1 prompts: one each is needed"


@pytest.mark.parametrize(
    ("unknown", "word"),
    [
        (item("single_object", "sphinx"), "sphinx"),
        (item("colors", "cat", color="teal"), "teal"),
    ],
)
def test_what_a_detector_was_not_taught_is_not_wrong(unknown, word):
    with pytest.raises(HostError, match=f"does not know '{word}'"):
        following(PICTURES[:1], [unknown], DETECTOR)


def test_other_metrics_have_no_kinds():
    samples = Samples(PICTURES, references=PICTURES, answers=[CAT, RED_DOG])
    assert METRICS["psnr"].kinds == METRICS["psnr"].kinds_of(samples) == ()
