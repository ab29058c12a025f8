"""States of the flow, on flows whose states are known in closed form."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.flows import GaussianFlow
from tests.support import euler_steps, mean_distance, mixture, noise_of

from tacache import Plan, PlanError, fit_plan, sample, time_grid
from tacache.fitting import fit_runs
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.flow import (
    equivalent_steps,
    extrapolated,
    log_mean,
    slower_order,
    states_at,
)
from tacache.fitting.reference import record
from tacache.fitting.samples import FunctionSamples
from tacache.grid import divided
from tacache.tasu import relative_distance


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
    ends = {n: euler_steps(decay, x, time_grid(n))[0][-1] for n in (50, 100)}
    exact = x * math.exp(-1)
    error = {n: (end - exact).norm() for n, end in ends.items()}
    left = (extrapolated(ends[50], ends[100], 2) - exact).norm()
    assert left < error[50] / 100
    assert error[50] / error[100] == pytest.approx(2, rel=0.02)


def test_on_a_mixture_the_extrapolation_is_as_near_as_many_more_steps():
    flow, x, times = mixture(), noise_of(6), time_grid(50, shift=3.0)
    coarse = euler_steps(flow, x, times)[0]
    finer = time_grid(100, shift=3.0)  # whose levels are others
    states, velocities = euler_steps(flow, x, finer)
    fine = states_at(times, finer, states, velocities)
    truth = euler_steps(flow, x, divided(times, 40))[0][::40]
    found = extrapolated(coarse, fine, 2)

    def error(run):
        return float((run[-1] - truth[-1]).norm())

    assert error(found) < error(coarse) / 8
    assert error(fine) == pytest.approx(error(coarse) / 2, rel=0.15)


@pytest.mark.parametrize("missing", [50, 100])
def test_equivalent_steps_of_a_run_are_its_steps(missing):
    """Also where its own count is not among those that were measured."""
    flow, x = mixture(), noise_of(6)
    truth = euler_steps(flow, x, time_grid(2000, shift=3.0))[0][-1]
    error = {
        n: float(
            (euler_steps(flow, x, time_grid(n, shift=3.0))[0][-1] - truth).norm() / truth.norm()
        )
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


def gaussian():
    """Independent coordinates whose end is known in closed form."""
    return GaussianFlow(noise_of(1, (8,), seed=3)[0], 0.2)


@pytest.mark.slow
def test_a_fit_to_the_flow_comes_to_the_known_end_and_passes_the_run():
    flow, times = gaussian(), time_grid(50, shift=3.0)
    noise, unseen = noise_of(8, (8,)), noise_of(16, (8,), seed=1)
    truth = flow.solution(unseen, 0.0)
    run = mean_distance(euler_steps(flow, unseen, times)[0][-1], truth)
    found = [
        mean_distance(sample(flow, unseen, fit_to_flow(flow, noise, times, evaluations)), truth)
        for evaluations in (3, 7, 13)
    ]
    copied = fit_plan(flow, noise, times, evaluations=13, condition={})
    assert found[0] > found[1] > found[2]
    assert found[2] < run / 20
    assert mean_distance(sample(flow, unseen, copied), truth) == pytest.approx(run, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10, 16, 20, 24, 50])
@pytest.mark.parametrize("condition", [{}, None])
def test_no_more_steps_are_claimed_than_the_plan_is_worth(steps, condition):
    """The plan meets what stands for the flow almost exactly; that is off the flow itself."""
    flow, times = gaussian(), time_grid(steps, shift=3.0)
    noise, unseen = noise_of(8, (8,)), noise_of(64, (8,), seed=1)
    evaluations = min(10, steps - 2)
    plan = fit_plan(flow, noise, times, evaluations=evaluations, target="flow", condition=condition)
    truth = flow.solution(unseen, 0.0)
    off = mean_distance(sample(flow, unseen, plan), truth)
    claimed = round(plan.certificate.equivalent_steps)
    many = mean_distance(euler_steps(flow, unseen, time_grid(claimed, shift=3.0))[0][-1], truth)
    assert many > 0.9 * off
    assert claimed > 1.9 * steps  # and still a good deal of what it is worth


def fit_to_flow(flow, noise, times, evaluations, **options):
    return fit_plan(
        flow, noise, times, evaluations=evaluations, target="flow", condition={}, **options
    )


@pytest.mark.slow
def test_the_certificate_has_both_distances_and_a_sentence():
    flow, times = gaussian(), time_grid(20, shift=3.0)
    plan = fit_to_flow(flow, noise_of(8, (8,)), times, 10)
    found = plan.certificate
    assert found.flow_drift < found.drift
    assert found.equivalent_steps > 20
    assert found.nearness(10) == (
        f"10 evaluations, as near to the flow as {found.equivalent_steps:.0f} Euler steps"
    )
    assert Plan.from_json(plan.to_json()) == plan
    plain = fit_plan(flow, noise_of(8, (8,)), times, evaluations=10, condition={})
    assert plain.certificate.nearness(10) is None
    assert "flow_drift" not in plain.to_json()


@pytest.mark.slow
def test_one_sample_that_ends_elsewhere_does_not_decide_the_equivalent_steps():
    assert log_mean([0.01, 0.01, 1.0, 1.0]) == pytest.approx(0.1)
    assert log_mean([0.5, 0.0]) == 0.0
    flow, times, condition = gaussian(), time_grid(20, shift=3.0), {}
    runs = FunctionSamples(flow, noise_of(8, (8,)), times, condition)
    options = FitOptions(evaluations=(10,), target="flow")
    (plan,), aim = fit_runs(runs, options), record(runs, options).aim
    end = aim.states_at((0.0,))[0, :2]  # of eight samples two are held out
    apart = relative_distance(runs.ends_by(plan, [0, 1]), end).flatten().tolist()
    found = equivalent_steps(max(log_mean(apart), aim.floor), aim.euler)
    assert plan.certificate.equivalent_steps == pytest.approx(found)
    by_steps = relative_distance(runs.ends_by(Plan.full(times), [0, 1]), end).flatten().tolist()
    assert aim.euler[20] == pytest.approx(log_mean(by_steps))


@pytest.mark.slow
def test_eight_samples_and_one_budget_stay_within_3000_evaluations():
    flow, times, calls = mixture(), time_grid(50, shift=3.0), []

    def counted(x, t):
        calls.append(len(x))
        return flow(x, t)

    plan = fit_plan(counted, noise_of(8), times, evaluations=13, target="flow", condition={})
    assert plan.certificate.evaluations_spent == sum(calls) <= 3000


@pytest.mark.slow
def test_a_finer_reference_is_a_multiple_and_finer():
    flow, noise, times = mixture(), noise_of(4), time_grid(10)
    calls = []

    def counted(x, t):
        calls.append(t)
        return flow(x, t)

    with pytest.raises(PlanError, match="reference_steps=20"):
        fit_to_flow(counted, noise, times, 5, reference_steps=17)
    assert not calls
    with pytest.raises(PlanError, match="above the 10 steps"):
        fit_to_flow(flow, noise, times, 5, reference_steps=10)
    finer = fit_to_flow(flow, noise, times, 5, reference_steps=40)
    assert finer.certificate.evaluations_spent <= 3000


@pytest.mark.slow
def test_an_odd_number_of_steps_has_a_reference_too():
    plan = fit_to_flow(mixture(), noise_of(4), time_grid(15, shift=2.0), 12)
    assert plan.certificate.equivalent_steps > 30


@pytest.mark.slow
def test_where_all_steps_are_exact_no_number_of_them_is_named():
    straight = fit_to_flow(lambda x, t: torch.ones_like(x), noise_of(8), time_grid(16), 4)
    assert straight.certificate.flow_drift == pytest.approx(0, abs=1e-6)
    assert straight.certificate.equivalent_steps is None


def test_a_budget_that_the_flow_does_not_leave_is_refused_before_any_work():
    calls = []

    def counted(x, t):
        calls.append(t)
        return x

    with pytest.raises(PlanError, match="max_evaluations=200 is too few"):
        fit_to_flow(counted, noise_of(4), time_grid(20), 5, max_evaluations=200)
    assert not calls


def test_a_single_sample_that_turns_elsewhere_says_nothing_of_the_order():
    runs = FunctionSamples(mixture(), noise_of(2), time_grid(4), {})
    slow = {n: torch.full((2, 3), 1 + n**-0.5) for n in (20, 40, 80)}
    assert slower_order(runs, slow) == pytest.approx(0.5, abs=0.02)
    mixed = {n: torch.stack([end[0], torch.full((3,), 1 + 1 / n)]) for n, end in slow.items()}
    assert slower_order(runs, mixed) is None
    assert slower_order(runs, {n: slow[n] for n in (40, 80)}) is None
