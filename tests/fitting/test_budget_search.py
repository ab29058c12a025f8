"""The fewest evaluations that reach a quality, by few fits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import Counted, certified, euler_run, mixture, noise_of

from tacache import PlanError, fit_plan, sample, time_grid
from tacache.fidelity import psnr
from tacache.fitting.budget_search import guess_for, most_tries, tried_plans
from tacache.fitting.quality_goal import QualityGoal

GOAL = QualityGoal(min_psnr=35)


@given(st.integers(1, 60), st.data())
def test_it_finds_the_fewest_and_tries_no_more_than_it_says(most, data):
    least = data.draw(st.integers(1, most))
    guess = data.draw(st.integers(least, most))
    fewest = data.draw(st.integers(least, most + 1))
    tried = []

    def fit(budget):
        tried.append(budget)
        return certified(budget, steps=most + 1, psnr=40.0 if budget >= fewest else 20.0)

    plans = tried_plans(fit, GOAL, least, most, guess)
    assert len(set(tried)) == len(tried) <= most_tries(least, most, guess)
    assert [plan.evaluations for plan in plans] == sorted(tried)
    found = GOAL.fewest(plans, lambda plan: plan)
    assert (None if found is None else found.evaluations) == (fewest if fewest <= most else None)
    if found is None:
        assert plans[-1].evaluations == most


def test_it_begins_with_what_an_instant_plan_takes():
    assert guess_for(GOAL, 28, 1, 27) == 13
    assert guess_for(QualityGoal(like_steps=50), 50, 1, 49) == 17
    assert guess_for(QualityGoal(like_steps=50), 12, 1, 11) == 11
    assert guess_for(QualityGoal(like_steps=9999), 50, 2, 40) == 40


def test_without_pictures_no_budget_is_tried_in_vain():
    tried = []

    def fit(budget):
        tried.append(budget)
        return certified(budget)

    with pytest.raises(PlanError, match="output_type='latent'"):
        tried_plans(fit, GOAL, 1, 19, 11)
    assert tried == [11]


# --- by real fits


TIMES = tuple(time_grid(12, shift=3.0))


def pictures(x):
    return (x / 8 + 0.5).clamp(0, 1)


@pytest.mark.slow
def test_a_fit_to_a_psnr_takes_one_set_of_full_runs():
    velocity, x = Counted(mixture()), noise_of(8)
    plan = fit_plan(velocity, x, TIMES, min_psnr=35, decode=pictures, condition={}, search=False)
    known = plan.certificate
    assert known.psnr >= 35
    assert known.worst_psnr <= known.p5_psnr <= known.psnr
    judges = x[:2]
    measured = psnr(
        pictures(euler_run(mixture(), judges, TIMES)), pictures(sample(mixture(), judges, plan))
    )
    assert float(measured.mean()) == pytest.approx(known.psnr, abs=1e-6)
    if plan.evaluations > 1:
        fewer = fit_plan(
            mixture(), x, TIMES, evaluations=plan.evaluations - 1, decode=pictures, condition={},
            search=False,
        )  # fmt: skip
        assert fewer.certificate.psnr < 35


@pytest.mark.slow
def test_a_fit_as_near_as_some_steps_aims_at_the_flow():
    times = time_grid(16, shift=3.0)
    plan = fit_plan(mixture(), noise_of(4), times, like_steps=12, reference_steps=64, condition={})
    assert plan.certificate.equivalent_steps >= 12
    assert plan.evaluations < 12


def test_where_nothing_reaches_it_that_is_said():
    with pytest.raises(PlanError, match="the best is"):
        fit_plan(mixture(), noise_of(4), TIMES[-5:], min_psnr=900, decode=pictures, search=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "evaluations, like_steps or min_psnr"),
        ({"min_psnr": 35}, "give decode"),
        ({"evaluations": 5, "like_steps": 20}, "not evaluations and like_steps"),
        ({"min_psnr": 35, "target": "flow", "decode": pictures}, "leave target"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_work(options, words):
    def never(x, t):
        raise AssertionError

    with pytest.raises(PlanError, match=words):
        fit_plan(never, torch.zeros(4, 2), TIMES, **options)
