import pytest
from tests.studio.conftest import STEPS, tiny_model
from tests.support import certified

from tacache.errors import PlanError
from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import default_evaluations, instant_plan, like_evaluations
from tacache.plan import make_plan
from tacache.storage.origin import Origin
from tacache.studio.choices import RULES, Known, choose, choose_quality, typical_choice
from tacache.studio.shelf import Shelf, Shelved


def fitted(model, evaluations, flow=False):
    figures = {"psnr": 30.0, "drift": 0.1} | ({"equivalent_steps": 21.0} if flow else {})
    return certified(evaluations, times=model.times, origin=model.origin, **figures)


def test_a_fitted_plan_is_the_stored_one(model, shelf):
    plans = [fitted(model, 4), fitted(model, 7), fitted(model, 4, flow=True)]
    for plan in plans:
        shelf.put(plan)
    known = Known(model, shelf)
    assert choose(known, "fitted", 4).plan == plans[0]
    assert choose(known, "flow", 4).plan == plans[2]
    near = choose(known, "fitted", 8)
    assert near.plan == plans[1]
    assert "It is the one nearest to 8 evaluations" in near.sentence


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


def test_the_studio_opens_on_the_usual_budget(model, shelf, tiny_profile):
    usual = default_evaluations(STEPS)
    assert typical_choice(Known(model, shelf, tiny_profile)) == ("linear", usual)
    assert typical_choice(Known(model, shelf), "magcache")[0] == "magcache"
    shelf.put(fitted(model, 6))
    assert typical_choice(Known(model, shelf)) == ("fitted", 6)  # the nearest plan there is
    assert typical_choice(Known(model, shelf), "linear")[0] == "linear"


def quality(certificate, **figures):
    return {"certificate": certificate.model_copy(update=figures)}


def test_a_quality_leads_to_the_fewest_evaluations_that_promise_it(model, shelf):
    for evaluations, psnr, near in ((4, 30.0, 8.0), (5, 36.0, 20.0), (7, 41.0, 40.0)):
        plan = fitted(model, evaluations, flow=True)
        figures = quality(plan.certificate, psnr=psnr, equivalent_steps=near)
        shelf.put(plan.model_copy(update=figures))
    known = Known(model, shelf)
    assert choose_quality(known, QualityGoal(min_psnr=35)).plan.evaluations == 5
    assert choose_quality(known, QualityGoal(like_steps=21)).plan.evaluations == 7


def test_a_quality_that_no_plan_promises_is_the_full_run_or_an_instant_plan(model, shelf, store):
    known = Known(model, shelf)
    full = choose_quality(known, QualityGoal(min_psnr=35))
    assert full.plan.is_full
    assert "a PSNR of 35 dB to the full run in the mean" in full.sentence
    assert "no plan has such a figure" in full.sentence
    longer = model.with_steps(50)
    instant = choose_quality(Known(longer, Shelf(longer, store)), QualityGoal(like_steps=28))
    assert (instant.plan.rule, instant.plan.evaluations) == ("linear", like_evaluations(28))
    assert instant.plan.grid == longer.times
    assert "that was not measured" in instant.sentence
    assert choose_quality(known, QualityGoal(like_steps=90)).plan.is_full


def test_plans_of_other_models_stay_away(model, shelf):
    other = fitted(model, 4).model_copy(update={"origin": Origin(kind="diffusers", model="other")})
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
        "4 of 10 steps, fitted to the flow (shipped)"
    )


def test_the_store_does_not_grow_without_end(model, shelf, monkeypatch):
    monkeypatch.setattr("tacache.studio.shelf.MAX_PLANS", 1)
    shelf.put(fitted(model, 4))
    with pytest.raises(PlanError, match="1 plans"):
        shelf.put(fitted(model, 5))


def test_plans_of_a_joint_model_have_all_of_its_latents(store):
    model = tiny_model("ltx2")
    assert list(model.signature.latents) == ["audio"]
    shelf = Shelf(model, store)
    plan = choose(Known(model, shelf), "linear", 4).plan
    assert plan.latents["audio"].times == model.latents["audio"]
    learned = {"rule": "fitted", "certificate": fitted(model, 4).certificate}
    shelf.put(plan.model_copy(update={"origin": model.origin, **learned}))
    assert [one.plan.rule for one in shelf.fitted()] == ["fitted"]


def test_an_own_plan_is_for_its_steps(model, shelf):
    own = instant_plan(model.times, 6)
    with pytest.raises(PlanError, match="set the steps to 10"):
        choose(Known(model.with_steps(8), shelf, own=own), "own", 6)


def test_a_plan_from_a_profile_fits(model, shelf, tiny_profile):
    shelf.put(make_plan(tiny_profile, evaluations=5))
    assert [one.plan.rule for one in shelf.plans()] == ["tasu"]


def test_a_model_that_ships_has_its_profile():
    assert tiny_model().shipped_profile() is None
