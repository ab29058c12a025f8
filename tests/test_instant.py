"""Plans at once: anchors by the grid alone, exact where velocities change linearly in time."""

import runpy
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import euler_run, mixture, noise_of

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
from tacache.instant import (
    CLIP_LIKE_STEPS,
    DEFAULT_EVALUATIONS,
    LIKE_STEPS,
    PLAIN_IS_NEARER,
    default_evaluations,
    like_evaluations,
    line_share,
    loses_to_plain_steps,
    plain_plan,
    spread_anchors,
)
from tacache.moving import from_step, replan, until_step, with_breaks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@given(st.integers(1, 60), st.data())
def test_as_many_anchors_as_asked_for_on_any_steps(steps, data):
    evaluations = data.draw(st.integers(1, steps))
    plan = instant_plan(time_grid(steps, shift=3.0), evaluations)
    assert (plan.rule, plan.evaluations, plan.steps) == ("linear", evaluations, steps)
    assert Plan.from_json(plan.to_json()) == plan


def run_in_parts(steps, data):
    """A grid with breaks, the steps at which parts begin, and a budget that is enough for them."""
    times = time_grid(steps, shift=3.0)
    levels = data.draw(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=3, unique=True))
    breaks = tuple(sorted(levels, reverse=True))
    parts = break_steps(times, breaks)
    return times, breaks, parts, data.draw(st.integers(1 + len(parts), steps))


@given(st.integers(4, 60), st.data())
def test_every_new_part_starts_with_an_anchor_and_no_history(steps, data):
    times, breaks, parts, evaluations = run_in_parts(steps, data)
    plan = instant_plan(times, evaluations, breaks=breaks)
    assert plan.evaluations == evaluations
    assert set(parts) <= set(plan.anchors)
    assert all(plan.weights[plan.anchors.index(n)] == (1.0,) for n in parts)


@given(st.integers(4, 60), st.data())
def test_towards_the_flow_each_part_has_a_node_at_the_first_level_of_the_run(steps, data):
    times, breaks, parts, evaluations = run_in_parts(steps, data)
    plan = instant_plan(times, evaluations, breaks=breaks, target="flow")
    assert {times[n] for n in parts} <= set(plan.times)
    assert len(plan.break_steps) >= len(parts)


def test_anchors_are_denser_at_both_ends():
    intervals = instant_plan(time_grid(50), 13).intervals
    assert intervals[0] < max(intervals) > intervals[-1]
    assert max(intervals) <= 5
    assert spread_anchors(50, 50) == tuple(range(50))


@pytest.mark.parametrize(
    ("evaluations", "anchors"),
    [
        (4, (0, 1, 3, 6)),
        (5, (0, 1, 2, 4, 6)),
        (6, (0, 1, 2, 3, 5, 7)),
        (7, (0, 1, 2, 3, 4, 5, 7)),
    ],
)
def test_runs_of_eight_steps_reuse_where_it_costs_least(evaluations, anchors):
    plan = instant_plan(time_grid(8, shift=3.0), evaluations)
    assert plan.anchors == anchors
    assert set(plan.weights) == {(1.0,)}


@given(st.integers(9, 100), st.data())
def test_where_few_steps_are_skipped_the_first_are_not_among_them(steps, data):
    skipped = data.draw(st.integers(1, max(1, steps // 7)))
    anchors = spread_anchors(steps, steps - skipped)
    assert anchors[: steps // 7] == tuple(range(steps // 7))


def test_straight_lines_are_followed_where_velocities_lie_close_together():
    assert [line_share(8, k) for k in (2, 7)] == [0, 0]
    assert [line_share(16, k) for k in (11, 12)] == [0, 1]
    assert [line_share(50, k) for k in (7, 8, 9, 10, 49)] == [0, 0.5, 0.5, 1, 1]


@given(st.integers(1, 1000))
def test_the_default_evaluates_no_more_than_all_steps_and_about_as_much_of_longer_runs(steps):
    assert 1 <= default_evaluations(steps) <= steps
    assert default_evaluations(steps) <= default_evaluations(steps + 1) + 1  # as was measured
    assert default_evaluations(28) == DEFAULT_EVALUATIONS[28]


@pytest.mark.slow
def test_the_default_budgets_follow_from_the_records():
    study = runpy.run_path(str(BENCHMARKS / "instant.py"))
    rows = list(study["table"](BENCHMARKS / "results" / "instant.jsonl.gz"))
    fewest = dict(row.split(" steps: ") for row in rows)
    assert DEFAULT_EVALUATIONS[8] == int(fewest["tiny-flux-turbo, 8"])
    for steps in DEFAULT_EVALUATIONS.keys() - {5, 8}:
        of_both = (fewest[f"{model}, {steps}"] for model in ("tiny-flux", "tiny-wan"))
        assert DEFAULT_EVALUATIONS[steps] == max(map(int, of_both))
    for steps in (32, 64, 80):  # clips alone
        assert int(fewest[f"tiny-wan, {steps}"]) <= default_evaluations(steps)
    for steps in (4, 6):  # where nothing less keeps 35 dB
        assert f"tiny-flux, {steps} steps: {default_evaluations(steps)}" in rows


def test_where_plain_steps_are_nearer_follows_from_the_records():
    study = runpy.run_path(str(BENCHMARKS / "instant.py"))
    psnr = {"instant": {}, "plain": {}}
    for entry in study["entries"](BENCHMARKS / "results" / "instant.jsonl.gz"):
        if (entry["model"], entry["to"]) == ("tiny-wan", "run"):
            psnr[entry["method"]][entry["steps"], entry["evaluations"]] = entry["psnr"]["mean"]
    worse = defaultdict(tuple)
    for (steps, evaluations), plain in sorted(psnr["plain"].items()):
        if plain >= psnr["instant"][steps, evaluations] + 0.1:
            worse[steps] += (evaluations,)
    assert worse == PLAIN_IS_NEARER
    assert loses_to_plain_steps(50, 11, clip=True)
    assert not loses_to_plain_steps(50, 11, clip=False)


def test_plain_steps_lie_evenly_and_follow_their_own_velocity():
    times = tuple(time_grid(48, shift=3.0))
    plan = plain_plan(times, 12, breaks=(0.5,))
    assert (plan.evaluations, plan.grid, plan.weights) == (12, times, ((1.0,),) * 12)
    assert next(t for t in times if t < 0.5) in plan.times
    assert plain_plan(times, 12).times == pytest.approx(time_grid(12, shift=3.0), abs=1e-12)


@pytest.mark.parametrize(("evaluations", "breaks"), [(0, ()), (9, ()), (1, (0.5,))])
def test_plain_steps_that_cannot_be_made_are_refused(evaluations, breaks):
    with pytest.raises(PlanError, match="cannot be made"):
        plain_plan(time_grid(8), evaluations, breaks=breaks)


def test_plain_steps_end_as_short_as_the_full_run():
    def levels(steps):
        return [*(1 - n / (steps - 1) * 0.999 for n in range(steps)), 0.0]

    assert plain_plan(levels(64), 8).times == pytest.approx(levels(8), abs=1e-12)


def test_evaluations_that_equal_euler_steps_follow_from_the_records():
    study = runpy.run_path(str(BENCHMARKS / "instant.py"))
    results = BENCHMARKS / "results"
    tables = {"tiny-flux": LIKE_STEPS, "tiny-wan": CLIP_LIKE_STEPS}
    assert study["EULER"].keys() == tables.keys()
    for model, table in tables.items():
        euler = results / study["EULER"][model]
        assert dict(study["like_steps"](results / "instant.jsonl.gz", euler, model)) == table
    assert [like_evaluations(steps) for steps in (1, 28, 29, 50, 100, 101)] == [
        8, 13, 14, 17, 23, None,
    ]  # fmt: skip
    assert [like_evaluations(steps, clip=True) for steps in (1, 28, 80, 81)] == [9, 20, 32, None]


# --- to the flow


@given(st.integers(2, 60), st.floats(0.5, 8.0), st.data())
def test_a_plan_for_the_flow_evaluates_steps_of_its_own(steps, shift, data):
    times = tuple(time_grid(steps, shift=shift))
    plan = instant_plan(times, data.draw(st.integers(1, steps)), target="flow")
    assert (plan.grid, plan.steps) == (times, plan.evaluations)
    assert (plan.times[0], plan.times[-1]) == (times[0], times[-1])
    assert plan.speedup == steps / plan.evaluations
    assert Plan.from_json(plan.to_json()) == plan


def test_velocities_that_change_linearly_in_time_are_integrated_exactly():
    """But for the first step, which is Euler's."""
    slope, x = noise_of(3, seed=4), noise_of(3)
    plan = instant_plan(time_grid(50, shift=2.0), 9, target="flow")
    first = plan.times[0] - plan.times[1]
    end = sample(lambda x, t: slope * t + 1, x, plan)
    torch.testing.assert_close(end, x - slope / 2 - 1 - slope * first**2 / 2, rtol=0, atol=1e-12)


def test_free_nodes_are_nearer_to_the_flow_than_as_many_steps_and_than_the_run():
    flow, times, x = mixture(), time_grid(50, shift=3.0), noise_of(16, seed=5)
    truth = euler_run(flow, x, time_grid(3000, shift=3.0))
    errors = [
        float((end - truth).norm())
        for end in (
            sample(flow, x, instant_plan(times, 17, target="flow")),
            euler_run(flow, x, time_grid(17, shift=3.0)),
        )
    ]
    assert errors[0] < errors[1] / 2


def test_a_plan_for_the_flow_moves_to_another_grid_and_to_parts_of_it():
    times, other = time_grid(50, shift=3.0), tuple(time_grid(28, shift=1.0))
    plan = instant_plan(times, 10, target="flow")
    assert replan(plan, other) == instant_plan(other, 10, target="flow")
    assert from_step(plan, 25) == instant_plan(times[25:], 5, target="flow")
    assert until_step(plan, 25).times[-1] == times[25]
    parted = with_breaks(plan, (times[20],))
    assert len(parted.break_steps) == 1
    assert parted.weights[parted.break_steps[0]] == (1.0,)


# --- refused


@pytest.mark.parametrize("evaluations", [0, 21])
def test_a_budget_that_cannot_be_is_refused(evaluations):
    with pytest.raises(PlanError, match="20 steps take 1 to 20"):
        instant_plan(time_grid(20), evaluations)


def test_velocities_that_change_linearly_in_time_are_met_on_the_grid():
    """From the second anchor on: the first has no other before it."""
    times, slope = time_grid(20, shift=2.0), noise_of(3, seed=4)

    def velocity(x, t):
        return slope * t + 1

    plan = instant_plan(times, 12)
    first = plan.anchors[1]
    missed = sum((times[0] - times[j]) * (times[j] - times[j + 1]) for j in range(first))
    x = noise_of(3)
    expected = euler_run(velocity, x, times) - slope * missed
    torch.testing.assert_close(sample(velocity, x, plan), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
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
    assert replan(plan, other) == instant_plan(other, 13, breaks=(0.5,))
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


def test_further_latents_have_straight_lines_on_their_own_grids():
    times, sound = time_grid(20, shift=12.0), time_grid(20, shift=3.0)
    plan = instant_plan(times, 12, breaks=(0.9,), latents={"audio": sound})
    alone = instant_plan(times, 12, breaks=(0.9,))
    assert plan.of_latent() == alone
    audio = plan.of_latent("audio")
    assert audio.break_steps == plan.break_steps
    assert audio == instant_plan(sound, 12, breaks=audio.breaks)
    assert audio.weights != alone.weights


def test_a_joint_model_has_no_plan_for_the_flow():
    times = time_grid(20)
    with pytest.raises(PlanError, match="audio"):
        instant_plan(times, 12, target="flow", latents={"audio": times})
    with pytest.raises(PlanError, match="fewer"):
        instant_plan(times, 12, latents={"audio": time_grid(5)})
