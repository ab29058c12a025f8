"""What every supported version of diffusers must do: `make engines` runs this file with each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from tests.diffusers_support import EVALUATIONS, STEPS, counted, latents, plan_of
from tests.tiny import PIPELINES, Tiny

from tacache import Plan
from tacache.diffusers import applied, apply, fit_plan, remove

pytestmark = pytest.mark.slow

NAMES = ("flux", "sd3", "wan", "qwen-image")
tinies = pytest.mark.parametrize("tiny", [PIPELINES[name] for name in NAMES], ids=NAMES)


@tinies
def test_a_pipeline_evaluates_as_often_as_its_plan_says(tiny: Tiny) -> None:
    pipe = tiny.build()
    full = latents(tiny, pipe)
    with applied(pipe, plan_of(tiny, pipe)), counted(pipe, tiny.denoisers) as calls:
        found = latents(tiny, pipe)
    assert len(calls) == EVALUATIONS * tiny.calls_per_step
    assert found.shape == full.shape
    assert torch.isfinite(found).all()
    assert torch.equal(latents(tiny, pipe), full)


@tinies
def test_a_saved_pipeline_has_its_plan(tiny: Tiny, tmp_path: Path) -> None:
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    apply(pipe, plan)
    pipe.save_pretrained(tmp_path)
    loaded = DiffusionPipeline.from_pretrained(tmp_path)
    assert loaded.scheduler.plan == plan
    found = latents(tiny, loaded)
    remove(loaded)
    assert type(loaded.scheduler).__module__.startswith("diffusers.")
    # Qwen-Image's tiny pipeline has a shorter template, which is not saved: compare what was loaded
    apply(loaded, plan)
    torch.testing.assert_close(latents(tiny, loaded), found)


@tinies
def test_a_plan_can_be_fitted(tiny: Tiny) -> None:
    pipe, plan = tiny.build(), fitted(tiny)
    assert plan.weights is not None
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        assert torch.isfinite(latents(tiny, pipe)).all()
    assert len(calls) == EVALUATIONS * tiny.calls_per_step


def test_a_pipeline_of_another_engine_takes_a_plan() -> None:
    """As vLLM-Omni's own, which is a module that has the scheduler and the denoiser."""
    tiny = PIPELINES["qwen-image"]
    pipe, own = tiny.build(), torch.nn.Module()
    own.transformer, own.scheduler = pipe.transformer, pipe.scheduler
    plan = plan_of(tiny, pipe)
    apply(own, plan, strength=1.0, breaks=())
    assert own.scheduler.plan == plan


def fitted(tiny: Tiny) -> Plan:
    call: dict[str, Any] = {n: v for n, v in tiny.call().items() if n != "prompt"}
    prompts = ["a fox", "two birds", "a bridge", "a bowl"]
    pipe = tiny.build()
    return fit_plan(pipe, prompts, evaluations=EVALUATIONS, num_inference_steps=STEPS, **call)
