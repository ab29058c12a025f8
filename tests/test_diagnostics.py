"""Appendix C: every number against a re-computation from its formula."""

import math

import numpy as np
import pytest
import torch
from tests.support import PROFILE_RULES, mixture, noise_of, plan_with, rotating

from tacache import (
    HostError,
    Plan,
    PlanError,
    Stepper,
    TACacheError,
    calibrate,
    diagnose,
    make_plan,
    sample,
    time_grid,
)
from tacache.diagnostics import Bound, Diagnostics, damp
from tacache.moving import replan
from tacache.tasu import advance

ANCHORS = (0, 1, 4, 5, 8, 13, 19)
CACHED = tuple(n for n in range(20) if n not in ANCHORS)


def both_runs(flow, x, plan):
    """States and velocities, flat, of the reference and of the planned run."""
    runs = []
    for one in (Plan.full(plan.times), plan):
        stepper, state, states, velocities = Stepper(one), x, [x], []
        for n in range(plan.steps):
            t = plan.times[n]
            v = stepper.velocity(state, lambda state=state, t=t: flow(state, t))
            state = state - (t - plan.times[n + 1]) * v
            states.append(state)
            velocities.append(v)
        runs.append([[part.flatten(1).numpy() for part in parts] for parts in (states, velocities)])
    return runs


def size(v):
    return np.linalg.norm(v, axis=1)


def across(change, v):
    return change - (change * v).sum(1, keepdims=True) / (v * v).sum(1, keepdims=True) * v


def unit(v):
    return v / size(v)[:, None]


@pytest.fixture(scope="module")
def plan(profile):
    return plan_with("tasu", profile, ANCHORS)


def test_drift_is_the_relative_distance_of_the_two_runs(flow, plan):
    x = noise_of(5)
    found = diagnose(flow, x, plan)
    (full_x, full_v), (plan_x, plan_v) = both_runs(flow, x, plan)
    states = [size(p - f) / size(f) for p, f in zip(plan_x, full_x, strict=True)]
    velocities = [size(p - f) / size(f) for p, f in zip(plan_v, full_v, strict=True)]
    assert found.state_drift == pytest.approx([part.mean() for part in states], rel=1e-9)
    assert found.velocity_drift == pytest.approx([part.mean() for part in velocities], rel=1e-9)
    errors = [part.std(ddof=1) / math.sqrt(5) for part in states]
    assert found.state_drift_error == pytest.approx(errors, rel=1e-9)
    assert found.state_drift[-1] > 0
    assert found.samples == 5
    # Cached and evaluated steps apart.
    assert found.cached_drift == pytest.approx(np.mean([velocities[n] for n in CACHED]))
    assert found.evaluated_drift == pytest.approx(np.mean([velocities[n] for n in ANCHORS]))
    assert found.skip_ratio == 13 / 20


def test_alignment_is_the_cosine_of_historical_and_true_direction(flow, plan):
    x = noise_of(5)
    found = diagnose(flow, x, plan).alignment
    (_, full_v), (_, plan_v) = both_runs(flow, x, plan)
    cosines = []
    for n in CACHED:
        anchor = max(a for a in ANCHORS if a < n)
        earlier = max(a for a in ANCHORS if a < anchor)
        p = across(plan_v[anchor] - plan_v[earlier], plan_v[earlier])
        historical = unit(across(p, plan_v[n - 1]))
        true = unit(across(full_v[n] - full_v[n - 1], full_v[n - 1]))
        cosines.append((historical * true).sum(1))
    cosines = np.array(cosines)
    assert found.records == cosines.size == 13 * 5
    assert found.mean == pytest.approx(cosines.mean(), rel=1e-9)
    assert found.positive == (cosines > 0).mean()
    percentiles = np.percentile(cosines, [10, 50, 90])
    assert [found.percentile_10, found.median, found.percentile_90] == pytest.approx(percentiles)


def test_the_bound_is_eq_16_against_the_oracle_of_eq_14(flow, plan):
    x = noise_of(5)
    found = diagnose(flow, x, plan).bounds
    (_, v), _ = both_runs(flow, x, plan)
    assert tuple(bound.step for bound in found) == CACHED
    for bound in found:
        n = bound.step - 1
        dt = plan.times[n] - plan.times[n + 1]
        anchor = max(a for a in ANCHORS if a <= n)
        earlier = max(a for a in ANCHORS if a < anchor)
        a_n = (v[n + 1] - v[n]) / dt
        k = (a_n * v[n]).sum(1) / (v[n] ** 2).sum(1)
        d = size(across(a_n, v[n])) / size(v[n]) * dt
        true = unit(across(a_n, v[n]))
        historical = unit(across(across(v[anchor] - v[earlier], v[earlier]), v[n]))
        k_plan, d_plan = plan.magnitude[n], plan.direction[n]
        oracle = np.exp(k * dt)[:, None] * v[n] + (d * size(v[n]))[:, None] * true
        estimate = np.exp(k_plan * dt) * v[n] + d_plan * size(v[n])[:, None] * historical
        cosine = (historical * true).sum(1)
        c = dt * np.exp(np.maximum(k_plan, k) * dt)
        squares = (c * (k_plan - k)) ** 2 + (d_plan - d) ** 2 + 2 * d_plan * d * (1 - cosine)
        error = size(estimate - oracle) / size(v[n])
        assert bound.bound == pytest.approx(np.sqrt(squares).mean(), rel=1e-9)
        assert bound.error == pytest.approx(error.mean(), rel=1e-9)
        assert bound.distance == pytest.approx((size(estimate - v[n + 1]) / size(v[n])).mean())
        assert bound.excess == pytest.approx((error - np.sqrt(squares)).max(), rel=1e-6, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rule", PROFILE_RULES)
@pytest.mark.parametrize("shape", [(2,), (2, 3), (16,)])
@pytest.mark.parametrize("budget", [4, 7, 12])
def test_the_bound_holds_to_rounding(rule, shape, budget):
    flow, times = mixture(shape), time_grid(24, shift=3.0)
    made = calibrate(flow, noise_of(6, shape), times)
    found = diagnose(
        flow, noise_of(6, shape, seed=1), make_plan(made, evaluations=budget, rule=rule)
    )
    assert len(found.bounds) == 24 - budget
    for bound in found.bounds:
        assert bound.excess <= 1e-9
        assert 0 <= bound.error <= bound.bound + 1e-9
        assert bound.distance > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bound_holds_for_coarse_latents(dtype, flow, plan):
    found = diagnose(flow, noise_of(4, dtype=dtype), plan)
    assert max(bound.excess for bound in found.bounds) <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("growth", [0.0, -0.4])
@pytest.mark.parametrize("rate", [0.3, 0.7, 1.0, 1.5, 2.0])
def test_history_aligns_exactly_on_a_rotating_flow(rate, growth):
    flow, times = rotating(rate, growth), time_grid(20)
    made = calibrate(flow, noise_of(3), times)
    found = diagnose(flow, noise_of(3, seed=1), make_plan(made, evaluations=8))
    aligned = found.alignment
    assert [aligned.mean, aligned.percentile_10, aligned.median] == pytest.approx([1.0] * 3)
    assert aligned.positive == 1.0
    for bound in found.bounds:  # nothing is wrong with k, d or the direction
        assert bound.error <= 1e-7
        assert bound.bound <= 1e-6


def test_one_element_samples_have_no_direction_and_keep_the_bound():
    flow, times = mixture(()), time_grid(16)
    made = calibrate(flow, noise_of(4, ()), times)
    found = diagnose(flow, noise_of(4, (), seed=1), make_plan(made, evaluations=6))
    assert found.alignment.mean == 0.0
    assert max(bound.excess for bound in found.bounds) <= 1e-9


def test_an_all_anchor_plan_does_not_drift(flow, profile):
    found = diagnose(flow, noise_of(3), Plan.full(profile.times))
    assert set(found.state_drift) == set(found.velocity_drift) == {0.0}
    assert (found.evaluated_drift, found.skip_ratio, found.state_drift[-1]) == (0.0, 0.0, 0.0)
    assert found.cached_drift is None
    assert found.alignment is None
    assert found.bounds == ()


def test_a_fitted_plan_drifts_but_has_no_direction(flow, profile):
    found = diagnose(flow, noise_of(3), plan_with("fitted", profile, ANCHORS))
    assert found.alignment is None
    assert found.bounds == ()
    assert found.cached_drift > 0
    assert found.state_drift[-1] > 0


def test_one_sample_has_no_error_of_the_mean(flow, plan):
    assert set(diagnose(flow, noise_of(1), plan).state_drift_error) == {0.0}


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)],
    ids=["float64", "bfloat16", "bfloat16 states, float32 velocities"],
)
def test_the_final_drift_is_that_of_sample(dtype, wide, flow, plan):
    # Models under autocast answer bfloat16 states in float32.
    x = noise_of(4, dtype=dtype)
    velocity = (lambda x, t: flow(x.double(), t).float()) if wide else flow
    a = sample(velocity, x, plan).double().flatten(1)
    b = sample(velocity, x, Plan.full(plan.times)).double().flatten(1)
    expected = ((a - b).norm(dim=1) / b.norm(dim=1)).mean().item()
    assert diagnose(velocity, x, plan).state_drift[-1] == pytest.approx(expected, rel=1e-9)


def test_the_batch_size_does_not_change_the_numbers(flow, plan):
    x = noise_of(5)
    whole, parts = diagnose(flow, x, plan), diagnose(flow, x, plan, batch_size=2)
    assert parts.samples == whole.samples == 5
    assert parts.state_drift == pytest.approx(whole.state_drift, rel=1e-9)
    assert parts.alignment.mean == pytest.approx(whole.alignment.mean, rel=1e-9)


def test_the_condition_is_sliced_with_the_samples(flow, plan):
    seen = []

    def velocity(x, t, label):
        seen.append(label)
        return flow(x, t)

    diagnose(velocity, noise_of(3), plan, condition={"label": list("abc")}, batch_size=2)
    assert seen.count(["a", "b"]) == seen.count(["c"]) == plan.steps + plan.evaluations


def test_a_velocity_of_another_shape_is_an_error(plan):
    with pytest.raises(HostError, match="velocity has shape"):
        diagnose(lambda x, t: x[:1], noise_of(3), plan)


def test_a_reference_that_stands_still_is_an_error_of_ours(plan):
    with pytest.raises(TACacheError, match="zero"):
        diagnose(lambda x, t: 0 * x, noise_of(2), plan)


def test_progress_is_shown_on_standard_error(flow, plan, capsys):
    diagnose(flow, noise_of(2), plan, progress=True)
    assert "diagnosing" in capsys.readouterr().err


# --- the damped rule --------------------------------------------------------------------------


def found_with(samples, cosines):
    """Diagnostics that know these alignments, by step."""
    bounds = tuple(
        Bound(step=n, cos_theta=cosine, error=0, bound=0, excess=0, distance=0)
        for n, cosine in cosines.items()
    )
    return Diagnostics(
        samples=samples, skip_ratio=0.5, state_drift=(0.0,), state_drift_error=(0.0,),
        velocity_drift=(0.0,), evaluated_drift=0.0, cached_drift=None, alignment=None,
        bounds=bounds,
    )  # fmt: skip


def test_damping_takes_d_times_the_mean_cosine(plan):
    damped = damp(plan, [found_with(3, {2: 0.5, 3: -0.4, 6: 0.1}), found_with(1, {2: 0.1, 6: 0.5})])
    expected = list(plan.direction)
    expected[1] *= (3 * 0.5 + 0.1) / 4  # the velocity of skipped step 2 uses d of step 1
    expected[2] = 0.0  # no update against what was seen
    expected[5] *= (3 * 0.1 + 0.5) / 4
    assert damped.rule == "damped"
    assert damped.direction == pytest.approx(expected)
    assert (damped.anchors, damped.magnitude) == (plan.anchors, plan.magnitude)


def test_a_damped_run_is_tasu_with_less_direction(flow, plan):
    x = noise_of(4)
    none, half, full = (
        damp(plan, [found_with(1, dict.fromkeys(CACHED, cosine))]) for cosine in (-1.0, 0.5, 1.0)
    )
    assert torch.equal(sample(flow, x, full), sample(flow, x, plan))
    magnitude = plan.model_copy(update={"rule": "magnitude"})
    assert torch.allclose(sample(flow, x, none), sample(flow, x, magnitude), rtol=1e-12)
    halved = plan.model_copy(update={"direction": half.direction})
    assert torch.equal(sample(flow, x, half), sample(flow, x, halved))
    assert half.direction != plan.direction


@pytest.mark.parametrize("cosine", [-0.5, 0.1, 0.6, 1.0])
def test_no_strength_is_better_than_the_damped_one(cosine, plan):
    """One step along a direction at a known angle to the true one, in the plane across v."""
    v, true, aside = torch.linalg.qr(noise_of(6, (3,), seed=1))[0].T[:, None]
    historical = cosine * true + math.sqrt(1 - cosine**2) * aside
    d = plan.direction[1]
    strength = damp(plan, [found_with(1, {2: cosine})]).direction[1]
    errors = {
        s: float((advance(v, historical, 1.0, s) - (v + d * true)).norm())
        for s in [strength, *np.linspace(0, 2 * d, 21)]
    }
    assert errors[strength] == min(errors.values())


def test_a_damped_plan_has_a_file_and_stays_on_its_grid(flow, plan, profile, tmp_path):
    made = make_plan(profile, evaluations=7)
    damped = damp(made, [diagnose(flow, noise_of(3), made)])
    loaded = Plan.load(damped.save(tmp_path / "damped.plan.json"))
    assert loaded == damped
    assert torch.equal(sample(flow, noise_of(2), loaded), sample(flow, noise_of(2), damped))
    with pytest.raises(PlanError, match=r"a damped plan .* cannot move to another grid"):
        replan(damped, time_grid(33, shift=2.0))


@pytest.mark.parametrize("rule", ["magnitude", "direction", "reuse", "fitted", "damped"])
def test_only_tasu_is_damped(rule, profile):
    other = plan_with(rule, profile, ANCHORS)
    with pytest.raises(PlanError, match=f"only a tasu plan .* '{rule}'"):
        damp(other, [])


def test_damped_is_no_rule_of_a_profile(profile):
    with pytest.raises(PlanError, match="unknown rule 'damped' for a profile"):
        make_plan(profile, evaluations=7, rule="damped")
