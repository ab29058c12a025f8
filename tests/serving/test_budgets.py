import pytest
from tests.support import certified

from tacache import time_grid
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.instant import LIKE_STEPS, default_evaluations
from tacache.serving.budgets import Budgets, chosen
from tacache.serving.protocol import Refused, RequestBody
from tacache.storage.origin import Origin
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore

ORIGIN = Origin(kind="diffusers", pipeline="P", denoiser="D", weights="w", scheduler="S", call={})
RUN = RunSignature(ORIGIN, tuple(time_grid(20)), (), 20)
FOR_RUN = {"times": RUN.times, "origin": ORIGIN}
PSNR = {5: 30.0, 8: 36.0, 12: 42.0}


@pytest.fixture
def budgets(tmp_path):
    store = PlanStore(tmp_path, shipped=())
    for evaluations, psnr in PSNR.items():
        store.put(certified(evaluations, **FOR_RUN, psnr=psnr))
    return Budgets(store)


@pytest.fixture
def empty(tmp_path):
    return Budgets(PlanStore(tmp_path / "none", shipped=()))


def wanted(**fields):
    return RequestBody(prompt="a fox", seed=0, **fields)


def choice(budgets, *, batch=1.0, before=0.0, is_under_load=False, **fields):
    """The evaluations chosen where each takes so long, after what is there already."""
    asked = wanted(**fields)
    return chosen(
        budgets.offers(RUN, asked),
        asked,
        loaded=lambda n: before + batch * n,
        alone=lambda n: batch * n,
        is_under_load=is_under_load,
    )


def test_evaluations_take_the_stored_plan(budgets):
    found = choice(budgets, evaluations=8)
    assert (found.plan.rule, found.plan.certificate.psnr) == ("fitted", 36.0)


def test_evaluations_without_a_stored_plan_take_an_instant_one(budgets):
    found = choice(budgets, evaluations=7)
    assert (found.plan.rule, found.plan.evaluations) == ("linear", 7)


def test_a_speedup_is_a_budget(budgets):
    assert choice(budgets, speedup=4.0).evaluations == 5
    assert choice(budgets, speedup=4.0).plan.rule == "fitted"


def test_a_speedup_of_one_makes_all_steps(budgets):
    assert choice(budgets, speedup=1.0) == (20, None)


def test_without_a_budget_the_servers_speedup_holds_else_the_usual_number(budgets):
    assert choice(budgets).evaluations == default_evaluations(20)
    assert choice(Budgets(budgets.store, AccelerateOptions(speedup=2.0))).evaluations == 10


def test_more_evaluations_than_steps_are_refused(budgets):
    with pytest.raises(Refused) as caught:
        choice(budgets, evaluations=21)
    assert caught.value.param == "evaluations"


@pytest.mark.parametrize(("psnr", "evaluations"), [(20, 5), (31, 8), (42, 12), (43, 20)])
def test_the_smallest_budget_that_keeps_the_fidelity_is_taken(budgets, psnr, evaluations):
    assert choice(budgets, min_psnr=psnr).evaluations == evaluations


def test_nothing_is_known_of_an_instant_plan_so_all_steps_are_made(empty):
    assert choice(empty, min_psnr=20).plan is None


@pytest.mark.parametrize(("steps", "evaluations"), [(10, 8), (14, 8), (15, 12), (30, 12)])
def test_the_smallest_budget_that_is_as_near_to_the_flow_is_taken(budgets, steps, evaluations):
    for of, near in ((8, 14.0), (12, 30.0)):
        budgets.store.put(certified(of, **FOR_RUN, psnr=30.0, equivalent_steps=near))
    found = choice(budgets, like_steps=steps)
    assert (found.plan.rule, found.evaluations) == ("fitted", evaluations)


def test_nearness_to_the_flow_takes_an_instant_plan_by_the_table(empty, caplog):
    found = choice(empty, like_steps=16)
    assert found.plan.has_own_times
    assert found.evaluations == LIKE_STEPS[16]
    assert "that was not measured" in caplog.text


def test_the_table_is_not_believed_where_fits_on_this_model_miss_it(empty):
    empty.store.put(certified(19, **FOR_RUN, psnr=30.0, equivalent_steps=15.0))
    assert choice(empty, like_steps=16) == (20, None)


def test_where_nothing_is_known_to_reach_it_all_steps_are_made_and_the_log_says_so(empty, caplog):
    assert choice(empty, like_steps=999) == (20, None)
    assert choice(empty, like_steps=999, is_under_load=True) == (20, None)
    assert caplog.text.count("as near to the flow as 999 Euler steps") == 1


def test_a_request_that_asks_for_nothing_gets_the_servers_quality(budgets, empty):
    served = Budgets(budgets.store, AccelerateOptions(min_psnr=40))
    assert choice(served).evaluations == 12
    assert choice(served, deadline_s=30).evaluations == 20
    assert choice(served, deadline_s=15).evaluations == 12
    assert choice(served, min_psnr=31).evaluations == 8
    assert choice(served, speedup=4.0).evaluations == 5
    assert choice(Budgets(empty.store, AccelerateOptions(like_steps=16))).plan.has_own_times


@pytest.mark.parametrize(("deadline", "evaluations"), [(5, 5), (8.5, 8), (19, 12), (20, 20)])
def test_a_deadline_takes_the_largest_budget_in_time(budgets, deadline, evaluations):
    assert choice(budgets, deadline_s=deadline).evaluations == evaluations


def test_a_deadline_without_stored_plans_takes_instant_ones(empty):
    assert choice(empty, deadline_s=8).evaluations == 7
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


def test_before_the_first_batch_everything_is_taken_for_in_time(budgets):
    asked = wanted(deadline_s=0.1)
    unknown = {"loaded": lambda n: None, "alone": lambda n: None}
    found = chosen(budgets.offers(RUN, asked), asked, is_under_load=False, **unknown)
    assert found.evaluations == 20
