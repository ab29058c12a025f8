"""Plans at once: anchors by the grid alone, exact where velocities change linearly in time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import euler_run, mixture, noise_of

from tacache import (
    Plan,
    PlanError,
    calibrate,
    instant_plan,
    make_plan,
    sample,
    time_grid,
)
from tacache.grid import break_steps
from tacache.instant import spread_anchors
from tacache.moving import from_step, replan, until_step, with_breaks


@given(st.integers(1, 60), st.data())
def test_as_many_anchors_as_asked_for_on_any_steps(steps, data):
    evaluations = data.draw(st.integers(1, steps))
    plan = instant_plan(time_grid(steps, shift=3.0), evaluations)
    assert (plan.rule, plan.evaluations, plan.steps) == ("linear", evaluations, steps)
    assert Plan.from_json(plan.to_json()) == plan


@given(st.integers(4, 60), st.data())
def test_every_new_part_starts_with_an_anchor_and_no_history(steps, data):
    times = time_grid(steps, shift=3.0)
    levels = data.draw(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=2, unique=True))
    breaks = tuple(sorted(levels, reverse=True))
    parts = break_steps(times, breaks)
    evaluations = data.draw(st.integers(1 + len(parts), steps))
    plan = instant_plan(times, evaluations, breaks=breaks)
    assert plan.evaluations == evaluations
    assert set(parts) <= set(plan.anchors)
    assert all(plan.weights[plan.anchors.index(n)] == (1.0,) for n in parts)


def test_anchors_are_a_little_denser_at_both_ends():
    intervals = instant_plan(time_grid(50), 13).intervals
    assert intervals[0] < max(intervals) > intervals[-1]
    assert max(intervals) <= 5
    assert spread_anchors(50, 50) == tuple(range(50))


@pytest.mark.parametrize("evaluations", [0, 21])
def test_a_budget_that_cannot_be_is_refused(evaluations):
    with pytest.raises(PlanError, match="20 steps take 1 to 20"):
        instant_plan(time_grid(20), evaluations)


def test_velocities_that_change_linearly_in_time_are_met_on_the_grid():
    """From the second anchor on: the first has no other before it."""
    times, slope = time_grid(20, shift=2.0), noise_of(3, seed=4)

    def velocity(x, t):
        return slope * t + 1

    plan = instant_plan(times, 6)
    first = plan.anchors[1]
    missed = sum((times[0] - times[j]) * (times[j] - times[j + 1]) for j in range(first))
    x = noise_of(3)
    expected = euler_run(velocity, x, times) - slope * missed
    torch.testing.assert_close(sample(velocity, x, plan), expected, rtol=0, atol=1e-12)


def test_it_is_far_better_than_reuse_and_needs_no_profile():
    flow, times, x = mixture(), time_grid(50, shift=3.0), noise_of(16, seed=5)
    full = euler_run(flow, x, times)
    profile = calibrate(flow, noise_of(8), times)

    def error(plan):
        return float((sample(flow, x, plan) - full).norm() / full.norm())

    for evaluations in (13, 25):
        instant = error(instant_plan(times, evaluations))
        assert instant < error(make_plan(profile, evaluations=evaluations, rule="reuse")) / 2
        assert instant < error(make_plan(profile, evaluations=evaluations))


def test_it_moves_to_another_grid_by_itself():
    plan = instant_plan(time_grid(50, shift=3.0), 13, breaks=(0.5,))
    other = time_grid(28, shift=1.0)
    assert replan(plan, other) == instant_plan(other, 7, breaks=(0.5,))
    assert replan(plan, time_grid(1)).evaluations == 1


def test_stretches_and_breaks_are_extrapolated_anew():
    times = time_grid(30, shift=2.0)
    plan = instant_plan(times, 10)
    later = from_step(plan, 7)
    assert later.times == plan.times[7:]
    assert later.weights[0] == (1.0,)
    assert len(later.weights[1]) <= 2
    parted = with_breaks(plan, (times[12],))
    assert parted.weights[parted.anchors.index(parted.break_steps[0])] == (1.0,)
    early = until_step(plan, 11)
    assert early.steps == 11
    assert Plan.model_validate(early.model_dump()) == early
