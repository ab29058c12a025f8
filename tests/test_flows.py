import math

import numpy as np
import pytest
import torch
from tests.flows import GaussianFlow, GaussianMixtureFlow, picture_flow
from tests.support import mixture, noise_of, rotating

from tacache import Plan, calibrate, make_plan, sample, time_grid
from tacache.tasu import indicators, relative_distance


@pytest.mark.parametrize("t", [0.05, 0.3, 0.5, 0.9, 1.0])
def test_the_gaussian_solution_satisfies_its_equation(t):
    flow, noise, h = GaussianFlow(noise_of(1, seed=3)[0], 0.4), noise_of(3), 1e-5
    slope = (flow.solution(noise, t + h) - flow.solution(noise, t - h)) / (2 * h)
    torch.testing.assert_close(flow(flow.solution(noise, t), t), slope, rtol=1e-8, atol=1e-8)


def test_the_gaussian_solution_starts_at_the_noise_and_ends_at_the_data():
    flow, noise = GaussianFlow(torch.full((2, 3), 2.0), 0.5), noise_of(4)
    torch.testing.assert_close(flow.solution(noise, 1.0), noise)
    torch.testing.assert_close(flow.solution(noise, 0.0), 2.0 + 0.5 * noise)


@pytest.mark.parametrize("t", [0.1, 0.6, 1.0])
def test_a_mixture_of_one_is_the_gaussian(t):
    mean, x = noise_of(1, seed=3), noise_of(4)
    one = GaussianMixtureFlow(mean, [0.4], [1.0])
    torch.testing.assert_close(one(x, t), GaussianFlow(mean[0], 0.4)(x, t))


@pytest.mark.parametrize("t", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("x", [-1.3, 0.0, 0.7])
def test_the_mixture_velocity_is_the_conditional_mean_of_noise_minus_data(x, t):
    means, stds, weights = [-1.0, 0.5, 2.0], [0.3, 0.6, 0.4], [0.2, 0.5, 0.3]
    data = np.linspace(-8, 8, 200_001)
    noise = (x - (1 - t) * data) / t
    density = sum(
        w / s * np.exp(-(((data - m) / s) ** 2) / 2)
        for m, s, w in zip(means, stds, weights, strict=True)
    ) * np.exp(-(noise**2) / 2)
    expected = np.sum(density * (noise - data)) / np.sum(density)
    flow = GaussianMixtureFlow(torch.tensor(means).double()[:, None], stds, weights)
    found = flow(torch.tensor([[x]], dtype=torch.float64), t).item()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_mixture_shares_are_probabilities_and_the_weights_at_pure_noise():
    flow, x = mixture(), noise_of(5)
    shares = flow.shares(x, 0.4)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(5).double())
    torch.testing.assert_close(flow.shares(x, 1.0), torch.tensor([[0.5, 0.3, 0.2]] * 5).double())


def test_the_rotating_velocity_is_the_same_for_all_states():
    flow = rotating()
    v = flow(noise_of(3), 0.6)
    assert torch.equal(v[0], v[2])
    assert torch.equal(v, flow(noise_of(3, seed=9), 0.6))


@pytest.mark.parametrize(("rate", "growth"), [(1.5, -0.4), (-2.0, 0.0), (0.0, 0.7)])
def test_the_rotating_flow_states_its_own_k_and_d(rate, growth):
    flow, x, length = rotating(rate, growth), noise_of(2), 0.15
    k, d = indicators(flow(x, 0.8), flow(x, 0.8 - length), length)
    assert k == pytest.approx([flow.magnitude(length)] * 2, rel=1e-12)
    assert d == pytest.approx([flow.direction(length)] * 2, rel=1e-12, abs=1e-15)
    assert math.isclose(flow(x, 1.0)[0].norm().item(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_flows_answer_in_the_dtype_of_the_state(dtype):
    x = noise_of(2, dtype=dtype)
    for flow in (mixture(), rotating(), GaussianFlow(noise_of(1)[0], 0.4)):
        v = flow(x, 0.5)
        assert (v.dtype, v.shape) == (dtype, x.shape)
        torch.testing.assert_close(v.double(), flow(x.double(), 0.5), rtol=0.1, atol=0.1)


def test_reconstructed_pictures_end_nearer_than_reused_ones():
    """The whole way on pictures: calibrate on one set of noise, compare on another."""
    flow, times = picture_flow(), time_grid(16, 3.0)
    calibration, noise = torch.randn(2, 4, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    profile = calibrate(flow, calibration, times)
    full = sample(flow, noise, Plan.full(times))

    def distance(plan):
        return float(relative_distance(sample(flow, noise, plan), full).mean())

    plans = [make_plan(profile, evaluations=k) for k in (8, 5)]
    rebuilt = [distance(plan) for plan in plans]
    reused = [distance(plan.model_copy(update={"rule": "reuse"})) for plan in plans]
    assert 0 < rebuilt[0] < reused[0]
    assert rebuilt[0] < rebuilt[1] < reused[1]
