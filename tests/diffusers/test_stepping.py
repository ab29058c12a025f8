"""Schedulers are recognised by what their step does: unknown ones that are Euler's are followed."""

from __future__ import annotations

import json
from typing import Any

import diffusers
import pytest
import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from tests.diffusers_support import fitted
from torch import Tensor

from tacache import HostError, Plan, Stepper, instant_plan
from tacache.diffusers import plan_scheduler
from tacache.diffusers.grids import set_levels
from tacache.diffusers.stepping import check_flow_scheduler, euler_factor, noise_levels, run_times

STEPS = 12
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}


class Sloped(SchedulerMixin, ConfigMixin):
    """Steps as Euler, by a multiple of the velocity, over times that rise from noise to data."""

    order = 1

    @register_to_config
    def __init__(self, slope: float = -1.0) -> None:
        self.timesteps = self.sigmas = torch.empty(0)
        self.num_inference_steps: int | None = None
        self._step_index: int | None = None
        self._begin_index: int | None = None

    @property
    def step_index(self) -> int | None:
        """Where the run is."""
        return self._step_index

    def set_timesteps(self, num_inference_steps: int, device: Any = None) -> None:
        """Levels that rise from noise to data."""
        levels = torch.linspace(0, 1, num_inference_steps + 1) ** 2
        self.sigmas, self.timesteps = levels.to(device), (1 - levels[:-1]).to(device)
        self.num_inference_steps, self._step_index = num_inference_steps, None

    def step(
        self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True
    ) -> Any:
        """A step to the next level."""
        n = 0 if self._step_index is None else self._step_index
        sample = self._moved(sample, model_output, self.sigmas[n + 1] - self.sigmas[n])
        self._step_index = n + 1
        return SchedulerOutput(prev_sample=sample) if return_dict else (sample,)

    def _moved(self, x: Tensor, v: Tensor, span: Tensor) -> Tensor:
        return x - self.config.slope * span * v


class Bent(Sloped):
    """Draws the state towards zero on the way."""

    def _moved(self, x: Tensor, v: Tensor, span: Tensor) -> Tensor:
        return 0.9 * x + span * v


class Squared(Sloped):
    """Goes further the longer the step is."""

    def _moved(self, x: Tensor, v: Tensor, span: Tensor) -> Tensor:
        return x + span**2 * v


class Remembering(Sloped):
    """Adds something of the last velocity, as a multistep solver does."""

    def _moved(self, x: Tensor, v: Tensor, span: Tensor) -> Tensor:
        last, self.last = getattr(self, "last", v), v
        return x + span * (1.5 * v - 0.5 * last)


class Noisy(Sloped):
    """Adds noise at every step."""

    def _moved(self, x: Tensor, v: Tensor, span: Tensor) -> Tensor:
        return x + span * v + 0.1 * torch.randn_like(x)


class Counting(Sloped):
    """Knows its step from a count of its own, so that none can be left out."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """A step from wherever the count is."""
        self._step_index = self.own = getattr(self, "own", -1) + 1
        return super().step(*args, **kwargs)


class Masked(Sloped):
    """Asks for more than a velocity, a timestep and a state."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, mask: Tensor) -> Any:
        """A step of what the mask lets through."""
        return super().step(model_output * mask, timestep, sample)


def velocity(x: Tensor, level: float) -> Tensor:
    """A velocity, noise minus data, that turns and grows along the way."""
    return torch.tanh(x.roll(1, -1) + level) * (1 + level) - x / 2


def noise() -> Tensor:
    return torch.randn((2, 3, 4), generator=torch.Generator().manual_seed(1))


def walk(scheduler: Any, factor: float) -> tuple[Tensor, int]:
    """A loop over the timesteps that it is shown, and how often the velocity was evaluated."""
    scheduler.set_timesteps(STEPS)
    x, calls = noise(), 0
    levels = noise_levels(scheduler.sigmas.tolist())
    for n, t in enumerate(scheduler.timesteps):
        x = scheduler.step(velocity(x, levels[n]) / factor, t, x, return_dict=False)[0]
        calls += 1
    return x, calls


def carrying(plain: Any, plan: Plan) -> Any:
    carrier = plan_scheduler(type(plain))
    config = {"plan": json.loads(plan.to_json()), "strength": 1.0, "breaks": []}
    return carrier.from_config(plain.config, **config)


def times_of(plain: Any) -> tuple[float, ...]:
    plain.set_timesteps(STEPS)
    return run_times(plain)


EULERS = {
    "towards data": (lambda: Sloped(slope=-1.0), -1.0),
    "towards noise": (lambda: Sloped(slope=1.0), 1.0),
    "scaled": (lambda: Sloped(slope=-0.25), -0.25),
    "minimax-h3": (lambda: diffusers.MiniMaxH3Scheduler(shift=12.0), -1.0),
    "ancestral without noise": (lambda: diffusers.LTXEulerAncestralRFScheduler(eta=0.0), 1.0),
    "mochi": (lambda: diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True), -1.0),
}


@pytest.mark.parametrize("name", EULERS)
def test_an_unknown_euler_is_followed_exactly(name):
    build, factor = EULERS[name]
    assert euler_factor(build()) == pytest.approx(factor, rel=1e-3)
    times = times_of(build())
    untouched, _ = walk(build(), factor)
    full, calls = walk(carrying(build(), Plan.full(times)), factor)
    assert torch.equal(full, untouched)
    assert calls == len(times) - 1
    plan = instant_plan(times, evaluations=5)
    skipping, calls = walk(carrying(build(), plan), factor)
    assert calls == 5
    expected, stepper = noise(), Stepper(plan)
    for n in range(plan.steps):
        level = times[n]
        v = stepper.velocity(expected, lambda: velocity(expected, level))  # noqa: B023
        expected = expected + (times[n + 1] - level) * v
    assert torch.allclose(skipping, expected, atol=1e-5)


@pytest.mark.parametrize("name", EULERS)
def test_a_fitted_plan_takes_an_interval_in_one_step_of_any_euler(name):
    build, factor = EULERS[name]
    plan = fitted(times_of(build()), (0, 1, 4, 8))
    found, calls = walk(carrying(build(), plan), factor)
    assert calls == 4
    x, stepper = noise(), Stepper(plan)
    for n, following in zip((0, 1, 4, 8), (1, 4, 8, plan.steps), strict=True):
        level = plan.times[n]
        average = stepper.jump(x, lambda: velocity(x, level))  # noqa: B023
        x = x + (plan.times[following] - level) * average
    assert torch.allclose(found, x, atol=1e-5)


REFUSED = {
    "bent": (Bent, "does not sample a flow"),
    "squared": (Squared, "does not sample a flow"),
    "remembering": (Remembering, "does not sample a flow"),
    "noisy": (Noisy, "new noise"),
    "counting": (Counting, "cannot carry"),
    "masked": (Masked, "its step asks for mask"),
    "pi-flow": (diffusers.PiflowScheduler, "velocity of the state's shape fails"),
    "ancestral": (diffusers.LTXEulerAncestralRFScheduler, "new noise"),
    "pyramid": (diffusers.HeliosScheduler, "its run has 3 stages"),
    "protein": (
        lambda: diffusers.RFD4ProteinaScheduler("log", "1/t", 1.0, 1.0),
        "its step asks for emit_mask",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_eulers_or_draws_noise_is_refused_with_the_reason(name):
    build, reason = REFUSED[name]
    with pytest.raises(HostError, match=f"cannot carry a plan: .*{reason}|{reason}"):
        check_flow_scheduler(build())


def test_known_multistep_solvers_have_no_factor():
    assert euler_factor(diffusers.HeliosScheduler(stages=1, stage_range=[0, 1])) is None
    assert euler_factor(diffusers.UniPCMultistepScheduler(**FLOW)) is None
    assert euler_factor(diffusers.DPMSolverMultistepScheduler(**FLOW)) is None


def test_a_trial_leaves_the_scheduler_and_random_numbers_alone():
    scheduler = Sloped()
    scheduler.set_timesteps(5)
    state = torch.get_rng_state()
    check_flow_scheduler(scheduler)
    assert torch.equal(torch.get_rng_state(), state)
    assert (len(scheduler.timesteps), scheduler.step_index) == (5, None)


def test_levels_are_set_in_the_schedulers_own_count():
    scheduler = diffusers.MiniMaxH3Scheduler(shift=3.0)
    scheduler.set_timesteps(5)
    set_levels(scheduler, (1.0, 0.5, 0.0))
    assert scheduler.sigmas.tolist() == [1.0, 0.5, 0.0]
    assert scheduler.timesteps.tolist() == [0.0, 0.5]
