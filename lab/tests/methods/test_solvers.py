"""Solvers and samplers: orders of convergence on flows with exact answers, and small cases."""

import itertools
import math

import pytest
import torch
from tests.flows import GaussianFlow
from tests.support import mixture, noise_of

from tacache import time_grid
from tacache_lab.methods import BASELINES, SamplingProblem, record
from tacache_lab.methods.samplers import A2SSettings, teacher_path
from tacache_lab.methods.simple import GridSettings
from tacache_lab.methods.solvers import adams_bashforth_2, dpm_solver_pp_2m, heun, unipc

FLOW = GaussianFlow(torch.tensor([[1.0, -2.0]], dtype=torch.float64), 0.3)
NOISE = noise_of(3, (1, 2))


def error(solve, times):
    """The distance to the exact flow; it starts on it, at times[0]."""
    start = FLOW.solution(NOISE, times[0])
    return float((solve(FLOW, start, times) - FLOW.solution(NOISE, times[-1])).abs().max())


def inner_grid(steps):
    """Within (0, 1), where lambda is finite, and uneven."""
    return [0.05 + 0.9 * t for t in time_grid(steps, 2.0)]


@pytest.mark.parametrize(
    ("solve", "order"),
    [(adams_bashforth_2, 2), (heun, 2), (dpm_solver_pp_2m, 2), (unipc, 2.5)],
)
def test_order_of_convergence(solve, order):
    errors = [error(solve, inner_grid(steps)) for steps in (40, 80, 160)]
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) > order - 0.25


@pytest.mark.parametrize("solve", [adams_bashforth_2, heun, dpm_solver_pp_2m, unipc])
def test_the_ends_of_the_grid_are_no_trouble(solve):
    """From t = 1 to t = 0, where lambda is infinite, still better than Euler."""

    def euler(model, x, times):
        for t, t_next in itertools.pairwise(times):
            x = x - (t - t_next) * model(x, t)
        return x

    errors = [error(solve, time_grid(steps)) for steps in (40, 80, 160)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < error(euler, time_grid(160)) / 5


@pytest.mark.parametrize("solve", [dpm_solver_pp_2m, unipc])
def test_a_known_picture_takes_one_step(solve):
    """Exponential integrators are exact where the data prediction is constant."""
    data = torch.tensor([[2.0, -1.0]], dtype=torch.float64)

    def velocity(x, t):
        return (x - data) / t

    noise = noise_of(1, (2,))
    for times in ([1.0, 0.0], [1.0, 0.4, 0.3, 0.0], [0.9, 0.2]):
        start = (1 - times[0]) * data + times[0] * noise
        end = (1 - times[-1]) * data + times[-1] * noise
        torch.testing.assert_close(solve(velocity, start, times), end)


def test_heun_by_hand():
    # dx/dt = x from x(1) = 1: t = 1 -> 0.5 -> 0; the last step is Euler's
    x = heun(lambda x, t: x, torch.ones(1, 1, dtype=torch.float64), [1.0, 0.5, 0.0])
    first = 1 - 0.25 * (1 + 0.5)
    assert x.item() == pytest.approx(first * 0.5)


def test_ab2_by_hand():
    # v = t: the second step, half as long, weighs 1.25 and -0.25
    x = adams_bashforth_2(lambda x, t: t + 0 * x, torch.zeros(1, 1), [1.0, 0.5, 0.25])
    assert x.item() == pytest.approx(-0.5 - 0.25 * (1.25 * 0.5 - 0.25 * 1.0))


@pytest.mark.parametrize(("evaluations", "steps", "spent"), [(7, 4, 7), (8, 4, 7), (1, 1, 1)])
def test_heun_pays_twice_a_step(evaluations, steps, spent):
    given = record(FLOW, NOISE, time_grid(10))
    settings = BASELINES["heun"].fit(given, evaluations)
    assert len(settings.times) == steps + 1
    assert BASELINES["heun"].run(given, settings).evaluations == (spent,) * 3


@pytest.mark.parametrize("name", ["dpm++2m", "unipc"])
@pytest.mark.parametrize("steps", [5, 12])
def test_as_diffusers_solves(name, steps):
    diffusers = pytest.importorskip("diffusers")
    options = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 2.0}
    if name == "unipc":
        scheduler = diffusers.UniPCMultistepScheduler(**options, solver_order=2, solver_type="bh2")
    else:
        scheduler = diffusers.DPMSolverMultistepScheduler(**options, euler_at_final=True)
    scheduler.set_timesteps(steps)
    flow, noise = mixture((1, 4, 4)), noise_of(2, (1, 4, 4))
    x = noise
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(flow(x, float(scheduler.sigmas[i])), t, x).prev_sample
    given = SamplingProblem(flow, noise, scheduler.sigmas.tolist())
    outcome = BASELINES[name].run(given, GridSettings(times=given.times))
    torch.testing.assert_close(outcome.x, x, rtol=1e-4, atol=1e-4)


def test_a2s_with_gain_one_moves_only_the_label():
    """Exact for velocities linear in t that do not depend on x (midpoint rule)."""

    def velocity(x, t):
        return (3 * t - 1) + 0 * x

    given = SamplingProblem(velocity, torch.zeros(1, 2, dtype=torch.float64), [1.0, 0.5, 0.0])
    settings = A2SSettings(times=(1.0, 0.5, 0.0), first_gain=1.0, last_gain=1.0)
    outcome = BASELINES["a2s"].run(given, settings)
    torch.testing.assert_close(outcome.x, torch.full((1, 2), -0.5, dtype=torch.float64))
    assert outcome.evaluated == ((0.75, 0.25),)


def test_a2s_gains_are_linear_over_the_steps():
    given = SamplingProblem(
        lambda x, t: torch.ones_like(x), torch.zeros(1, 1), [1.0, 0.5, 0.25, 0.0]
    )
    settings = A2SSettings(times=given.times)
    expected = -(0.95 * 0.5 + 1.0 * 0.25 + 1.05 * 0.25)
    assert BASELINES["a2s"].run(given, settings).x.item() == pytest.approx(expected)


def path_error(recording, nodes):
    times = tuple(recording.times[n] for n in nodes)
    return recording.error(BASELINES["oss"].run(recording, GridSettings(times=times)).x)


@pytest.mark.parametrize("steps", [1, 2])
def test_oss_finds_the_best_grid(steps):
    """Brute force; with two steps the dynamic program forgets nothing."""
    recording = record(mixture((3,)), noise_of(1, (3,)), time_grid(9, 2.0))
    inner = itertools.combinations(range(1, 9), steps - 1)
    errors = {(0, *nodes, 9): path_error(recording, (0, *nodes, 9)) for nodes in inner}
    assert teacher_path(recording, steps) == min(errors, key=errors.get)


def test_oss_on_one_number_is_brute_force_at_any_length():
    """dx/dt = x: states are ordered, so the state nearest to the teacher is the best to go on."""
    recording = record(lambda x, t: x, torch.ones(1, 1, dtype=torch.float64), time_grid(8, 3.0))
    for steps in (3, 4, 6):
        inner = itertools.combinations(range(1, 8), steps - 1)
        errors = [path_error(recording, (0, *nodes, 8)) for nodes in inner]
        assert path_error(recording, teacher_path(recording, steps)) == pytest.approx(min(errors))


def test_oss_beats_fewer_steps():
    recording = record(mixture(), noise_of(4), time_grid(20, 2.0))
    for evaluations in (4, 6, 9):
        errors = [
            recording.error(baseline.run(recording, baseline.fit(recording, evaluations)).x)
            for baseline in (BASELINES["oss"], BASELINES["fewer"])
        ]
        assert errors[0] < errors[1]
