"""Fits to the flow on pipelines: a second call with more steps, whose noise levels are others."""

import pytest
import torch
from tests.tiny import PIPELINES

from tacache import PlanError
from tacache.diffusers import applied, drive, fit_plan

PROMPTS = ["a fox", "two birds", "a bridge", "a bowl"]
STEPS = 10


def call_of(name, **changes):
    call = {key: value for key, value in PIPELINES[name].call().items() if key != "prompt"}
    return call | {"num_inference_steps": STEPS} | changes


def fitted(name, pipe, **options):
    asked = {"evaluations": 6, "search": False} | options
    return fit_plan(pipe, PROMPTS, target="flow", **asked, **call_of(name))


def end_of(pipe, prompt, call):
    """Where Euler's method ends on the pipeline's grid of the call's steps."""
    generator = torch.Generator().manual_seed(0)
    with drive(pipe, prompt=prompt, generator=generator, **call) as run:
        x = run.noise
        for n in range(run.steps):
            x = x - (run.times[n] - run.times[n + 1]) * run.evaluate(x, n)
    return x


# Euler's scheduler with a dynamic shift, two experts with UniPC, and UniPC alone
@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan-2.2", "wan"])
def test_a_plan_is_nearer_to_the_flow_than_the_run(name):
    pipe = PIPELINES[name].build()
    plan = fitted(name, pipe)
    found = plan.certificate
    assert found.flow_drift < found.drift
    assert found.equivalent_steps > STEPS
    call = call_of(name) | {"output_type": "latent", "return_dict": False}
    many = end_of(pipe, PROMPTS[0], call_of(name, num_inference_steps=160))
    few = end_of(pipe, PROMPTS[0], call_of(name))
    with applied(pipe, plan), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        made = pipe(prompt=PROMPTS[0], generator=generator, **call)[0]
    assert (made - many).norm() < (few - many).norm()


@pytest.mark.slow
def test_a_plan_for_the_flow_evaluates_and_saves_as_any_other(tmp_path):
    pipe = PIPELINES["flux"].build()
    plan = fitted("flux", pipe, evaluations=4)
    assert plan.evaluations == 4
    assert type(plan).load(plan.save(tmp_path / "flow.plan.json")) == plan


@pytest.mark.parametrize(("steps", "strength"), [(9, 0.5), (8, 0.5), (10, 0.6)])
def test_a_run_whose_finer_one_starts_elsewhere_is_refused(steps, strength):
    """Image to image starts at a step of its own grid, which twice as many steps do not have."""
    tiny = PIPELINES["flux-img2img"]
    call = {key: value for key, value in tiny.call().items() if key != "prompt"}
    call |= {"num_inference_steps": steps, "strength": strength}
    with pytest.raises(PlanError, match="starts from other noise or ends elsewhere"):
        fit_plan(tiny.build(), PROMPTS, evaluations=3, target="flow", search=False, **call)
