import math

import pytest

from tacache import time_grid
from tacache.certificate import Certificate
from tacache.host.settings import Setting
from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.profile import Origin
from tacache.serving.budgets import Budgets, chosen
from tacache.serving.wanted import Refused, Wanted
from tacache.storage.store import PlanStore

ORIGIN = Origin(kind="diffusers", pipeline="P", denoiser="D", weights="w", scheduler="S", call={})
RUN = Setting(ORIGIN, tuple(time_grid(20)), (), 20)
PSNR = {5: 30.0, 8: 36.0, 12: 42.0}


def fitted(evaluations, psnr):
    """A plan with weights, as a fit leaves it."""
    linear = instant_plan(RUN.times, evaluations)
    measured = Certificate(
        held_out=2, drift=0.1, fit_drift=0.1, psnr=psnr, evaluations_spent=9, date="2026-01-01"
    )
    fields = {"rule": "fitted", "host": ORIGIN, "certificate": measured}
    return Plan(**{**linear.model_dump(), **fields})


@pytest.fixture
def budgets(tmp_path):
    store = PlanStore(tmp_path, shipped=())
    for evaluations, psnr in PSNR.items():
        store.put(fitted(evaluations, psnr))
    return Budgets(store)


@pytest.fixture
def empty(tmp_path):
    return Budgets(PlanStore(tmp_path / "none", shipped=()))


def wanted(**fields):
    return Wanted(prompt="a fox", seed=0, **fields)


def choice(budgets, *, wave=1.0, before=0.0, is_under_load=False, **fields):
    """The evaluations chosen where each takes so long, after what is there already."""
    asked = wanted(**fields)
    return chosen(
        budgets.offers(RUN, asked),
        asked,
        loaded=lambda n: before + wave * n,
        alone=lambda n: wave * n,
        is_under_load=is_under_load,
    )


def test_evaluations_take_the_stored_plan(budgets):
    found = choice(budgets, evaluations=8)
    assert (found.plan.rule, found.psnr) == ("fitted", 36.0)


def test_evaluations_without_a_stored_plan_take_an_instant_one(budgets):
    found = choice(budgets, evaluations=7)
    assert (found.plan.rule, found.plan.evaluations, found.psnr) == ("linear", 7, None)


def test_a_speedup_is_a_budget(budgets):
    assert choice(budgets, speedup=4.0).evaluations == 5
    assert choice(budgets, speedup=4.0).plan.rule == "fitted"


def test_a_speedup_of_one_makes_all_steps(budgets):
    assert choice(budgets, speedup=1.0) == (20, None, math.inf)


def test_without_a_wish_the_servers_speedup_holds(budgets):
    assert choice(budgets).evaluations == 5
    budgets.speedup = 2.0
    assert choice(budgets).evaluations == 10


def test_more_evaluations_than_steps_are_refused(budgets):
    with pytest.raises(Refused) as caught:
        choice(budgets, evaluations=21)
    assert caught.value.param == "evaluations"


@pytest.mark.parametrize(("psnr", "evaluations"), [(20, 5), (31, 8), (42, 12), (43, 20)])
def test_the_smallest_budget_that_keeps_the_fidelity_is_taken(budgets, psnr, evaluations):
    assert choice(budgets, min_psnr=psnr).evaluations == evaluations


def test_nothing_is_known_of_an_instant_plan_so_all_steps_are_made(empty):
    assert choice(empty, min_psnr=20).plan is None


def test_a_budget_that_does_not_keep_the_fidelity_is_refused(budgets):
    with pytest.raises(Refused) as caught:
        choice(budgets, evaluations=5, min_psnr=35)
    assert caught.value.param == "min_psnr"


@pytest.mark.parametrize(("deadline", "evaluations"), [(5, 5), (8.5, 8), (19, 12), (20, 20)])
def test_a_deadline_takes_the_largest_budget_in_time(budgets, deadline, evaluations):
    assert choice(budgets, deadline_s=deadline).evaluations == evaluations


def test_a_deadline_without_stored_plans_takes_instant_ones(empty):
    assert choice(empty, deadline_s=7).evaluations == 6
    assert choice(empty, deadline_s=11).plan.rule == "linear"


def test_under_load_the_smallest_budget_that_meets_both_is_taken(budgets):
    both = {"deadline_s": 30, "min_psnr": 31}
    assert choice(budgets, **both).evaluations == 20
    assert choice(budgets, is_under_load=True, **both).evaluations == 8
    assert choice(budgets, is_under_load=True, before=25, deadline_s=30).evaluations == 5


def test_where_nothing_is_in_time_the_client_is_told_when_to_come_again(budgets):
    with pytest.raises(Refused) as caught:
        choice(budgets, before=10, deadline_s=9, min_psnr=31)
    assert (caught.value.status, caught.value.retry_after) == (503, 9)  # 10 + 8 - 9


def test_what_would_be_too_late_with_no_load_is_refused_for_good(budgets):
    with pytest.raises(Refused) as caught:
        choice(budgets, deadline_s=4)
    assert (caught.value.status, caught.value.retry_after) == (400, None)


def test_before_the_first_wave_everything_is_taken_for_in_time(budgets):
    asked = wanted(deadline_s=0.1)
    unknown = {"loaded": lambda n: None, "alone": lambda n: None}
    found = chosen(budgets.offers(RUN, asked), asked, is_under_load=False, **unknown)
    assert found.evaluations == 20
