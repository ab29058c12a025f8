"""The demo's film: a frame an evaluation, anchors as they are evaluated, and the final pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.demo_support import budget, demo_of
from tests.tiny import PIPELINES

from tacache import models
from tacache.diffusers import applied, drive
from tacache.instant import instant_plan
from tacache.prompts import Sample
from tacache_lab.demo import demo_film
from tacache_lab.demo.demo_request import DemoRequest

STEPS, SIDE = 10, 16
CALL = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": STEPS}


def sheets(count):
    return [Image.new("RGB", (60, SIDE), (20 * n, 0, 0)) for n in range(count)]


def test_a_frame_shows_what_is_evaluated_what_is_rebuilt_and_what_is_to_come():
    plan = instant_plan([1 - n / STEPS for n in range(STEPS + 1)], 4)
    made = demo_of().model_copy(update={"steps": STEPS})
    best = budget("linear", 4, 30.0)
    shown = demo_film.frames(made, best, plan, sheets(STEPS), sheets(4))
    assert len(shown) == STEPS
    top = demo_film.EDGE + demo_film.LINE + 2
    bar = top + SIDE + demo_film.EDGE + demo_film.BAR // 2
    left = demo_film.EDGE + 60 + demo_film.BETWEEN

    def strip(frame):
        names = {
            demo_film.ANCHOR: "anchor", demo_film.SKIP: "skip", demo_film.AHEAD: "ahead",
        }  # fmt: skip
        pixels = [frame.getpixel((left + 6 * n + 2, bar)) for n in range(STEPS)]
        return [names["#{:02x}{:02x}{:02x}".format(*pixel)] for pixel in pixels]

    second = plan.anchors[1]
    reached = ["anchor", *["skip"] * (second - 1), "anchor"]
    assert strip(shown[1]) == reached + ["ahead"] * (STEPS - second - 1)
    whole = ["anchor" if n in plan.anchors else "skip" for n in range(STEPS)]
    assert strip(shown[3]) == strip(shown[-1]) == whole
    seen = [frame.getpixel((left + 30, top + 5))[0] for frame in shown]
    assert seen == [0, 20, 40, *[60] * 7]  # it stands still once it is over
    assert shown[-1].getpixel((demo_film.EDGE + 30, top + 5))[0] == 180


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [None, 4])
def test_a_run_ends_with_the_picture_that_the_pipeline_draws(evaluations):
    pipe = PIPELINES["flux"].build()
    plan = None
    if evaluations:
        with drive(pipe, prompt="a fox", **CALL) as run:
            plan = instant_plan(run.times, evaluations)
    seen = demo_film.followed(pipe, Sample("a fox", 5), CALL, plan)
    assert len(seen) == (evaluations or STEPS)
    call = {**CALL, "prompt": "a fox", "generator": torch.Generator().manual_seed(5)}
    if plan is None:
        image = pipe(**call, output_type="np").images[0]
    else:
        with applied(pipe, plan):
            image = pipe(**call, output_type="np").images[0]
    assert np.abs(seen[-1] - image).max() < 1e-4
    assert np.abs(seen[0] - image).max() > 1e-3


@pytest.mark.slow
def test_the_film_is_an_animated_file_that_stands_still_at_its_end(tmp_path, monkeypatch):
    shipped = replace(models.embedded("tiny-flux"), folder=Path("nowhere"), call=CALL)
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    monkeypatch.setattr(models, "load", lambda name: PIPELINES["flux"].build())
    with drive(PIPELINES["flux"].build(), prompt="a fox", **CALL) as run:
        instant_plan(run.times, 4).save(tmp_path / "linear-4.plan.json")
    row = budget("linear", 4, 30.0).model_copy(update={"plan": "linear-4.plan.json"})
    made = demo_of(row).model_copy(update={"steps": STEPS, "model": "tiny-flux"})
    request = DemoRequest(("a fox", "a boat", "a lamp"), {}, seed=5)
    target = demo_film.write_film(made, request, tmp_path)
    with Image.open(target) as film:
        assert (film.format, film.n_frames) == ("WEBP", STEPS)
        durations = []
        for n in range(STEPS):
            film.seek(n)
            film.load()
            durations.append(film.info["duration"])
        assert durations == [demo_film.FRAME] * (STEPS - 1) + [demo_film.LAST]
