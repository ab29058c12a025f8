"""Instant plans on pipelines: exactly the evaluations that were asked for, nothing calibrated."""

import pytest
import torch
from tests.diffusers_support import counted
from tests.tiny import PIPELINES

from tacache import instant_plan, time_grid
from tacache.diffusers import applied, drive

STEPS, EVALUATIONS = 12, 5


def levels_of(pipe, call):
    with drive(pipe, generator=torch.Generator().manual_seed(0), **call) as run:
        return run.times, run.breaks


@pytest.mark.parametrize("name", ["flux", "sd3", "wan", "wan-euler", "wan-2.2", "qwen-image"])
def test_a_picture_takes_as_many_evaluations_as_the_plan_says(name):
    tiny = PIPELINES[name]
    pipe, call = tiny.build(), tiny.call() | {"num_inference_steps": STEPS}
    times, breaks = levels_of(pipe, call)
    plan = instant_plan(times, EVALUATIONS, breaks=breaks)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        pipe(generator=torch.Generator().manual_seed(0), **call)
        assert pipe.scheduler.run_plan.evaluations == EVALUATIONS
    with counted(pipe, tiny.denoisers) as full:
        pipe(generator=torch.Generator().manual_seed(0), **call)
    assert len(calls) * STEPS == len(full) * EVALUATIONS


def test_it_moves_to_the_steps_and_shift_of_the_call():
    tiny = PIPELINES["flux"]
    pipe, call = tiny.build(), tiny.call() | {"num_inference_steps": STEPS}
    with applied(pipe, instant_plan(time_grid(50, shift=3.0), 6)):
        pipe(generator=torch.Generator().manual_seed(0), **call)
        assert pipe.scheduler.run_plan.evaluations == 6
        assert pipe.scheduler.run_plan.rule == "linear"


def test_it_starts_midway():
    tiny = PIPELINES["flux-img2img"]
    pipe, call = tiny.build(), tiny.call() | {"num_inference_steps": STEPS, "strength": 1.0}
    times, _ = levels_of(pipe, call)
    with applied(pipe, instant_plan(times, 6), strength=0.5):
        pipe(generator=torch.Generator().manual_seed(0), **call)
        assert pipe.scheduler.run_plan.times == pytest.approx(times[6:], abs=1e-4)
