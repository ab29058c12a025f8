"""A quality asked for: what promises it, and what cannot be asked."""

import pytest
from tests.support import certified

from tacache import PlanError
from tacache.fitting.quality_goal import QualityGoal, check_one_budget

LIKE_28, AT_35 = QualityGoal(like_steps=28), QualityGoal(min_psnr=35)


def as_it_is(plan):
    return plan


def test_a_certificate_promises_what_it_has_measured():
    plan = certified(5, psnr=36.0, p5_psnr=30.0, equivalent_steps=28.0)
    assert AT_35.promised_by(plan.certificate)
    assert LIKE_28.promised_by(plan.certificate)
    assert not QualityGoal(like_steps=29).promised_by(plan.certificate)
    assert not QualityGoal(min_psnr=35, psnr_of="p5").promised_by(plan.certificate)
    assert QualityGoal(min_psnr=30, psnr_of="p5").promised_by(plan.certificate)
    assert not AT_35.promised_by(certified(5).certificate)
    assert not LIKE_28.promised_by(None)


def test_the_fewest_evaluations_are_taken_and_among_equals_what_was_fitted_to_it():
    plans = [
        certified(9, psnr=50.0),
        certified(6, psnr=36.0, equivalent_steps=40.0),
        certified(6, psnr=35.5),
        certified(5, psnr=34.9),
    ]
    assert AT_35.fewest(plans, as_it_is) == plans[2]
    assert LIKE_28.fewest(plans, as_it_is) == plans[1]
    assert QualityGoal(min_psnr=60).fewest(plans, as_it_is) is None
    assert "50.0 dB, with 9 evaluations" in QualityGoal(min_psnr=60).best_of(plans)


def test_what_a_full_run_keeps():
    assert AT_35.kept_by_all(4)
    assert LIKE_28.kept_by_all(28)
    assert not LIKE_28.kept_by_all(27)


def test_a_run_that_starts_midway_has_its_share_of_the_steps():
    assert QualityGoal(like_steps=28).for_part(10, 20) == QualityGoal(like_steps=14)
    assert QualityGoal(like_steps=28).for_part(20, 20) == LIKE_28
    assert AT_35.for_part(10, 20) == AT_35


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of them"),
        ({"like_steps": 28, "min_psnr": 35}, "one of them"),
        ({"like_steps": 28.5}, "whole number"),
        ({"like_steps": True}, "whole number"),
        ({"like_steps": 0}, "whole number"),
        ({"min_psnr": float("nan")}, "number of dB"),
        ({"min_psnr": "35"}, "number of dB"),
        ({"min_psnr": 0}, "number of dB"),
        ({"min_psnr": 35, "psnr_of": "best"}, "psnr_of is"),
        ({"like_steps": 28, "psnr_of": "p5"}, "goes with min_psnr"),
    ],
)
def test_what_is_no_quality_is_refused(options, words):
    with pytest.raises(PlanError, match=words):
        QualityGoal(**options)


def test_options_that_name_none():
    assert QualityGoal.of(None, None) is None
    with pytest.raises(PlanError, match="psnr_of goes with min_psnr"):
        QualityGoal.of(None, None, "p5")


def test_of_options_that_decide_the_budget_one_is_given():
    check_one_budget({"speedup": None, "min_psnr": 35})
    with pytest.raises(PlanError, match="not speedup and min_psnr"):
        check_one_budget({"speedup": 4, "evaluations": None, "min_psnr": 35})
