"""A pipeline's solver apart from its run: affine in the velocity, and as the pipeline steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import diffusers
import pytest
import torch
from tests.diffusers_support import STEPS, call_of
from tests.tiny import PIPELINES

from tacache import HostError
from tacache.diffusers.solving import SolverIntegrator
from tacache.diffusers.trajectory import PipelineTrajectory, drive
from tacache.fitting.integrators import EulerIntegrator, Integrator

WAN = PIPELINES["wan"]
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "unipc": ("UniPCMultistepScheduler", {}),
    "unipc, order 3": ("UniPCMultistepScheduler", {"solver_order": 3}),
    "unipc, predictor only": ("UniPCMultistepScheduler", {"disable_corrector": list(range(STEPS))}),
    "dpm++": ("DPMSolverMultistepScheduler", {}),
    "dpm++, order 3": ("DPMSolverMultistepScheduler", {"solver_order": 3}),
    "dpm++, heun": ("DPMSolverMultistepScheduler", {"solver_type": "heun"}),
    "dpm++, single": ("DPMSolverSinglestepScheduler", {}),
    "deis": ("DEISMultistepScheduler", {}),
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers")


@pytest.fixture(scope="module")
def pipe() -> Any:
    return WAN.build()


@pytest.fixture(params=SOLVERS)
def held(request, pipe) -> Iterator[PipelineTrajectory]:
    name, options = SOLVERS[request.param]
    pipe.scheduler = getattr(diffusers, name)(**FLOW, **options)
    with drive(pipe, **call_of(WAN)) as run:
        yield run


def random(shape: torch.Size, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, *shape, generator=generator) for _ in range(count)]


def started(held: PipelineTrajectory, steps: int) -> tuple[Integrator, torch.Tensor]:
    """Two samples that have made some steps, each with a velocity of its own."""
    integrator = SolverIntegrator([held.solver(), held.solver()], held.times)
    x = torch.stack([held.noise, 2 * held.noise])
    for n, v in enumerate(random(held.noise.shape, steps)):
        x = integrator.move(x, v, n, n + 1)
    return integrator, x


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(0, 1), (0, 4), (3, 4), (3, 9), (9, STEPS)])
def test_a_sum_of_velocities_leads_where_the_sum_of_columns_does(held, n, m):
    integrator, x = started(held, n)
    basis, weights = random(held.noise.shape, n + 3)[-3:], (1.5, -0.75, 0.25)
    wanted = torch.zeros_like(x)
    columns, target = integrator.columns(x, basis, wanted, n, m)
    v = sum(w * one for w, one in zip(weights, basis, strict=True))
    found = integrator.move(x, v, n, m)  # and trying has not moved the integrator
    moved = sum(w * one for w, one in zip(weights, columns, strict=True))
    expected = wanted + (held.times[n] - held.times[m]) * (target - moved)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(found.abs().max()))


def test_an_interval_is_its_steps(held):
    integrator, x = started(held, 3)
    other, y = started(held, 3)
    (v,) = random(held.noise.shape, 1)
    for n in range(3, 7):
        y = other.move(y, v, n, n + 1)
    assert torch.equal(integrator.move(x, v, 3, 7), y)


def test_eulers_columns_are_the_velocities(pipe):
    pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    with drive(pipe, **call_of(WAN)) as held:
        integrator, x = started(held, 3)
        basis, wanted = random(held.noise.shape, 2), torch.zeros_like(x)
        found = integrator.columns(x, basis, wanted, 3, 8)
        expected = EulerIntegrator(held.times).columns(x, basis, wanted, 3, 8)
    for one, other in zip([*found[0], found[1]], [*expected[0], expected[1]], strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_tries_of_half_precision_states_are_made_in_float32(held):
    solver, x = held.solver(), held.noise.bfloat16()
    for v in random(held.noise.shape, 3):
        x = solver.step(v[0].bfloat16(), x)
    basis = [v[1].bfloat16() for v in random(held.noise.shape, 2)]
    found = solver.tried(basis, x, 6)
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
    assert solver.n == 3


def test_states_that_are_no_numbers_are_an_error(pipe):
    """UniPC's bh1 divides zero by zero where the last noise level is 0."""
    pipe.scheduler = diffusers.UniPCMultistepScheduler(**FLOW, solver_type="bh1")
    with drive(pipe, **call_of(WAN)) as held:
        integrator, x = started(held, STEPS - 1)
        with pytest.raises(HostError, match=r"steps from 11 to 12 .*not a number: give it another"):
            integrator.move(x, torch.ones_like(x), STEPS - 1, STEPS)


def test_no_samples_are_no_work():
    integrator, x = SolverIntegrator([], (1.0, 0.5, 0.0)), torch.zeros(0, 4)
    assert integrator.move(x, x, 0, 2).shape == x.shape
    assert integrator.columns(x, [x], x, 0, 2)[1].shape == x.shape
