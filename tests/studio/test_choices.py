import pytest

from tacache.certificate import Certificate
from tacache.errors import PlanError
from tacache.instant import instant_plan
from tacache.plan import make_plan
from tacache.profile import Origin
from tacache.studio.choices import RULES, Known, choose, first_rule
from tacache.studio.shelf import Shelved
from tests.studio.conftest import STEPS, tiny_model


def fitted(model, evaluations, flow=False):
    certificate = Certificate(
        held_out=2,
        drift=0.1,
        fit_drift=0.1,
        psnr=30.0,
        evaluations_spent=100,
        date="2026-01-01",
        flow_drift=0.1 if flow else None,
        equivalent_steps=21.0 if flow else None,
    )
    changed = {"rule": "fitted", "host": model.origin, "certificate": certificate}
    return instant_plan(model.times, evaluations).model_copy(update=changed)


def test_a_fitted_plan_is_the_stored_one(model, shelf):
    plans = [fitted(model, 4), fitted(model, 7), fitted(model, 4, flow=True)]
    for plan in plans:
        shelf.put(plan)
    known = Known(model, shelf)
    assert choose(known, "fitted", 4).plan == plans[0]
    assert choose(known, "flow", 4).plan == plans[2]
    near = choose(known, "fitted", 8)
    assert near.plan == plans[1]
    assert "No fitted plan has 8 evaluations, so the one with 7 is used" in near.sentence


@pytest.mark.parametrize("rule", ["fitted", "flow", "tasu", "own"])
def test_what_is_not_there_is_a_sentence(model, shelf, rule):
    with pytest.raises(PlanError, match="under Make"):
        choose(Known(model, shelf), rule, 4)


def test_every_rule_leads_to_a_plan_with_the_evaluations_asked_for(model, shelf, tiny_profile):
    own = instant_plan(model.times, 6)
    shelf.put(fitted(model, 6))
    shelf.put(fitted(model, 6, flow=True))
    known = Known(model, shelf, tiny_profile, own)
    for rule in RULES:
        assert choose(known, rule, 6).plan.evaluations == 6


@pytest.mark.parametrize("evaluations", [2, STEPS + 1, -1])
def test_impossible_numbers_are_refused(model, shelf, evaluations):
    with pytest.raises(PlanError, match="choose 3 to 10 evaluations"):
        choose(Known(model, shelf), "linear", evaluations)


def test_an_unknown_rule_is_refused(model, shelf):
    with pytest.raises(PlanError, match="no rule"):
        choose(Known(model, shelf), "__class__", 4)


def test_the_first_rule_is_the_best_that_needs_no_work(model, shelf, tiny_profile):
    assert first_rule(Known(model, shelf)) == "linear"
    assert first_rule(Known(model, shelf, tiny_profile)) == "tasu"
    shelf.put(fitted(model, 4))
    assert first_rule(Known(model, shelf, tiny_profile)) == "fitted"


def test_plans_of_other_models_stay_away(model, shelf):
    other = fitted(model, 4).model_copy(update={"host": Origin(kind="diffusers", model="other")})
    with pytest.raises(PlanError, match="made for other with 10 steps, this is flux with 10"):
        shelf.put(other)
    shorter = instant_plan(model.times[::2], 3)
    with pytest.raises(PlanError, match="5 steps"):
        shelf.put(shorter)
    assert shelf.plans() == []


def test_a_plan_is_found_by_its_name(model, shelf):
    put = shelf.put(fitted(model, 4))
    assert shelf.named(put.name).plan == put.plan
    with pytest.raises(PlanError, match="no longer there"):
        shelf.named("another")
    assert put.title.startswith("4 of 10 steps, fitted (")
    assert Shelved("a", fitted(model, 4, flow=True), ships=True).title == (
        "4 of 10 steps, fitted to the flow (ships with the model)"
    )


def test_the_store_does_not_grow_without_end(model, shelf, monkeypatch):
    monkeypatch.setattr("tacache.studio.shelf.MOST", 1)
    shelf.put(fitted(model, 4))
    with pytest.raises(PlanError, match="1 plans"):
        shelf.put(fitted(model, 5))


def test_a_plan_from_a_profile_fits(model, shelf, tiny_profile):
    shelf.put(make_plan(tiny_profile, evaluations=5))
    assert [one.plan.rule for one in shelf.plans()] == ["tasu"]


def test_a_model_that_ships_has_its_profile():
    assert tiny_model().shipped_profile() is None
