"""STORK, FastFlow and ERTACache: exact where they should be, and small cases by hand."""

import itertools
import math

import pytest
import torch
from tests.flows import GaussianFlow
from tests.support import mixture, noise_of

from tacache import time_grid
from tacache_lab.methods import BASELINES, SamplingProblem, record
from tacache_lab.methods.ertacache import (
    CacheErrors,
    ERTASettings,
    corrections,
    line,
    profiled,
    residuals_of,
)
from tacache_lab.methods.fastflow import ArmErrors, FastFlowSettings, best_arms
from tacache_lab.methods.simple import GridSettings
from tacache_lab.methods.stork import StorkSettings, moment, share, stork_weights

DOUBLE = torch.float64
STEPS = 20
TIMES = tuple(time_grid(STEPS, 3.0))


def moving(power: int):
    """A velocity t^power, wherever x is."""
    return lambda x, t: torch.full_like(x, t**power)


def run(name, velocity, settings, times=TIMES, samples=2):
    noise = noise_of(samples, (3,)).to(DOUBLE)
    return BASELINES[name].run(SamplingProblem(velocity, noise, times), settings)


# --- STORK --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [3, 10, 50])
def test_a_step_is_of_second_order_whatever_its_stages(stages):
    assert moment(0, stages) == pytest.approx(1)
    assert moment(1, stages) == pytest.approx(1 / 2)
    assert moment(2, stages) != pytest.approx(1 / 3)
    assert 0 < moment(2, stages) < 1 / 2
    assert share(stages, stages) == 1


def test_three_stages_by_hand():
    """Runge-Kutta-Gegenbauer of three stages on dy/dc = c^2: two of them see a slope."""
    b2, b3 = 4 * 1 * 6 / (3 * 2 * 3 * 4 * 5), 4 * 2 * 7 / (3 * 3 * 4 * 5 * 6)
    w = 6 / (7 * 2)
    c1, c2 = w, 6 / 14
    y2 = 5 / 2 * b2 * 3 * w * c1**2
    mu, nu = 7 / 3 * b3 / b2, -4 / 3 * b3 * 3
    y3 = mu * y2 + nu * 0 + mu * w * c2**2
    assert moment(2, 3) == pytest.approx(y3)


def test_with_one_derivative_it_is_adams_bashforth():
    weights = stork_weights([0.5, 1.0], 0.25, 50, 1)
    assert weights == pytest.approx((1.25, -0.25))
    flow, noise = mixture((3,)), noise_of(2, (3,)).to(DOUBLE)
    problem = SamplingProblem(flow, noise, TIMES)
    ours = BASELINES["stork"].run(problem, StorkSettings(times=TIMES, derivatives=1))
    theirs = BASELINES["ab2"].run(problem, GridSettings(times=TIMES))
    torch.testing.assert_close(ours.x, theirs.x)
    assert ours.evaluations == (STEPS, STEPS)


def test_weights_reproduce_polynomials_by_the_moments():
    """On v = t^2 a step adds the moments of its Taylor polynomial, on an uneven grid, too."""
    times, t_next, stages = [0.5, 0.6, 0.9], 0.2, 10
    weights = stork_weights(times, t_next, stages, 2)
    h = times[0] - t_next
    average = sum(w * t**2 for w, t in zip(weights, times, strict=True))
    expected = 0.5**2 - 2 * 0.5 * h / 2 + h * h * moment(2, stages)
    assert average == pytest.approx(expected)


@pytest.mark.parametrize("derivatives", [1, 3])
def test_it_converges_with_second_order(derivatives):
    flow = GaussianFlow(torch.tensor([[1.0, -2.0]], dtype=DOUBLE), 0.3)
    noise, errors = noise_of(3, (1, 2)).to(DOUBLE), []
    for steps in (160, 320, 640):
        times = [0.05 + 0.9 * t for t in time_grid(steps, 2.0)]
        problem = SamplingProblem(flow, flow.solution(noise, times[0]), times)
        end = (
            BASELINES["stork"]
            .run(problem, StorkSettings(times=tuple(times), derivatives=derivatives))
            .x
        )
        errors.append(float((end - flow.solution(noise, times[-1])).abs().max()))
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) > 1.75


# --- FastFlow -----------------------------------------------------------------------------------


def test_a_straight_velocity_is_continued_exactly():
    settings = FastFlowSettings(anchors=(0, 1, 6, 19), warm_up=2, price=1.0)
    outcome = run("fastflow", moving(1), settings)
    full = record(moving(1), noise_of(2, (3,)).to(DOUBLE), TIMES).states[-1]
    torch.testing.assert_close(outcome.x, full)
    assert outcome.evaluations == (4, 4)
    bent = record(moving(3), noise_of(2, (3,)).to(DOUBLE), TIMES).states[-1]
    assert (run("fastflow", moving(3), settings).x - bent).abs().max() > 1e-3


def test_the_price_of_an_error_says_how_much_is_skipped():
    recording = record(moving(3), noise_of(2, (3,)).to(DOUBLE), TIMES)
    errors = ArmErrors(recording)
    cheap, dear = (best_arms(errors, STEPS, 2, price) for price in (1e-6, 1e12))
    assert cheap == (0, 1, 17, 18, 19) or cheap == (0, 1, 17, 19)
    assert dear == tuple(range(STEPS))
    straight = ArmErrors(record(moving(1), noise_of(2, (3,)).to(DOUBLE), TIMES))
    assert len(best_arms(straight, STEPS, 2, 1e6)) == len(cheap)


def test_an_arm_pays_by_hand():
    """Velocities 1, 2, 3, 5 at equal steps: two steps on the line says 4 where 5 is, (1 / 5)^2."""
    velocities = iter((1.0, 2.0, 3.0, 5.0))
    recording = record(
        lambda x, t: torch.full_like(x, next(velocities)),
        torch.zeros(1, 1, dtype=DOUBLE),
        [1.0, 0.75, 0.5, 0.25, 0.0],
    )
    errors = ArmErrors(recording)
    assert errors.of(0, 1, 3) == pytest.approx(1 / 25)
    assert errors.of(0, 1, 2) == pytest.approx(0)
    assert best_arms(errors, 4, 2, price=24.0) == (0, 1, 3)  # one step more for 24 / 25
    assert best_arms(errors, 4, 2, price=26.0) == (0, 1, 2, 3)


# --- ERTACache ----------------------------------------------------------------------------------


def test_a_linear_residual_is_corrected_exactly():
    """r_i = K_i r_j + B_i where velocities of all steps are lines of one another."""
    base = noise_of(2, (3,)).to(DOUBLE)
    recording = record(lambda x, t: (1 + t) * base + t * t, base, TIMES)
    anchors = (0, 5, 12)
    fitted = tuple(corrections(residuals_of(recording, "velocity"), anchors))
    corrected = ERTASettings(anchors=anchors, reuse="velocity", threshold=1, corrections=fitted)
    outcome = BASELINES["ertacache"].run(recording, corrected)
    torch.testing.assert_close(outcome.x, recording.states[-1])
    assert outcome.evaluations == (3, 3)
    as_cached = corrected.model_copy(update={"corrections": ()})
    end = BASELINES["ertacache"].run(recording, as_cached).x
    assert (end - recording.states[-1]).abs().max() > 0.1


def test_the_least_squares_of_a_line_by_hand():
    x = torch.tensor([0.0, 1.0, 2.0])
    assert line(x, torch.tensor([1.0, 3.0, 5.0])) == pytest.approx((2.0, 1.0))
    assert line(torch.ones(3), torch.tensor([1.0, 2.0, 6.0])) == pytest.approx((1.0, 2.0))


def test_a_step_is_evaluated_where_the_errors_have_summed_up():
    """Residuals 1, 2, 4, 4: errors of the one kept are 1/2, 3/4, 3/4 from the first."""
    errors = CacheErrors([torch.full((1, 2), value) for value in (1.0, 2.0, 4.0, 4.0)])
    assert errors.of(0, 1) == pytest.approx(0.5)
    assert profiled(errors, 4, 1, threshold=0.4) == (0, 1, 2)
    assert profiled(errors, 4, 1, threshold=1.2) == (0, 2)
    assert profiled(errors, 4, 1, threshold=9.0) == (0,)


def test_its_residual_is_that_of_easycache():
    recording = record(mixture((3,)), noise_of(2, (3,)), TIMES)
    kept = residuals_of(recording, "residual")[3]
    torch.testing.assert_close(kept, recording.velocities[3] - recording.states[3])


# --- all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stork", "fastflow", "ertacache"])
@pytest.mark.parametrize("evaluations", [4, 7, 13])
def test_tuned_it_spends_its_budget_and_is_no_worse_than_any_candidate(name, evaluations):
    recording = record(mixture(), noise_of(4), TIMES)
    baseline = BASELINES[name]
    candidates = baseline.candidates(recording, evaluations)
    assert len(candidates) > 1
    settings = baseline.fit(recording, evaluations)
    outcome = baseline.run(recording, settings)
    assert evaluations - 2 <= max(outcome.evaluations) <= evaluations
    errors = [recording.error(baseline.run(recording, one).x) for one in candidates]
    assert recording.error(outcome.x) == pytest.approx(min(errors))
