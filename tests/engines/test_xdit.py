"""xDiT wraps a pipeline's scheduler: where its wrapper steps itself, a plan is refused.

`Wrapper` is written after what xfuser 0.7.0 does: it has the scheduler as `module`, hands every
other attribute on, and steps by Euler's rule on the levels it sees where a run is parallel.
"""

import json
from typing import Any

import pytest
import torch
from tests.support import noise_of
from torch import Tensor

from tacache import HostError, Plan, make_plan, sample
from tacache.diffusers import PlanFlowMatchEulerDiscreteScheduler


class Wrapper:
    """A scheduler with another step, where a run is parallel."""

    def __init__(self, module: Any, is_parallel: bool) -> None:
        self.__dict__.update(module=module, is_parallel=is_parallel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)

    def step(self, v: Tensor, timestep: Tensor, x: Tensor, return_dict: bool = True) -> Any:
        """Euler's rule on the levels that are shown, or the scheduler's own step."""
        if not self.is_parallel:
            return self.module.step(v, timestep, x, return_dict=return_dict)
        if self.step_index is None:
            self._init_step_index(timestep)
        change = self.sigmas[self.step_index + 1] - self.sigmas[self.step_index]
        self._step_index += 1
        return (x + change * v,)


@pytest.fixture(scope="module")
def plan(profile) -> Plan:
    return make_plan(profile, evaluations=8)


def run(flow: Any, plan: Plan | None, noise: Tensor, grid: Plan, *, is_parallel: bool) -> Tensor:
    carried = None if plan is None else json.loads(plan.to_json())
    module = PlanFlowMatchEulerDiscreteScheduler(plan=carried, strength=1.0, breaks=[])
    scheduler: Any = Wrapper(module, is_parallel)
    scheduler.set_timesteps(sigmas=list(grid.times[:-1]))
    x = noise
    for t in scheduler.timesteps:
        x = scheduler.step(flow(x, float(t) / 1000), t, x, return_dict=False)[0]
    return x


def test_a_wrapper_that_hands_the_step_on_follows_the_plan(flow, plan):
    noise = noise_of(2).float()
    found = run(flow, plan, noise, plan, is_parallel=False)
    torch.testing.assert_close(found, sample(flow, noise, plan), rtol=1e-3, atol=1e-3)


def test_a_wrapper_that_steps_itself_is_refused(flow, plan):
    with pytest.raises(HostError, match="steps in the place of this scheduler"):
        run(flow, plan, noise_of(1).float(), plan, is_parallel=True)


def test_without_a_plan_it_may(flow, plan):
    noise, full = noise_of(1).float(), Plan.full(plan.times)
    found = run(flow, None, noise, full, is_parallel=True)
    torch.testing.assert_close(found, sample(flow, noise, full), rtol=1e-3, atol=1e-3)
