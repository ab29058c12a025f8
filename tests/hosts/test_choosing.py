"""The choice of a plan, on a source that keeps nothing: what hosts share of `accelerate`."""

import copy
import logging

import pytest
from tests.support import certified

from tacache import Origin, instant_plan, time_grid
from tacache.errors import PlanError
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.hosts.choosing import Chooser, known_of
from tacache.hosts.learning import Learning
from tacache.instant import LIKE_STEPS
from tacache.plan import Certificate
from tacache.storage.signature import RunSignature

TIMES = time_grid(20, shift=3.0)
ORIGIN = Origin(kind="diffusers", pipeline="P", weights="w", call={"guidance_scale": 3.0})
RUN = RunSignature(ORIGIN, TIMES, (), 20)


class NoSource:
    """A call that cannot be made again."""

    def refusal(self):
        """Say so."""
        return "it is a test"

    def call_of(self, row, rows):
        """Nobody asks."""
        raise AssertionError

    def host(self, samples):
        """Nobody asks."""
        raise AssertionError


def chooser(**options):
    return Chooser(AccelerateOptions(**options), logging.getLogger("tacache.test"))


@pytest.mark.parametrize(
    ("options", "steps", "whole", "parts", "evaluations"),
    [
        (AccelerateOptions(), 50, 50, 1, 13),
        (AccelerateOptions(), 8, 8, 1, 6),
        (AccelerateOptions(), 4, 8, 5, 5),
        (AccelerateOptions(speedup=4), 50, 50, 1, 13),
        (AccelerateOptions(speedup=2), 25, 50, 1, 13),
        (AccelerateOptions(evaluations=13), 50, 50, 1, 13),
        (AccelerateOptions(evaluations=13), 28, 28, 1, 13),
        (AccelerateOptions(evaluations=13), 30, 50, 1, 8),
        (AccelerateOptions(speedup=50), 20, 20, 2, 2),
    ],
)
def test_budgets(options, steps, whole, parts, evaluations):
    assert options.budget(steps, whole, parts) == evaluations


def test_options_read_a_plan_from_its_file(tmp_path):
    plan = instant_plan(TIMES, 5)
    plan.save(tmp_path / "a.plan.json")
    assert AccelerateOptions(plan=tmp_path / "a.plan.json").own_plan == plan
    with pytest.raises(PlanError, match="not speedup and evaluations"):
        AccelerateOptions(speedup=2, evaluations=5)


def test_a_break_is_an_anchor_and_counts():
    plan = chooser(evaluations=4).choose(RunSignature(ORIGIN, TIMES, (0.9,), 20), NoSource()).plan
    assert plan.evaluations == 4
    assert plan.break_steps
    assert set(plan.break_steps) <= set(plan.anchors)


def test_refusals_and_weights_that_cannot_be_read_are_said_once(caplog):
    choosing = chooser(evaluations=5, learn=2)
    for _ in range(2):
        assert choosing.choose(RUN, NoSource()).plan.rule == "linear"
    assert caplog.text.count("this call is not learned from: it is a test") == 1
    offloaded = RUN._replace(origin=ORIGIN.model_copy(update={"weights": None}))
    assert choosing.choose(offloaded, NoSource()).plan.rule == "linear"
    assert "the weights cannot be read" in caplog.text


def test_copies_of_a_pipeline_share_their_chooser():
    choosing = chooser()
    assert copy.deepcopy({"scheduler": choosing})["scheduler"] is choosing


def test_what_is_known_of_a_plan_is_said_in_words():
    plan = instant_plan(TIMES, 5)
    assert known_of(plan).endswith("its fidelity was not measured")
    certificate = Certificate(
        held_out=2, drift=0.0123, fit_drift=0.01, psnr=41.23, evaluations_spent=9, date="x"
    )
    said = known_of(plan.model_copy(update={"certificate": certificate}))
    assert "41.2 dB PSNR and 0.012 of drift" in said
    aimed = certificate.model_copy(update={"flow_drift": 0.1, "equivalent_steps": 50.0})
    assert "as near to the flow as 50" in known_of(plan.model_copy(update={"certificate": aimed}))


class Keeping(NoSource):
    """A call that can be made again."""

    def refusal(self):
        """Say so."""


def test_a_plan_that_another_process_has_just_learned_is_followed(monkeypatch):
    """It was not there when the store was looked into, and is when this one may learn."""
    choosing = chooser(evaluations=5, learn=2)
    plan = instant_plan(TIMES, 5).model_copy(update={"rule": "fitted", "origin": ORIGIN})
    begin = Learning.begin

    def begin_late(self):
        choosing.store.put(plan)
        return begin(self)

    monkeypatch.setattr(Learning, "begin", begin_late)
    assert choosing.choose(RUN, Keeping()).plan == plan
    assert Learning(choosing.store.folder / "learning" / RUN.key).begin()


@pytest.mark.parametrize(
    "options", [{"evaluations": 6.5}, {"evaluations": True}, {"learn": 2.5}, {"speedup": "4"}]
)
def test_numbers_of_the_wrong_kind_are_refused(options):
    with pytest.raises(PlanError, match="number, not"):
        AccelerateOptions(**options)


def test_plain_steps_are_made_where_an_instant_plan_is_known_to_lose_to_them(caplog):
    clips = ORIGIN.model_copy(update={"call": {"num_frames": 17}})
    run = RunSignature(clips, time_grid(50, shift=3.0), (), 50)
    choosing = chooser(evaluations=11)
    for _ in range(2):
        plan = choosing.choose(run, NoSource()).plan
    assert (plan.weights, plan.has_own_times, plan.origin) == (((1.0,),) * 11, True, clips)
    assert caplog.text.count("11 plain steps are made") == 1
    assert not chooser(evaluations=12).choose(run, NoSource()).plan.has_own_times
    pictures = RunSignature(ORIGIN, run.times, (), 50)
    assert not choosing.choose(pictures, NoSource()).plan.has_own_times


# --- a quality in the place of a speed


def stored_plan(choosing, evaluations, **figures):
    plan = certified(evaluations, **figures, origin=ORIGIN)
    choosing.store.put(plan)
    return plan


def test_a_stored_plan_is_chosen_by_its_certificate(caplog):
    choosing = chooser(min_psnr=35)
    plans = [stored_plan(choosing, k, psnr=p) for k, p in ((5, 30.0), (7, 36.0), (9, 40.0))]
    assert choosing.choose(RUN, NoSource()) == (plans[1], None)
    assert caplog.text.count("7 evaluations of 20 steps; its certificate has 36.0 dB PSNR") == 1
    assert chooser(min_psnr=39).choose(RUN, NoSource()).plan == plans[2]


def test_nearness_to_the_flow_takes_an_instant_plan_that_is_said_to_be_unmeasured(caplog):
    choosing = chooser(like_steps=12)
    for _ in range(2):
        plan = choosing.choose(RUN, NoSource()).plan
    assert (plan.rule, plan.evaluations) == ("linear", LIKE_STEPS[12])
    assert plan.has_own_times
    assert caplog.text.count("that was not measured") == 1


def test_a_run_that_starts_midway_is_asked_for_its_share():
    half = RunSignature(ORIGIN, tuple(TIMES[10:]), (), 20)
    assert chooser(like_steps=16).choose(half, NoSource()).plan.evaluations == LIKE_STEPS[8]


@pytest.mark.parametrize("options", [{"min_psnr": 35}, {"like_steps": 500}])
def test_where_nothing_is_known_to_reach_it_the_full_run_and_a_sentence(options, caplog):
    choosing = chooser(**options)
    for _ in range(2):
        assert choosing.choose(RUN, NoSource()) == (None, None)
    assert caplog.text.count("makes all of its 20 steps") == 1
    assert caplog.text.count("; fit_plan (tacache fit)") == 1


def test_what_was_fitted_for_in_vain_is_not_learned_again(caplog):
    """Plans that skip one step alone do not reach it: no more full runs are recorded."""
    choosing = chooser(min_psnr=60, learn=2)
    stored_plan(choosing, 19, psnr=50.0)
    assert choosing.choose(RUN, Keeping()) == (None, None)
    assert "ask for less" in caplog.text
    near = chooser(like_steps=12, learn=2)
    stored_plan(near, 19, psnr=50.0, equivalent_steps=11.0)
    assert near.choose(RUN, Keeping()) == (None, None)  # nor is the table believed
    assert chooser(like_steps=12).choose(RUN, NoSource()) == (None, None)  # without learning, too


def test_what_was_fitted_to_the_flow_does_not_say_how_near_the_full_run_may_come():
    """A PSNR is asked for after a search for nearness to the flow, whose plans have one too."""
    choosing = chooser(min_psnr=60, learn=2)
    stored_plan(choosing, 19, psnr=50.0, equivalent_steps=11.0)
    assert choosing.choose(RUN, Keeping()).record is not None


def test_two_ways_to_say_how_often_are_refused():
    with pytest.raises(PlanError, match="not speedup and like_steps"):
        AccelerateOptions(speedup=4, like_steps=28)
    with pytest.raises(PlanError, match="not like_steps and min_psnr"):
        AccelerateOptions(min_psnr=35, like_steps=28)
    with pytest.raises(PlanError, match="psnr_of goes with min_psnr"):
        AccelerateOptions(speedup=4, psnr_of="p5")
