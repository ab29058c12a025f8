"""States of the flow, on flows whose states are known in closed form."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import mixture, noise_of

from tacache import PlanError, time_grid
from tacache.fitting.flow import (
    divided,
    equivalent_steps,
    extrapolated,
    measured_order,
    states_at,
)


def euler(velocity, x, times):
    """All states and velocities of an Euler run."""
    states, velocities = [x], []
    for t, following in itertools.pairwise(times):
        velocities.append(velocity(states[-1], t))
        states.append(states[-1] - (t - following) * velocities[-1])
    return torch.stack(states), torch.stack(velocities)


def decay(x, t):
    """dx/dt = x, whose state at t is x(1) exp(t - 1)."""
    return x


def test_a_divided_grid_keeps_its_levels():
    times = time_grid(5, shift=3.0)
    finer = divided(times, 3)
    assert len(finer) == 16
    assert finer[::3] == pytest.approx(times)
    assert all(a > b for a, b in itertools.pairwise(finer))


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.floats(0.05, 0.95))
def test_a_cubic_is_interpolated_exactly(weights, level):
    times = time_grid(7, shift=2.0)
    powers = torch.tensor(weights, dtype=torch.float64)

    def state(t):
        return sum(w * t**n for n, w in enumerate(powers))

    def velocity(t):
        return sum(n * w * t ** (n - 1) for n, w in enumerate(powers) if n)

    states = torch.stack([torch.as_tensor(state(t)) for t in times])
    velocities = torch.stack([torch.as_tensor(velocity(t)) for t in times[:-1]])
    if level > times[-2]:  # below it the last velocity is not known
        found = states_at([level], times, states, velocities)
        torch.testing.assert_close(found[0], torch.as_tensor(state(level)), rtol=0, atol=1e-9)


def test_a_level_of_the_grid_is_its_state_and_the_last_step_is_a_parabola():
    times = (1.0, 0.5, 0.0)
    states = torch.tensor([1.0, 0.25, 0.0], dtype=torch.float64)  # t^2
    velocities = torch.tensor([2.0, 1.0], dtype=torch.float64)
    found = states_at([1.0, 0.5, 0.25, 0.0], times, states, velocities)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.25, 0.0625, 0.0], dtype=torch.float64))


def test_no_interpolation_crosses_a_break():
    """The velocity jumps from 1 to 3 at 0.45, in the middle of a step."""
    times = (1.0, 0.6, 0.3, 0.0)
    at_break = 1.0 - 0.55

    def state(t):
        return t if t >= 0.45 else at_break - 3 * (0.45 - t)

    states = torch.tensor([state(t) for t in times], dtype=torch.float64)
    velocities = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    levels = [0.5, 0.46, 0.4, 0.31]
    found = states_at(levels, times, states, velocities, breaks=(0.45,))
    expected = torch.tensor([state(t) for t in levels], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_a_level_outside_of_the_run_is_refused():
    with pytest.raises(PlanError, match="outside of the finer run"):
        states_at([0.1], (1.0, 0.5), torch.zeros(2), torch.zeros(1))


def test_two_runs_point_to_the_flow():
    x = noise_of(2)
    ends = {n: euler(decay, x, time_grid(n))[0][-1] for n in (50, 100)}
    exact = x * math.exp(-1)
    error = {n: (end - exact).norm() for n, end in ends.items()}
    left = (extrapolated(ends[50], ends[100], 2) - exact).norm()
    assert left < error[50] / 100
    assert error[50] / error[100] == pytest.approx(2, rel=0.02)


def test_the_order_of_euler_is_measured_as_one_and_of_a_midpoint_as_two():
    x, ends = noise_of(2), {}
    for n in (20, 40, 80):
        grid = time_grid(n)
        ends[n] = euler(decay, x, grid)[0][-1]
    first, second = (ends[20] - ends[40]).norm(), (ends[40] - ends[80]).norm()
    assert measured_order(float(first), float(second), 2) == pytest.approx(1, abs=0.05)
    assert measured_order(4.0, 1.0, 2) == pytest.approx(2)
    assert measured_order(0.0, 0.0, 2) == 1


def test_on_a_mixture_the_extrapolation_is_as_near_as_many_more_steps():
    flow, x, times = mixture(), noise_of(6), time_grid(50, shift=3.0)
    coarse = euler(flow, x, times)[0]
    finer = time_grid(100, shift=3.0)  # whose levels are others
    states, velocities = euler(flow, x, finer)
    fine = states_at(times, finer, states, velocities)
    truth = euler(flow, x, divided(times, 40))[0][::40]
    found = extrapolated(coarse, fine, 2)

    def error(run):
        return float((run[-1] - truth[-1]).norm())

    assert error(found) < error(coarse) / 8
    assert error(fine) == pytest.approx(error(coarse) / 2, rel=0.15)


@pytest.mark.parametrize("missing", [50, 100])
def test_equivalent_steps_of_a_run_are_its_steps(missing):
    """Also where its own count is not among those that were measured."""
    flow, x = mixture(), noise_of(6)
    truth = euler(flow, x, time_grid(2000, shift=3.0))[0][-1]
    error = {
        n: float((euler(flow, x, time_grid(n, shift=3.0))[0][-1] - truth).norm() / truth.norm())
        for n in (25, 50, 100, 200)
    }
    others = {n: e for n, e in error.items() if n != missing}
    assert equivalent_steps(error[missing], others) == pytest.approx(missing, abs=3)


def test_equivalent_steps_go_on_with_eulers_order_and_refuse_nothing_measured():
    measured = {25: 0.04, 50: 0.02}
    assert equivalent_steps(0.01, measured) == pytest.approx(100)
    assert equivalent_steps(0.08, measured) == pytest.approx(12.5)
    assert equivalent_steps(0.0, measured) == math.inf
    with pytest.raises(PlanError, match="need the distances"):
        equivalent_steps(0.1, {})


def test_more_steps_are_never_taken_to_be_worse():
    assert 25 <= equivalent_steps(0.02, {25: 0.02, 50: 0.021, 100: 0.005}) <= 100
