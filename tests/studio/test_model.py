import gzip
import json
import statistics
from pathlib import Path

import pytest
from tests.studio.conftest import STEPS, tiny_model

from tacache import models
from tacache.errors import HostError
from tacache.prompts import Sample, read_prompts
from tacache.studio.drawing import draw_full

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_same_model_makes_other_steps(model):
    shorter = model.with_steps(6)
    assert (shorter.steps, shorter.call["num_inference_steps"]) == (6, 6)
    assert (model.steps, model.call["num_inference_steps"]) == (STEPS, STEPS)
    assert model.with_steps(6) is shorter
    assert shorter.with_steps(STEPS) is model
    assert shorter.host is model.host


def test_full_runs_of_other_steps_are_others(model, hearing):
    fox = Sample("a red fox in the snow", 3)
    long = draw_full(model, fox, hearing())
    short = draw_full(model.with_steps(6), fox, hearing())
    assert (long.evaluations, short.evaluations) == (STEPS, 6)
    assert draw_full(model, fox, hearing()) is long


@pytest.mark.parametrize("steps", [3, 101, -1])
def test_steps_that_are_not_offered_are_refused(model, steps):
    with pytest.raises(HostError, match="choose 4 to 100 steps"):
        model.with_steps(steps)


def test_a_model_of_two_steps_offers_them():
    model = tiny_model()
    model.steps_offered = (2, 100)
    assert model.with_steps(2).steps == 2


def test_a_model_that_does_not_ship_begins_with_a_calibration_prompt(model):
    assert model.typical_prompt() == model.prompts()[0]


@pytest.mark.parametrize("name", ["tiny-flux", "tiny-flux-turbo", "tiny-wan"])
def test_a_typical_prompt_is_one_that_no_plan_was_fitted_to(name):
    model = models.embedded(name)
    assert model.typical_prompt in read_prompts(model.prompts("test"))
    assert model.typical_prompt not in read_prompts(model.prompts("calibration"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "records"), [("tiny-flux", "main.jsonl.gz"), ("tiny-wan", "wan-main.jsonl.gz")]
)
def test_a_typical_prompt_has_the_median_psnr_of_the_records(name, records):
    """The fitted plan of 13 evaluations stands for the usual budget."""
    psnr = {}
    with gzip.open(RESULTS / records, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["method"] == "fitted" and len(record.get("evaluated", ())) == 13:
                psnr[record["prompt"]] = record["to_full"]["metrics"]["psnr"]
    assert len(psnr) == 24
    typical = psnr[models.embedded(name).typical_prompt]
    assert typical == pytest.approx(statistics.median(psnr.values()), abs=0.5)
