"""Plans in vLLM-Omni's step mode: its state of a request, real or a stand-in (step_state.py).

The loop is written after Qwen-Image's pipeline of version 0.30.0: one scheduler prepares every
request and is deep-copied into its state, the copy steps, and requests at different steps share
an evaluation.
"""

import copy
import json
from typing import Any

import pytest
import torch
from tests.engines.step_state import StepRequestState
from tests.support import noise_of
from torch import Tensor

from tacache import Plan, make_plan, sample
from tacache.diffusers import PlanFlowMatchEulerDiscreteScheduler


@pytest.fixture(scope="module")
def plan(profile) -> Plan:
    return make_plan(profile, evaluations=8)


def scheduler_for(plan: Plan) -> Any:
    return PlanFlowMatchEulerDiscreteScheduler(
        plan=json.loads(plan.to_json()), strength=1.0, breaks=[]
    )


def prepare(scheduler: Any, plan: Plan, name: str, noise: Tensor) -> Any:
    """A request as it is after its prompt was encoded."""
    state = StepRequestState(request_id=name, sampling=None)
    scheduler.set_timesteps(sigmas=list(plan.times[:-1]))
    state.latents, state.timesteps = noise, scheduler.timesteps
    state.scheduler = copy.deepcopy(scheduler)
    state.scheduler.set_begin_index(0)
    return state


def step(states: list[Any], flow: Any) -> None:
    """One evaluation for all: every row has its own noise level."""
    for state in states:
        t = state.current_timestep
        v = flow(state.latents, float(t) / 1000)
        state.latents = state.scheduler.step(v, t, state.latents, return_dict=False)[0]
        state.step_index += 1


def test_a_request_ends_after_the_plans_evaluations(flow, plan):
    scheduler, noise = scheduler_for(plan), noise_of(2).float()
    state = prepare(scheduler, plan, "one", noise)
    assert state.total_steps == plan.evaluations
    while not state.denoise_completed:
        step([state], flow)
    expected = sample(flow, noise, plan)
    torch.testing.assert_close(state.latents, expected, rtol=1e-3, atol=1e-3)
    assert state.scheduler.tell_unfinished() is None


def test_requests_at_different_steps_do_not_touch_each_other(flow, plan):
    """The second is prepared by the same scheduler while the first is on its way."""
    scheduler, noise = scheduler_for(plan), noise_of(2).float()
    first = prepare(scheduler, plan, "first", noise[:1])
    for _ in range(3):
        step([first], flow)
    second = prepare(scheduler, plan, "second", noise[1:])
    while active := [one for one in (first, second) if not one.denoise_completed]:
        step(active, flow)
    expected = sample(flow, noise, plan)
    found = torch.cat([first.latents, second.latents])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_state_says_how_far_it_is(flow, plan):
    state = prepare(scheduler_for(plan), plan, "one", noise_of(1).float())
    step([state], flow)
    assert (state.step_index, state.total_steps) == (1, plan.evaluations)
    assert float(state.current_timestep) == pytest.approx(1000 * plan.times[plan.anchors[1]])
