"""Caching rivals: conformance counts, hand-computed cases and what their papers state."""

import itertools
import math

import numpy as np
import pytest
import torch
from tests.support import mixture, noise_of

from tacache import calibrate, make_plan, sample, time_grid
from tacache_lab.methods import BASELINES, SamplingProblem, record
from tacache_lab.methods.budcache import BudCache, SharedStarts, anneal, climb, first_guess
from tacache_lab.methods.caching import Now, Past, between, reused, walk_anchors
from tacache_lab.methods.easycache import EasyCacheSettings
from tacache_lab.methods.magcache import (
    FLUX_RATIOS,
    WAN_RATIOS,
    MagCacheSettings,
    magnitude_ratios,
    schedule,
)
from tacache_lab.methods.meancache import average_velocity, edge_costs, shortest_path
from tacache_lab.methods.seam import Meter, Visit, last_state
from tacache_lab.methods.taylorseer import (
    PeriodSettings,
    extrapolation_weights,
    hermite,
    periodic,
    taylor,
)
from tacache_lab.methods.teacache import (
    TeaCacheSettings,
    embedding_changes,
    estimate,
    fit_polynomial,
)
from tacache_lab.methods.teacache import schedule as teacache_schedule
from tacache_lab.methods.vde import decompose
from tacache_lab.methods.vde import schedule as vde_schedule

DOUBLE = torch.float64


def run(name, velocity, settings, times, samples=2):
    given = SamplingProblem(velocity, noise_of(samples), times)
    return BASELINES[name].run(given, settings)


def full(velocity, times, samples=2):
    return record(velocity, noise_of(samples), times).states[-1]


# MagCache


@pytest.mark.parametrize(("delta", "evaluations"), [(0.04, 26), (0.15, 17), (0.24, 15)])
def test_magcache_conforms_on_flux(delta, evaluations):
    settings = BASELINES["magcache"].published["flux"].model_copy(update={"delta": delta})
    assert (settings.cap, settings.ratios) == (5, FLUX_RATIOS)
    assert len(schedule(settings, 50)) == evaluations


@pytest.mark.parametrize(("name", "evaluations"), [("wan-slow", 25), ("wan-fast", 21)])
def test_magcache_conforms_on_wan(name, evaluations):
    settings = BASELINES["magcache"].published[name]
    assert (settings.delta, settings.ratios) == (0.12, WAN_RATIOS)
    assert len(schedule(settings, 50)) == evaluations


def test_magcache_by_hand():
    # E: 0.1; 0.1 + 0.21; evaluated; 0.1; last
    settings = MagCacheSettings(ratios=(1.0, *[1.1] * 5), delta=0.2, cap=9, retention=0.2)
    assert schedule(settings, 6) == (0, 2, 4)
    assert schedule(settings.model_copy(update={"delta": 0.4}), 6) == (0, 3)
    assert schedule(settings.model_copy(update={"delta": 9.0, "cap": 1}), 6) == (0, 2, 4)
    assert schedule(settings.model_copy(update={"delta": 9.0, "forced": 4}), 6) == (0, 4)
    assert schedule(settings.model_copy(update={"retention": 0.5}), 6) == (0, 1, 2, 4)


def test_magcache_measures_its_ratios():
    # v - x = 2^n at step n
    times = [1.0, 0.5, 0.25, 0.0]
    powers = dict(zip(times, (1.0, 2.0, 4.0), strict=False))
    recording = record(lambda x, t: x + powers[t], noise_of(2), times)
    assert magnitude_ratios(recording) == pytest.approx((1.0, 2.0, 2.0))


def test_the_residual_is_exact_where_it_does_not_change():
    def velocity(x, t):
        return x + 3.0

    times = time_grid(6)
    noise = noise_of(2)
    model = Meter(SamplingProblem(velocity, noise, times))
    x = last_state(walk_anchors(model, noise, times, (0,), reused("residual")), times)
    torch.testing.assert_close(x, full(velocity, times))


# TeaCache


def test_teacache_fits_its_polynomial():
    changes = np.linspace(0.01, 0.4, 30)
    powers = (2.0, -1.0, 0.5, 0.3, 0.01)
    fit = fit_polynomial(changes.tolist(), np.polyval(powers, changes).tolist())
    assert fit.coefficients == pytest.approx(powers, abs=1e-6)
    value = estimate(fit, torch.tensor([0.2, 9.0], dtype=DOUBLE))
    assert value.tolist() == pytest.approx([np.polyval(powers, 0.2), np.polyval(powers, 0.4)])


def test_teacache_estimates_are_not_negative():
    settings = TeaCacheSettings(coefficients=(1.0, -0.5), domain=(0.0, 1.0), delta=0.1)
    assert estimate(settings, torch.tensor([0.2, 0.75])).tolist() == pytest.approx([0.0, 0.25])


def test_teacache_with_few_points():
    assert fit_polynomial([0.1], [0.7]).coefficients == (0.7,)
    assert fit_polynomial([0.1, 0.2], [1.0, 2.0]).coefficients == pytest.approx((10.0, 0.0))


def test_teacache_by_hand():
    # the first and the last are always evaluated
    assert teacache_schedule([0.1, 0.1, 0.1, 0.1, 0.1], 0.25) == (0, 3, 5)
    assert teacache_schedule([0.1, 0.1, 0.1, 0.1, 0.1], 9.0) == (0, 5)
    assert teacache_schedule([0.1, 0.1, 0.1, 0.1, 0.1], 0.0) == (0, 1, 2, 3, 4, 5)


def test_teacache_on_time_is_one_schedule_for_all():
    times = tuple(time_grid(20, 2.0))
    assert len(embedding_changes(times)) == 19
    baseline = BASELINES["teacache"]
    recording = record(mixture(), noise_of(4), times)
    counts = {
        evaluations: baseline.run(recording, baseline.fit(recording, evaluations)).evaluations
        for evaluations in (2, 5, 9)
    }
    assert counts == {2: (2,) * 4, 5: (5,) * 4, 9: (9,) * 4}


def test_teacache_on_the_state_by_hand():
    # x = 1, 1/2, 1/4, 1/8: rel is 1/2 at every step
    given = SamplingProblem(lambda x, t: x / t, torch.ones(1, 1), [1.0, 0.5, 0.25, 0.125, 0.0625])
    settings = TeaCacheSettings(coefficients=(1.0, 0.0), domain=(0.0, 1.0), delta=0.75)
    settings = settings.model_copy(update={"reuse": "velocity"})
    # v = 1 throughout, so skipping changes nothing: due at step 2, and the last
    assert BASELINES["teacache-x"].run(given, settings).evaluated == ((1.0, 0.25, 0.125),)


# EasyCache


def test_easycache_by_hand():
    """With v = 2 t: k, E and the reconstruction followed with numbers."""
    times = [1.0, 0.75, 0.5, 0.25, 0.0]
    x = [1.0, 0.5]
    k = abs(1.5 - 2.0) / abs(x[1] - x[0])  # at step 1
    x.append(x[1] - 0.25 * 1.5)
    change = k * abs(x[2] - x[1]) / 1.5
    x.append(x[2] - 0.25 * (x[2] + 1.5 - x[1]))  # step 2 is skipped
    x.append(x[3] - 0.25 * 0.5)  # the last is evaluated
    settings = EasyCacheSettings(tau=change * 1.01, warm_up=2)
    given = SamplingProblem(lambda x, t: 2 * t + 0 * x, torch.ones(1, 1, dtype=DOUBLE), times)
    outcome = BASELINES["easycache"].run(given, settings)
    assert outcome.evaluated == ((1.0, 0.75, 0.25),)
    assert outcome.x.item() == pytest.approx(x[4])
    tighter = settings.model_copy(update={"tau": change * 0.99})
    assert BASELINES["easycache"].run(given, tighter).evaluations == (4,)


def test_easycache_without_tolerance_is_full():
    times = time_grid(12, 2.0)
    outcome = run("easycache", mixture(), EasyCacheSettings(tau=0.0, warm_up=2), times)
    assert outcome.evaluations == (12, 12)
    assert torch.equal(outcome.x, full(mixture(), times))


def test_easycache_decides_for_each_sample():
    def velocity(x, t, strength):
        return torch.cos(6 * strength.reshape(-1, 1) * t) + 0 * x

    strength = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    given = SamplingProblem(velocity, noise_of(2, (3,)), time_grid(20), {"strength": strength})
    outcome = BASELINES["easycache"].run(given, EasyCacheSettings(tau=0.1, warm_up=2))
    assert outcome.evaluations[0] == 3  # it never changes: only the forced ones
    assert outcome.evaluations[1] > 3


# TaylorSeer and HiCache


def test_taylorseer_schedule():
    assert periodic(12, 3, 4) == (0, 1, 2, 6, 10)
    assert periodic(12, 1, 5) == (0, 5, 10)
    assert len(periodic(50, 3, 6)) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["taylorseer-1", "hicache"])
def test_with_most_steps_paid_for_every_second_of_the_others_is_tried(name):
    velocity, times = mixture(), time_grid(50, shift=3.0)
    recording = record(velocity, noise_of(1), times)
    errors = {}
    for evaluations in (30, 40):
        settings = BASELINES[name].fit(recording, evaluations)
        assert len(periodic(50, settings.warm_up, settings.interval)) <= evaluations
        errors[evaluations] = recording.error(BASELINES[name].run(recording, settings).x)
    found = BASELINES[name].candidates(recording, 40)
    assert (30, 2) in {(one.warm_up, one.interval) for one in found}
    assert errors[40] <= 1.5 * errors[30]  # more evaluations do not spoil it


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("clock", ["step", "sigma"])
def test_taylorseer_is_exact_for_linear_velocities(order, clock):
    """Linear in its time, once two anchors are known; second differences then vanish."""
    times = time_grid(12, 3.0)
    step = {t: n for n, t in enumerate(times)}
    slope = noise_of(1, seed=3)

    def velocity(x, t):
        return 1 + slope * (step[t] if clock == "step" else t) + 0 * x

    name = f"taylorseer-{order}" + ("-sigma" if clock == "sigma" else "")
    outcome = run(name, velocity, PeriodSettings(interval=4, warm_up=2), times)
    assert outcome.evaluations == (4, 4)
    torch.testing.assert_close(outcome.x, full(velocity, times))


def test_taylorseer_of_second_order_by_hand():
    # D_1 = (9 - 4) / 1, D_1 before = (4 - 1) / 1, D_2 = 2: 9 + 5 k + 2 k^2 / 2
    weights = extrapolation_weights([3.0, 2.0, 1.0], 5.0, 2, taylor)
    assert sum(w * v for w, v in zip(weights, (9.0, 4.0, 1.0), strict=True)) == pytest.approx(23.0)
    assert sum(weights) == pytest.approx(1.0)


def test_too_little_history_lowers_the_order():
    assert extrapolation_weights([3.0], 5.0, 2, taylor) == (1.0,)
    assert extrapolation_weights([3.0, 2.0], 5.0, 2, taylor) == (3.0, -2.0)


def test_hicache_has_scaled_hermite_terms():
    assert hermite(0.5)(3.0) == pytest.approx((0.5 * 3.0, 0.25 * (3.0**2 - 2)))
    # at sqrt(1/2) the first order is Taylor's
    assert hermite(math.sqrt(0.5))(3.0)[0] == pytest.approx(3.0)


# VDE


@pytest.mark.parametrize(("interval", "evaluations"), [(3, 22), (4, 18), (5, 16)])
def test_vde_counts_as_published(interval, evaluations):
    assert len(vde_schedule(50, 6, interval)) == evaluations


def test_vde_decomposes():
    x, v = noise_of(3, seed=1), noise_of(3, seed=2)
    a, b, u = decompose(x, v)
    size = torch.linalg.vector_norm(x.flatten(1), dim=1).reshape(-1, 1, 1)
    torch.testing.assert_close(a * x + b * size * u, v)
    torch.testing.assert_close((u * u).flatten(1).sum(1), torch.ones(3, dtype=DOUBLE))
    torch.testing.assert_close((u * x).flatten(1).sum(1), torch.zeros(3, dtype=DOUBLE))
    assert decompose(x, 2 * x).a.flatten().tolist() == pytest.approx([2.0] * 3)


def test_vde_is_exact_where_a_and_b_are_linear_and_u_is_constant():
    first, second = torch.linalg.qr(noise_of(6, (2,), seed=7))[0].T.reshape(2, 2, 3)
    x, t = noise_of(2, seed=4), 0.3
    x = x - (x * first).flatten(1).sum(1).reshape(-1, 1, 1) * first  # orthogonal to u

    def velocity(x, t):
        size = torch.linalg.vector_norm(x.flatten(1), dim=1).reshape(-1, 1, 1)
        return (0.5 + 2 * t) * x + (1 - 0.3 * t) * size * first

    def visit(step, t, x):
        return Visit(step, t, x, velocity(x, t))

    past = Past((visit(3, 0.5, 1.5 * x), visit(1, 0.8, x + second - second)), ())
    now = Now(4, t, 0.2, 0.7 * x)
    v = BASELINES["vde"].rebuild(None)(past, now)
    torch.testing.assert_close(v, velocity(0.7 * x, t))


# MeanCache


@pytest.mark.parametrize("edges", [1, 2, 4, 7])
def test_meancache_finds_the_shortest_path(edges):
    generator = np.random.default_rng(edges)
    costs = np.triu(generator.random((9, 9)), 1) + np.where(np.tri(9), np.inf, 0)
    paths = [(0, *inner) for inner in itertools.combinations(range(1, 8), edges - 1)]
    total = {path: sum(costs[edge] for edge in itertools.pairwise((*path, 8))) for path in paths}
    assert shortest_path(costs, edges) == min(total, key=total.get)


def test_meancache_average_velocity_by_hand():
    # r = 1, t = 0.5, s = 0.25: z fell from 2 to 1.4, v_r = 1, v_t = 1.3
    past = Past((), (Visit(1, 0.75, torch.tensor([1.7]), torch.tensor([1.3])),))
    past = Past((), (*past.steps, Visit(0, 1.0, torch.tensor([2.0]), torch.tensor([1.0]))))
    now = Now(2, 0.5, 0.25, torch.tensor([1.4]))
    bend = (1.4 - 2.0 - (0.5 - 1.0) * 1.0) / 0.25
    assert average_velocity(past, now, 2).item() == pytest.approx(1.3 - 0.25 * bend)
    assert average_velocity(past, now, 1).item() == pytest.approx(1.3)
    assert average_velocity(past, now, 6).item() == pytest.approx(1.3 - 0.25 * bend)


def test_meancache_edges_cost_what_they_miss():
    recording = record(mixture(), noise_of(3), time_grid(10, 2.0))
    costs = edge_costs(recording, span=1)
    assert np.isinf(costs[np.tril_indices(11)]).all()
    assert (np.diagonal(costs, 1) == 0).all()
    # a span of one is reuse: from 2 to 5 with v_2 throughout
    reached = (
        recording.states[2] - (recording.times[2] - recording.times[5]) * (recording.velocities[2])
    )
    missed = (reached - recording.states[5]).abs().mean()
    length = recording.times[2] - recording.times[5]
    assert costs[2, 5] == pytest.approx(float(missed) / length)


@pytest.mark.slow
def test_meancache_spends_exactly_what_its_path_has():
    baseline = BASELINES["meancache"]
    recording = record(mixture(), noise_of(3), time_grid(12, 2.0))
    for evaluations in range(1, 13):
        found = baseline.candidates(recording, evaluations)
        spent = [baseline.run(recording, settings).evaluations for settings in found]
        assert spent == [(len(settings.anchors),) * 3 for settings in found]
        assert {len(s.anchors) for s in found} == set(
            range(max(1, evaluations - 2), evaluations + 1)
        )


# BudCache


def test_budcache_starts_with_a_prefix():
    assert first_guess(10, 1) == (0,)
    assert first_guess(10, 10) == tuple(range(10))
    for steps, evaluations in itertools.product((10, 50), (2, 5, 9)):
        guess = first_guess(steps, evaluations)
        assert len(set(guess)) == evaluations
        assert guess[0] == 0
        assert list(guess) == sorted(guess)
        assert guess[-1] < steps


def test_budcache_search_finds_the_best_set_of_a_simple_loss():
    wanted = (0, 3, 4, 9)

    def loss(anchors):
        return float(sum((a - b) ** 2 for a, b in zip(anchors, wanted, strict=True)))

    start = first_guess(12, 4)
    assert climb(start, 12, loss, 20, seed=0) == wanted
    assert loss(anneal(start, 12, loss, 300, seed=1)) <= loss(start)
    assert anneal(start, 12, loss, 50, seed=3) == anneal(start, 12, loss, 50, seed=3)
    assert climb(start, 12, loss, 0, seed=0) == start


def test_budcache_climbs_to_where_no_near_move_helps():
    draw = np.random.default_rng(5)
    height = {n: draw.normal() for n in itertools.combinations(range(1, 12), 3)}

    def loss(anchors):
        return float(height[anchors[1:]])

    for seed in range(5):
        top = climb(first_guess(12, 4), 12, loss, 50, seed)
        for j, by in itertools.product(range(1, 4), (-3, -2, -1, 1, 2, 3)):
            moved = {*top} - {top[j]} | {top[j] + by}
            if len(moved) == 4 and all(0 <= n < 12 for n in moved):
                assert loss(tuple(sorted(moved))) >= loss(top)


def test_budcache_anneals_with_moves_of_two_anchors_too(monkeypatch):
    monkeypatch.setattr("tacache_lab.methods.budcache.PAIR_SHARE", 1.0)
    start, seen = first_guess(12, 4), []

    def loss(anchors):
        seen.append(anchors)
        return float(anchors != start)  # no other is taken for long

    anneal(start, 12, loss, 60, seed=0)
    assert all(len(set(anchors)) == 4 and anchors[0] == 0 for anchors in seen)
    assert max(len({*anchors} - {*start}) for anchors in seen) >= 2


@pytest.mark.slow
def test_budcache_is_no_worse_than_its_start():
    recording = record(mixture(), noise_of(2), time_grid(14, 2.0))
    baseline = BudCache(tries=40)
    found = baseline.fit(recording, 5)
    start = found.model_copy(update={"anchors": first_guess(14, 5)})
    errors = [recording.error(baseline.run(recording, s).x) for s in (found, start)]
    assert errors[0] < errors[1]
    assert found == BudCache(tries=40).fit(recording, 5)


@pytest.mark.slow
def test_budcache_evaluates_a_shared_start_once_and_finds_the_same(monkeypatch):
    calls, flow = 0, mixture()

    def counted(x, t):
        nonlocal calls
        calls += 1
        return flow(x, t)

    recording = record(counted, noise_of(2), time_grid(14, 2.0))
    calls = 0
    found, shared = BudCache(tries=40).fit(recording, 5), calls
    monkeypatch.setattr(SharedStarts, "__call__", Meter.__call__)
    calls = 0
    assert BudCache(tries=40).fit(recording, 5) == found
    assert shared < 0.75 * calls


# What they share


def test_reuse_is_ours_on_our_anchors():
    times, noise, flow = time_grid(20, 2.0), noise_of(3), mixture()
    plan = make_plan(calibrate(flow, noise, times), evaluations=7, rule="reuse")
    recording = record(flow, noise, times)
    baseline = BASELINES["reuse"]
    outcome = baseline.run(recording, baseline.fit(recording, 7))
    assert outcome.evaluated[0] == tuple(plan.times[n] for n in plan.anchors)
    assert torch.equal(outcome.x, sample(flow, noise, plan))


def test_reuse_takes_longer_intervals_where_the_budget_needs_them():
    recording = record(mixture(), noise_of(2), time_grid(50))
    assert len(BASELINES["reuse"].fit(recording, 4).anchors) == 4


def test_thresholds_lie_between_sums():
    assert between([1.0, 3.0, 1.0]) == [0.0, 0.5, 2.0, 7.0]
