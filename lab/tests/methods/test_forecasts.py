"""Spectrum and L2P, exact where they should be, and tuning that is kept short."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.support import SHAPE, mixture, noise_of

from tacache import time_grid
from tacache_lab.methods import BASELINES, SamplingProblem, record
from tacache_lab.methods.budcache import BudCache
from tacache_lab.methods.l2p import L2P, LearnedSettings, learned_weights
from tacache_lab.methods.spectrum import (
    Spectrum,
    SpectrumSettings,
    chebyshev_weights,
    growing,
)
from tacache_lab.methods.taylorseer import PeriodSettings
from tacache_lab.methods.tuning import spread

STEPS = 30
TIMES = tuple(time_grid(STEPS, 3.0))


def polynomial(*coefficients):
    """A velocity that is a polynomial in t, another one for each element, wherever x is."""
    parts = [c * noise_of(1, SHAPE, seed=k)[0] for k, c in enumerate(coefficients)]

    def velocity(x, t):
        return sum(part * t**k for k, part in enumerate(parts)).expand_as(x)

    return velocity


def full_end(velocity, noise):
    x = noise
    for t, t_next in pairwise(TIMES):
        x = x - (t - t_next) * velocity(x, t)
    return x


# --- Spectrum -----------------------------------------------------------------------------------


def test_its_published_schedule_is_the_one_its_authors_show():
    """14 evaluations of 50."""
    anchors = growing(50, Spectrum.published["flux"])
    assert anchors == (0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 25, 31, 38, 46)


def test_a_polynomial_of_its_degree_is_forecast_exactly():
    settings = SpectrumSettings(warm_up=5, window=3.0, growth=1.0, degree=4, ridge=1e-12, blend=1.0)
    velocity, noise = polynomial(1.0, -2.0, 1.5, -1.0, 0.5), noise_of(2)
    outcome = Spectrum().run(SamplingProblem(velocity, noise, TIMES), settings)
    assert outcome.evaluations == (len(growing(STEPS, settings)),) * 2
    assert max(outcome.evaluations) < STEPS / 2
    torch.testing.assert_close(outcome.x, full_end(velocity, noise), rtol=1e-3, atol=1e-5)


def test_one_degree_more_is_not():
    settings = SpectrumSettings(warm_up=5, window=3.0, growth=1.0, degree=3, ridge=1e-12, blend=1.0)
    velocity, noise = polynomial(1.0, -2.0, 1.5, -1.0, 5.0), noise_of(2)
    made = Spectrum().run(SamplingProblem(velocity, noise, TIMES), settings).x
    assert (made - full_end(velocity, noise)).abs().max() > 1e-4


def test_a_share_of_it_is_linear_extrapolation():
    settings = SpectrumSettings(warm_up=2, window=4.0, growth=0.0, ridge=1e3, blend=0.0)
    velocity, noise = polynomial(1.0, -2.0), noise_of(2)
    made = Spectrum().run(SamplingProblem(velocity, noise, TIMES), settings).x
    torch.testing.assert_close(made, full_end(velocity, noise))


def test_the_ridge_draws_a_forecast_to_zero():
    points = (-1.0, -0.5, 0.0)
    exact, drawn = (chebyshev_weights(points, 0.5, 2, ridge) for ridge in (1e-12, 1e3))
    np.testing.assert_allclose(exact, (1.0, -3.0, 3.0), atol=1e-8)  # the parabola through three
    assert sum(map(abs, drawn)) < 0.01


def test_it_has_fewer_polynomials_than_evaluations():
    assert chebyshev_weights([0.3], 0.7, 4, 1e-9) == pytest.approx((1.0,))


# --- L2P ----------------------------------------------------------------------------------------


def test_a_velocity_linear_in_time_is_predicted_exactly():
    velocity, noise = polynomial(1.0, -2.0), noise_of(2)
    recording = record(velocity, noise_of(3, seed=4), TIMES)
    settings = L2P().fit(recording, 9)
    assert isinstance(settings, LearnedSettings)
    made = L2P().run(SamplingProblem(velocity, noise, TIMES), settings)
    assert max(made.evaluations) <= 9
    torch.testing.assert_close(made.x, full_end(velocity, noise), rtol=1e-4, atol=1e-4)


def test_weights_are_the_least_squares_of_each_step():
    recording = record(mixture(), noise_of(4), TIMES)
    anchors = L2P().anchors(PeriodSettings(interval=3, warm_up=2), TIMES)
    rows = learned_weights(recording.velocities, anchors, history=2)
    assert [n for n, row in enumerate(rows) if not row] == list(anchors)
    n = next(n for n, row in enumerate(rows) if len(row) == 2)
    newest, before = [k for k in anchors if k < n][-1:-3:-1]

    def missed(a, b):
        v = recording.velocities
        return float(((a * v[newest] + b * v[before] - v[n]) ** 2).mean())

    best = missed(*rows[n])
    a, b = rows[n]
    for step in (0.01, -0.01):
        assert best < missed(a + step, b)
        assert best < missed(a, b + step)


def test_it_beats_the_fixed_formula_on_its_own_schedule():
    recording = record(mixture(), noise_of(6), TIMES)
    period = PeriodSettings(interval=4, warm_up=3)
    anchors = L2P().anchors(period, TIMES)
    learned = LearnedSettings(
        **period.model_dump(), weights=learned_weights(recording.velocities, anchors, 3)
    )
    ours, formula = L2P().run(recording, learned), BASELINES["taylorseer-1"].run(recording, period)
    assert ours.evaluated == formula.evaluated
    assert recording.error(ours.x) < recording.error(formula.x)


# --- a short tuning -----------------------------------------------------------------------------


def test_a_few_of_many_are_taken_from_one_end_to_the_other():
    assert spread(range(100), 4) == [0, 33, 66, 99]
    assert spread(range(3), 4) == [0, 1, 2]
    assert spread(range(9), 1) == [0]
    assert spread(range(9), None) == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["magcache", "easycache", "budcache", "oss", "spectrum", "l2p"])
def test_a_short_tuning_evaluates_less_and_meets_the_budget(name):
    spent = []

    def velocity(x, t, label):
        spent.append(len(x))
        return mixture()(x, t)

    condition = {"label": list(range(4))}
    grid, times = partial(time_grid, shift=3.0), tuple(time_grid(16, 3.0))
    recording = record(velocity, noise_of(4), times, condition=condition, grid=grid)
    baseline = BudCache(tries=60) if name == "budcache" else BASELINES[name]
    costs = {}
    for most in (None, 3):
        spent.clear()
        settings = baseline.fit(replace(recording, most=most), 8)
        costs[most] = sum(spent)
        counts = baseline.run(recording, settings).evaluations
        assert sum(counts) / len(counts) <= 8
    assert costs[3] < costs[None]


def test_what_is_tuned_to_the_flow_ends_nearer_to_it():
    """The same candidates, another end to come near to."""
    recording = record(mixture(), noise_of(6), tuple(time_grid(8, 3.0)))
    fine = record(mixture(), noise_of(6), tuple(time_grid(400, 3.0)))
    aimed = replace(recording, aims=[*recording.states[:-1], fine.states[-1]])
    assert aimed.targets[-1] is fine.states[-1]
    assert recording.targets is recording.states
    for name in ("taylorseer-2", "spectrum"):
        baseline = BASELINES[name]
        chosen = [baseline.run(aimed, baseline.fit(one, 5)).x for one in (recording, aimed)]
        assert aimed.error(chosen[1]) <= aimed.error(chosen[0])
        assert recording.error(chosen[0]) <= recording.error(chosen[1])
    assert aimed.first(2).aims[-1].equal(fine.states[-1][:2])
