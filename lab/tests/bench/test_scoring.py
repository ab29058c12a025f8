"""What is said of one picture: numbers, sub-scores, and reasons where there are none."""

import json
import math

import numpy as np
import pytest
import torch
from tests.tiny import PIPELINES
from typer.testing import CliRunner

from tacache.cli.command_line import app
from tacache.errors import HostError
from tacache.fidelity import CAP
from tacache.models import embedded
from tacache_lab.bench import BenchJob, read_records, run_bench, scoring
from tacache_lab.bench.scoring import Result, as_pixels, compare, detector_of, drift, score
from tacache_lab.following import Item
from tacache_lab.picture_metrics import METRICS, Metric, quality

PIXELS = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(0))
MADE = Result(torch.ones(4), PIXELS)
ANSWER = Item.model_validate(
    {"tag": "counting", "prompt": "two cats", "include": [{"class": "cat", "count": 2}]}
)


def test_what_needs_no_reference_is_scored_and_the_rest_compared(monkeypatch):
    bright = Metric("Bright", "higher", None, lambda samples: samples.images.mean((1, 2, 3)))
    monkeypatch.setitem(METRICS, "bright", bright)
    names = ["psnr", "bright"]
    assert score(MADE, "a fox", names) == {"bright": pytest.approx(float(PIXELS.mean()))}
    found = compare(MADE, MADE, names)
    assert (found.drift, found.metrics) == (0.0, {"psnr": CAP})


def test_a_number_of_its_kind_stands_beside_that_of_all():
    found = score(MADE, "two cats", ["following"], answer=ANSWER, model="tiny-flux")
    assert found == {"following": 0.0, "following/counting": 0.0}


def test_without_a_number_there_is_no_sub_score():
    found = score(MADE, "two cats", ["following"], model="tiny-flux")
    assert found == {"following": "not run: no answers were given"}
    other = score(MADE, "two cats", ["following"], answer=ANSWER, model="some-flux")
    assert other.keys() == {"following"}
    assert "no detector" in str(other["following"])


def test_detectors_are_those_that_ship():
    assert detector_of("tiny-flux") == embedded("tiny-flux").detector
    assert detector_of("tiny-wan") is None
    assert detector_of("black-forest-labs/FLUX.1-dev") is None
    assert detector_of(None) is None


def test_a_number_that_is_none_says_so(monkeypatch):
    broken = Metric("Broken", "higher", None, lambda samples: torch.tensor([math.nan]))
    monkeypatch.setitem(METRICS, "broken", broken)
    assert score(MADE, "a fox", ["broken"]) == {"broken": "failed: it is not a number"}


def test_channels_come_before_height_and_width():
    assert as_pixels(np.zeros((5, 7, 3), np.float32)).shape == (3, 5, 7)
    assert as_pixels(np.zeros((2, 5, 7, 3), np.float32)).shape == (2, 3, 5, 7)


def test_drift_is_relative_and_finite():
    assert drift(torch.full((4,), 2.0), torch.full((4,), 3.0)) == pytest.approx(0.5)
    with pytest.raises(HostError, match="not finite"):
        drift(torch.ones(4), torch.full((4,), math.inf))


# --- in a benchmark


@pytest.mark.slow
def test_references_and_methods_are_judged_by_the_prompts_answers(tmp_path, monkeypatch):
    """As if the tiny pipeline were one with a detector, which sees a cat in every picture."""
    monkeypatch.setattr(scoring, "detector_of", lambda model: embedded("tiny-flux").detector)
    asked = []

    def follow(detector, images, items):
        asked.extend(items)
        return [(one.tag, True) for one in items]

    monkeypatch.setattr(quality, "judge", follow)
    flux = PIPELINES["flux"]
    call = {k: v for k, v in flux.call().items() if k != "prompt"} | {"num_inference_steps": 4}
    job = BenchJob(
        methods=["fewer"],
        evaluations=[2],
        prompts=["two cats", "a boat"],
        calibration=["a lamp"],
        call=call,
        metrics=["following"],
        answers={"two cats": ANSWER},
    )
    records = run_bench(flux.build(), job, tmp_path / "r.jsonl")
    found = {(record.method, record.prompt): record.scores for record in records}
    right = {"following": 1.0, "following/counting": 1.0}
    without = {"following": "not run: no answers were given"}
    assert found == {
        ("full", "two cats"): right,
        ("fewer", "two cats"): right,
        ("full", "a boat"): without,
        ("fewer", "a boat"): without,
    }
    assert asked == [ANSWER] * 2


@pytest.mark.slow
def test_the_command_reads_answers_only_where_they_are_asked_for(tmp_path):
    """Another model than that of the detector; and a file whose answers are of another form."""
    folder, out = tmp_path / "flux", tmp_path / "r.jsonl"
    PIPELINES["flux"].build().save_pretrained(folder)
    known = ANSWER.model_dump(mode="json", by_alias=True)
    odd = {"prompt": "a boat", "include": "boats"}
    (tmp_path / "test.jsonl").write_text(f"{json.dumps(known)}\n")
    (tmp_path / "odd.jsonl").write_text(f"{json.dumps(odd)}\n")
    (tmp_path / "lessons.txt").write_text("a lamp\n")
    options = [
        "bench",
        folder,
        "--methods",
        "full",
        "--evaluations",
        2,
        "--steps",
        4,
        "--height",
        32,
        "--width",
        32,
    ]
    options += ["--call", "max_sequence_length=32", "--calibration", tmp_path / "lessons.txt"]

    def run(*more):
        return CliRunner().invoke(app, [str(one) for one in (*options, *more, "-o", out)])

    asked = ["--metrics", "psnr,following", "--prompts"]
    made = run(*asked, tmp_path / "test.jsonl")
    assert made.exit_code == 0, made.output
    (record,) = read_records(out)
    assert record.scores.keys() == {"following"}
    assert str(record.scores["following"]).startswith("not run: no detector knows")
    wrong = run(*asked, tmp_path / "odd.jsonl")
    assert wrong.exit_code == 2
    assert "odd.jsonl, line 1: tag: Field required" in wrong.stderr
    assert run("--metrics", "psnr", "--prompts", tmp_path / "odd.jsonl").exit_code == 0
