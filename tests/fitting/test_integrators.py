"""Walks of a fit: Euler's, and a solver's that remembers."""

from statistics import fmean

import pytest
import torch
from tests.support import mixture, noise_of

from tacache import time_grid
from tacache.fitting import fit_budget
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import EulerIntegrator
from tacache.fitting.lockstep import Problem, lock_step, log_drift
from tacache.fitting.reference import record
from tacache.fitting.refine import refine, with_weights
from tacache.fitting.samples import FunctionSamples
from tacache.velocity import euler

TIMES = tuple(time_grid(12, shift=2.0))


class AdamsIntegrator:
    """Adams and Bashforth's second method: each step also uses the velocity of the one before."""

    remembers = True

    def __init__(self, before=None):
        self.before = before

    def move(self, x, v, n, m):
        """One step after the other."""
        for i in range(n, m):
            length, last = TIMES[i] - TIMES[i + 1], TIMES[max(i, 1) - 1] - TIMES[max(i, 1)]
            turn = 0.0 if self.before is None else 0.5 * length / last * (v - self.before)
            x, self.before = x - length * (v + turn), v
        return x

    def columns(self, x, basis, wanted, n, m):
        """By trial, on copies."""
        still = AdamsIntegrator(self.before).move(x, torch.zeros_like(x), n, m)
        moved = [AdamsIntegrator(self.before).move(x, v, n, m) for v in basis]
        span = TIMES[n] - TIMES[m]
        return [(still - one) / span for one in moved], (still - wanted) / span


class AdamsSamples(FunctionSamples):
    """Samples of a velocity function that step by Adams and Bashforth."""

    def integrator(self, chosen):
        """All samples walk as one."""
        return AdamsIntegrator()


@pytest.fixture(scope="module")
def flow():
    return mixture()


@pytest.fixture(scope="module")
def noise():
    return noise_of(8)


@pytest.fixture
def problem(flow, noise):
    runs = AdamsSamples(flow, noise, TIMES, condition={})
    return Problem(runs, record(runs), 3, list(range(8)))


def test_eulers_interval_is_one_step(flow, noise):
    integrator, v = EulerIntegrator(TIMES), torch.ones_like(noise)
    assert torch.equal(integrator.move(noise, v, 2, 6), euler(noise, v, TIMES[2], TIMES[6]))
    columns, target = integrator.columns(noise, [v], noise - 1.0, 2, 6)
    assert columns[0] is v
    assert torch.allclose(target, v / (TIMES[2] - TIMES[6]))


def test_runs_walk_by_euler_unless_they_have_a_solver(flow, noise):
    assert isinstance(FunctionSamples(flow, noise, TIMES).integrator([0]), EulerIntegrator)


def test_the_reference_is_the_solvers_own_run(flow, noise, problem):
    x, integrator = noise, AdamsIntegrator()
    for n, t in enumerate(TIMES[:-1]):
        x = integrator.move(x, flow(x, t), n, n + 1)
    assert torch.equal(problem.reference.states[-1], x)


def test_a_fit_that_evaluates_every_step_is_the_reference(problem):
    fit = lock_step(problem, tuple(range(12)))
    assert max(fit.drift.values()) < 1e-4


def test_a_fit_follows_the_solver_not_euler(flow, noise, problem):
    """The same anchors with weights fitted to Euler's steps lead elsewhere."""
    anchors = (0, 2, 4, 6, 8, 10)
    runs = FunctionSamples(flow, noise, TIMES, condition={})
    eulers = lock_step(problem._replace(runs=runs, reference=record(runs)), anchors)
    found = with_weights(problem, anchors, eulers.weights)
    fit = lock_step(problem, anchors)
    assert fmean(log_drift(fit)) < fmean(log_drift(found)) - 0.2


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_fit_goes_on_with_what_the_solver_remembers(problem, first):
    fit = lock_step(problem, (0, 3, 6, 9))
    assert lock_step(problem, fit.anchors, fit, first).weights == fit.weights
    assert with_weights(problem, fit.anchors, fit.weights, fit, first).drift == fit.drift


@pytest.mark.slow
def test_search_and_refinement_walk_with_it_too(problem):
    fit = lock_step(problem, (0, 3, 6, 9))
    _, spent = refine(problem, fit, 10_000)
    assert spent > 0
    fast, searched = (
        fit_budget(problem.runs, problem.reference, 4, FitOptions(max_evaluations=most))
        for most in (0, 3000)
    )
    again = with_weights(problem, searched.anchors, searched.weights)
    held_out = problem.reference.held_out
    judged = [again.drift[i] for i in range(held_out)]
    assert searched.certificate.drift == pytest.approx(sum(judged) / held_out, rel=1e-9)
    assert searched.certificate.drift <= 1.05 * fast.certificate.drift
