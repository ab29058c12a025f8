import logging

import pytest
import torch
from tests.support import TIMES, fitted, tasu

from tacache import (
    HostError,
    Origin,
    Plan,
    PlanError,
    Profile,
    Stepper,
    instant_plan,
    make_plan,
    time_grid,
)
from tacache.moving import at_levels, from_step, moved_to, replan, until_step, with_breaks


def test_a_plan_is_made_anew_on_another_grid(profile):
    plan = make_plan(profile, tau_k=0.3, tau_d=0.4, max_skip=6, rule="direction")
    times = time_grid(33, shift=2.0)
    moved = replan(plan, times)
    options = {"tau_k": 0.3, "tau_d": 0.4, "max_skip": 6, "rule": "direction"}
    there = profile.resample(times)
    assert moved == make_plan(there, **options)
    assert moved.evaluations == plan.evaluations
    assert replan(plan, times, 9).evaluations == 9
    assert replan(plan, time_grid(plan.evaluations - 1)).evaluations == plan.evaluations - 1


def for_the_flow(rule="fitted"):
    plan = instant_plan(TIMES, 3, target="flow")
    return plan.model_copy(update={"rule": rule})


def test_a_plan_for_the_flow_keeps_its_times_on_any_grid_with_the_same_ends():
    plan, log = for_the_flow(), logging.getLogger()
    assert moved_to(plan, TIMES, log) is plan
    assert moved_to(plan, tuple(time_grid(9, shift=7.0)), log) is plan
    with pytest.raises(HostError, match="times of its own"):
        moved_to(plan, TIMES[1:], log)


def test_a_plan_fitted_to_the_flow_is_an_instant_one_for_a_part_of_the_run():
    """Its weights are for the history of its first nodes, which a start midway does not have."""
    plan, half = for_the_flow(), len(TIMES) // 2
    whole, share = len(TIMES) - 1, lambda steps: max(1, round(3 * steps / (len(TIMES) - 1)))
    later = from_step(plan, half)
    assert later == instant_plan(TIMES[half:], share(whole - half), target="flow")
    assert until_step(plan, half) == instant_plan(TIMES[: half + 1], share(half), target="flow")


def test_breaks_that_a_plan_fitted_to_the_flow_does_not_know_are_refused():
    with pytest.raises(HostError, match="fit one for such runs"):
        with_breaks(for_the_flow(), (0.5,))
    assert with_breaks(for_the_flow("linear"), (0.5,)).breaks == (0.5,)


def test_a_full_plan_is_full_on_any_grid():
    moved = replan(Plan.full(TIMES).model_copy(update={"origin": Origin(model="m")}), time_grid(9))
    assert (moved.evaluations, moved.steps, moved.origin.model) == (9, 9, "m")


def test_a_plan_without_thresholds_does_not_move():
    for plan in (fitted(), tasu()):
        with pytest.raises(PlanError, match=f"a {plan.rule} plan without .*: make one for this"):
            replan(plan, time_grid(9))


def test_breaks_put_in_later_add_their_anchors():
    plan = with_breaks(tasu(anchors=(0, 3)), [0.8])
    assert plan.anchors == (0, 1, 2, 3)
    assert plan.break_steps == (1,)
    assert with_breaks(plan, [0.8]) is plan
    parted = with_breaks(fitted(anchors=(0, 3)), [0.8])
    assert parted.anchors == (0, 1, 2, 3)
    assert parted.weights == ((1.0,),) * 4  # no row meets the velocities it was fitted on


def test_weights_that_meet_their_velocities_outlive_a_break():
    times = tuple(time_grid(12))
    rows = ((1.0,), (1.5, -0.5), (1.6, -0.6), (1.7, -0.7), (1.8, -0.8))
    plan = Plan(rule="fitted", times=times, anchors=(0, 1, 3, 6, 9), weights=rows)
    parted = with_breaks(plan, [times[4] + 1e-9])
    assert parted.anchors == (0, 1, 3, 4, 5, 6, 9)
    # 3 ends sooner now, 4 and 5 are new, 6 met 3; 0, 1 and 9 are as they were.
    assert parted.weights == (rows[0], rows[1], (1.0,), (1.0,), (1.0,), (1.0,), rows[4])


def carried_plan():
    times = tuple(time_grid(12))
    rows = ((1.0,), (1.5, -0.5), (1.8, -1.2, -0.5), (1.7, -1.1, -0.4), (1.6, -0.8, -0.25))
    rows = (*rows, (1.9, -1.3, -0.6), (1.3, -0.5, -0.8))
    fields = {"anchors": (0, 1, 3, 5, 7, 9, 11), "weights": rows}
    return Plan(rule="fitted", times=times, **fields)


def test_a_memory_that_begins_later_makes_up_for_what_it_lacks():
    plan, later = carried_plan(), from_step(carried_plan(), 3)
    assert later.anchors == (0, 1, 2, 4, 6, 8)  # 3, one more to learn from, 5, 7, 9, 11
    # 9 meets 5 and 7 as it was fitted. The memory at 7 had a sum of 1 - 0.25 (1 - 0.4 (1 - 0.5)).
    met = (1.9, -1.3, pytest.approx(-0.6 * 0.8))
    assert later.weights == (*[(1.0,)] * 4, met, plan.weights[6])
    assert with_breaks(plan, [plan.times[2]]).weights[-2:] == (met, plan.weights[6])
    assert until_step(plan, 11).weights == plan.weights[:6]


def test_of_equal_velocities_a_late_memory_makes_the_same():
    """The sum of what it holds is the same as that of the whole memory."""
    plan = carried_plan()
    later, v = Stepper(from_step(plan, 3)), torch.ones(1, 3)
    whole = Stepper(plan)
    expected = [whole.jump(v, lambda: v) for _ in plan.anchors]
    found = [later.jump(v, lambda: v) for _ in later.plan.anchors]
    torch.testing.assert_close(found[-2:], expected[-2:])


def test_a_split_plan_keeps_its_evaluations_on_another_grid():
    times = time_grid(21)
    even = Profile.from_samples(times, [[0.0]] * 20, [[0.0625]] * 20)
    plan = make_plan(even, evaluations=10)
    by_thresholds = make_plan(even, tau_k=plan.tau_k, tau_d=plan.tau_d)
    assert by_thresholds.evaluations < 10  # only splits reach 10
    assert replan(plan, times).evaluations == 10
    assert replan(plan, time_grid(42)).evaluations == 10


def test_a_plan_from_a_later_step_starts_without_history():
    plan = from_step(tasu(anchors=(0, 1, 3)), 1)
    assert (plan.times, plan.anchors) == (TIMES[1:], (0, 1, 2))
    assert (plan.magnitude, plan.direction) == ((0.5, 0.0, 0.0), (0.2, 0.3, 0.3))
    late = from_step(fitted(), 3)
    assert (late.anchors, late.weights) == ((0,), ((1.0,),))
    assert from_step(fitted(), 2).weights == ((1.0,), (1.0,))


def parted_plan():
    times = tuple(time_grid(12, shift=3.0))
    rows = ((1.0,), (1.5, -0.5), (1.6, -0.6), (1.0,), (1.8, -0.8))
    middle = (times[5] + times[6]) / 2
    return Plan(rule="fitted", times=times, anchors=(0, 1, 3, 6, 9), weights=rows, breaks=(middle,))


def test_other_levels_keep_the_steps():
    plan, times = parted_plan(), tuple(time_grid(12, shift=3.01))
    moved = at_levels(plan, times)
    assert moved == plan.model_copy(update={"times": times})


def test_a_break_falls_on_another_step_at_other_levels():
    """The same noise level is reached earlier with less shift: an anchor must be there."""
    plan, times = parted_plan(), tuple(time_grid(12, shift=1.0))
    moved = at_levels(plan, times)
    assert moved.break_steps < plan.break_steps
    assert set(moved.break_steps) <= set(moved.anchors)
    assert set(plan.anchors) <= set(moved.anchors)
    assert moved.times == times


def test_the_first_steps_of_a_plan():
    plan = parted_plan().model_copy(update={"breaks": ()})
    assert until_step(plan, 12) is plan
    whole, cut = until_step(plan, 9), until_step(plan, 8)
    assert whole.weights == plan.weights[:4]  # its last interval ended there anyway
    assert cut.anchors == whole.anchors == (0, 1, 3, 6)
    assert cut.weights == (*plan.weights[:3], (1.0,))
    assert cut.times == plan.times[:9]
