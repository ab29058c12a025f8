"""The search for anchors: what it finds, what it costs, and how it goes on after a stop."""

import math
from itertools import combinations
from statistics import fmean

import pytest
from tests.support import Counted, KilledError, mixture, noise_of

from tacache import PlanError, fit_plan, time_grid
from tacache.fitting import fit_budget
from tacache.fitting.anchors import best_anchors
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.lockstep import Problem, lock_step, log_drift
from tacache.fitting.reference import record
from tacache.fitting.samples import FunctionSamples
from tacache.fitting.search import SearchedFits, best_subset, search_anchors

TIMES = tuple(time_grid(16, shift=2.0))
SHAPE = (2, 3)
BUDGET = 5


@pytest.fixture(scope="module")
def flow():
    return mixture()


def problem_of(flow, samples=8):
    runs = FunctionSamples(flow, noise_of(samples, SHAPE), TIMES, {})
    return Problem(runs, record(runs), 4, list(range(samples)))


def score(fit):
    return fmean(log_drift(fit))


@pytest.mark.slow
def test_it_does_not_lose_to_the_program_s_own_anchors(flow):
    problem = problem_of(flow)
    reference = problem.reference
    start = lock_step(problem, best_anchors(reference.errors, reference.growth, BUDGET))
    found = search_anchors(SearchedFits(problem, 5000), BUDGET)
    assert score(found) <= score(start)
    assert len(found.anchors) == BUDGET


@pytest.mark.slow
def test_a_wrong_growth_is_made_up_for(flow):
    """Growth as if late errors mattered most: its inverse power is out of reach, a weak one not."""
    problem = problem_of(flow)
    growth = [math.exp(4.0 * (1 - n / 16)) for n in range(17)]
    skewed = problem._replace(reference=problem.reference._replace(growth=growth))
    start = lock_step(skewed, best_anchors(skewed.reference.errors, growth, BUDGET))
    found = search_anchors(SearchedFits(skewed, 5000), BUDGET)
    assert score(found) < score(start)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0, 39, 40, 100, 400])
def test_it_stays_within_its_budget(flow, budget):
    counted = Counted(flow)
    runs = FunctionSamples(counted, noise_of(8, SHAPE), TIMES, {})
    problem = Problem(runs, record(runs), 4, list(range(8)))
    before, tries = counted.evaluations, SearchedFits(problem, budget)
    found = search_anchors(tries, BUDGET)
    assert (found is None) == (budget < 8 * BUDGET)  # of one fit
    assert counted.evaluations - before == budget - tries.left <= budget


def test_anchors_are_fitted_once(flow):
    problem, anchors = problem_of(flow), (0, 2, 5, 8, 12)
    tries = SearchedFits(problem, 1000)
    first = tries.fit(anchors)
    left = tries.left
    assert tries.fit(anchors) is first
    assert tries.left == left == 1000 - 8 * BUDGET
    moved = tries.fit((0, 2, 5, 8, 13), first, 3)
    assert tries.left == left - 8  # only the last anchor's state is new
    assert moved.weights[:3] == first.weights[:3]


@pytest.mark.slow
def test_a_stopped_search_goes_on_to_the_same_plan_without_repeating(flow, tmp_path):
    x, path = noise_of(8, SHAPE), tmp_path / "deep" / "runs"
    whole = Counted(flow)
    expected = fit_budget(*recorded(whole, x), BUDGET, FitOptions(max_evaluations=2000))
    first = Counted(flow, most=whole.evaluations // 2)
    with pytest.raises(KilledError):
        fit_budget(*recorded(first, x, path), BUDGET, FitOptions(max_evaluations=2000, resume=path))
    again = Counted(flow)
    found = fit_budget(
        *recorded(again, x, path), BUDGET, FitOptions(max_evaluations=2000, resume=path)
    )
    assert found.anchors == expected.anchors
    assert found.weights == expected.weights
    assert found.certificate == expected.certificate
    assert again.evaluations < whole.evaluations - 8 * 16  # neither the full runs nor all tries


def recorded(velocity, x, path=None):
    runs = FunctionSamples(velocity, x, TIMES, {})
    return runs, record(runs, FitOptions(resume=path))


@pytest.mark.slow
def test_a_torn_last_line_is_tried_again(flow, tmp_path):
    path, problem = tmp_path / "tries", problem_of(flow)
    search_anchors(SearchedFits(problem, 400, path), BUDGET)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:20])
    whole = search_anchors(SearchedFits(problem, 400), BUDGET)
    again = search_anchors(SearchedFits(problem, 400, path), BUDGET)
    assert again.anchors == whole.anchors
    assert again.weights == whole.weights
    assert search_anchors(SearchedFits(problem, 400, path), BUDGET).weights == whole.weights


def test_the_tries_of_another_fit_are_refused(flow, tmp_path):
    path, problem = tmp_path / "tries", problem_of(flow)
    SearchedFits(problem, 400, path).fit((0, 2, 5, 8, 12))
    with pytest.raises(PlanError, match=r"fits of another search .*: delete it"):
        SearchedFits(problem._replace(history=2), 400, path)
    path.write_text("")
    assert SearchedFits(problem, 400, path).fit((0, 2, 5, 8, 12))
    assert len(path.read_text().splitlines()) == 1
    path.write_text("a shopping list\n")
    with pytest.raises(PlanError, match=r"is no file of fits.*: delete it"):
        SearchedFits(problem, 400, path)


@pytest.mark.slow
def test_a_search_gains_on_samples_it_has_not_seen(flow):
    """Over several draws, on a smooth flow: never much worse, and better in the mean."""
    gains = []
    for seed in range(3):
        x = noise_of(16, SHAPE, seed=seed)
        plans = [fit_plan(flow, x, TIMES, evaluations=BUDGET, search=s) for s in (False, True)]
        quick, searched = (plan.certificate.drift for plan in plans)
        gains.append(math.log(quick / searched))
    assert fmean(gains) > 0


@pytest.mark.slow
def test_with_few_steps_all_sets_of_anchors_are_tried():
    runs = FunctionSamples(mixture(), noise_of(6), time_grid(6, shift=3.0), {})
    reference = record(runs)
    problem = Problem(runs, reference, 3, list(range(6)))
    every = [(0, *rest) for rest in combinations(range(1, 6), 2)]
    scores = {anchors: fmean(log_drift(lock_step(problem, anchors))) for anchors in every}
    tries = SearchedFits(problem, 3000)
    assert best_subset(tries, 3).anchors == min(scores, key=scores.get)
    assert tries.budget - tries.left == len(every) * 3 * 6
    assert best_subset(SearchedFits(problem, len(every) * 3 * 6 - 1), 3) is None
    for search in (True, False):
        plan = fit_budget(runs, reference, 3, FitOptions(search=search))
        assert plan.anchors == min(scores, key=scores.get)
