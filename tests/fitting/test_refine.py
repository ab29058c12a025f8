"""All weights at once: what Gauss-Newton changes, what it costs, and when it is left alone."""

import math

import pytest
import torch
from tests.flows import GaussianMixtureFlow
from tests.support import Counted

from tacache import fit_plan, sample, time_grid
from tacache.fitting.lockstep import Problem, lock_step
from tacache.fitting.reference import record
from tacache.fitting.refine import DAMPINGS, refine, with_weights
from tacache.fitting.samples import FunctionSamples
from tacache.plan import Plan

STEPS, SAMPLES = 24, 12


@pytest.fixture(scope="module")
def flow():
    generator = torch.Generator().manual_seed(3)
    means = 2 * torch.randn(6, 16, dtype=torch.float64, generator=generator)
    return GaussianMixtureFlow(means, [0.3] * 6, [1 / 6] * 6)


@pytest.fixture(scope="module")
def noise():
    generator = torch.Generator().manual_seed(4)
    return torch.randn(SAMPLES + 200, 16, dtype=torch.float64, generator=generator)


def problem_of(velocity, noise, history=3, condition=None):
    runs = FunctionSamples(velocity, noise, time_grid(STEPS, shift=3.0), condition)
    return Problem(runs, record(runs), history, list(range(len(noise))))


def log_drift(x, wanted):
    return ((x - wanted).norm(dim=1) / wanted.norm(dim=1)).log().mean().item()


def test_following_fitted_weights_is_the_fit_again(flow, noise):
    problem = problem_of(flow, noise[:SAMPLES], condition={})
    fit = lock_step(problem, (0, 4, 9, 14, 19))
    again = with_weights(problem, fit.anchors, fit.weights)
    assert torch.equal(again.states[-1], fit.states[-1])
    assert again.drift == fit.drift
    part = with_weights(problem, fit.anchors, fit.weights, fit, 3)
    assert torch.equal(part.states[-1], fit.states[-1])


@pytest.mark.slow
@pytest.mark.parametrize("condition", [None, {}])
@pytest.mark.parametrize("budget", [0, 150, 400, 1000, 10_000])
def test_it_spends_what_it_says_and_never_more_than_it_may(flow, noise, condition, budget):
    counted = Counted(flow)
    problem = problem_of(counted, noise[:SAMPLES], condition=condition)
    fit = lock_step(problem, (0, 4, 9, 14, 19))
    counted.sizes.clear()
    weights, spent = refine(problem, fit, budget)
    assert counted.evaluations == spent <= budget
    assert (spent == 0) <= (weights == fit.weights)
    assert list(map(len, weights)) == list(map(len, fit.weights))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anchors", "factor"), [((0, 13, 23, 31, 41), 1.1), (tuple(range(0, 50, 4)), 1.25)]
)
def test_it_lowers_the_error_of_samples_it_never_saw(anchors, factor):
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(8, 24, dtype=torch.float64, generator=generator)
    flow = GaussianMixtureFlow(means, [0.3] * 8, [1 / 8] * 8)
    noise = torch.randn(16 + 200, 24, dtype=torch.float64, generator=generator)
    times = time_grid(50, shift=3.0)
    wanted = sample(flow, noise, Plan.full(times))
    runs = FunctionSamples(flow, noise[:16], times, {})
    problem = Problem(runs, record(runs), 3, list(range(16)))
    fit = lock_step(problem, anchors)
    weights, _ = refine(problem, fit, 10_000)
    fields = {"rule": "fitted", "times": times, "anchors": anchors}
    before, after = (
        sample(flow, noise, Plan(weights=rows, **fields)) for rows in (fit.weights, weights)
    )
    gain = log_drift(before[16:], wanted[16:]) - log_drift(after[16:], wanted[16:])
    assert gain > math.log(factor)


def test_weights_stay_where_held_out_samples_disagree(flow, noise):
    problem = problem_of(flow, noise[:SAMPLES], condition={})
    fit = lock_step(problem, (0, 4, 8, 11, 14, 18))
    spoilt = problem.reference.states.clone()
    judges = problem.reference.held_out
    spoilt[-1, :judges] = fit.states[-1][:judges]  # these are right as they are
    problem = problem._replace(reference=problem.reference._replace(states=spoilt))
    fit = fit._replace(drift={**fit.drift, **dict.fromkeys(range(judges), 1e-9)})
    weights, spent = refine(problem, fit, 10_000)
    assert spent > 0
    assert weights == fit.weights


def test_an_exact_fit_stays_exact(noise):
    def steady(x, t):
        return torch.ones_like(x)

    plan = fit_plan(steady, noise[:8], time_grid(STEPS), evaluations=4, condition={})
    assert plan.certificate is not None
    assert plan.certificate.drift < 1e-6


@pytest.mark.slow
def test_the_certificate_is_that_of_the_refined_weights(flow, noise):
    times = time_grid(STEPS, shift=3.0)
    counted = Counted(flow)
    plan = fit_plan(counted, noise[:SAMPLES], times, evaluations=6, condition={})
    assert plan.certificate is not None
    assert plan.certificate.evaluations_spent == counted.evaluations <= 3000
    wanted = sample(flow, noise[:SAMPLES], Plan.full(times))
    made = sample(flow, noise[:SAMPLES], plan)
    drift = (made - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert plan.certificate.drift == pytest.approx(drift[: SAMPLES // 4].mean().item(), rel=1e-9)
    assert plan.certificate.fit_drift == pytest.approx(
        drift[SAMPLES // 4 :].mean().item(), rel=1e-9
    )
    assert len(DAMPINGS) == 3
