"""The choice of a plan, on a source that keeps nothing: what hosts share of `accelerate`."""

import copy
import logging

import pytest

from tacache import Origin, instant_plan, time_grid
from tacache.certificate import Certificate
from tacache.errors import PlanError
from tacache.host.accelerating import Chooser, known_of
from tacache.host.learning import Learning
from tacache.host.settings import Setting, key_of
from tacache.host.wish import Wish, wish_of

TIMES = time_grid(20, shift=3.0)
ORIGIN = Origin(kind="diffusers", pipeline="P", weights="w", call={"guidance_scale": 3.0})
RUN = Setting(ORIGIN, TIMES, (), 20)


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


def chooser(**wish):
    return Chooser(Wish(**wish), logging.getLogger("tacache.test"))


@pytest.mark.parametrize(
    ("wish", "steps", "whole", "parts", "evaluations"),
    [
        (Wish(), 50, 50, 1, 12),
        (Wish(speedup=2), 25, 50, 1, 12),
        (Wish(evaluations=13), 50, 50, 1, 13),
        (Wish(evaluations=13), 28, 28, 1, 13),
        (Wish(evaluations=13), 30, 50, 1, 8),
        (Wish(speedup=50), 20, 20, 2, 2),
    ],
)
def test_budgets(wish, steps, whole, parts, evaluations):
    assert wish.budget(steps, whole, parts) == evaluations


def test_a_wish_reads_a_plan_from_its_file(tmp_path):
    plan = instant_plan(TIMES, 5)
    plan.save(tmp_path / "a.plan.json")
    assert wish_of(None, None, 0, tmp_path / "a.plan.json").plan == plan
    with pytest.raises(PlanError, match="both"):
        wish_of(2, 5, 0, None)


def test_a_break_is_an_anchor_and_counts():
    plan = chooser(evaluations=4).choose(Setting(ORIGIN, TIMES, (0.9,), 20), NoSource()).plan
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
    plan = instant_plan(TIMES, 5).model_copy(update={"rule": "fitted", "host": ORIGIN})
    begin = Learning.begin

    def begin_late(self):
        choosing.store.put(plan)
        return begin(self)

    monkeypatch.setattr(Learning, "begin", begin_late)
    assert choosing.choose(RUN, Keeping()).plan == plan
    assert Learning(choosing.store.folder / "learning" / key_of(RUN)).begin()


@pytest.mark.parametrize("wish", [(None, 6.5, 0), (None, None, 2.5), ("4", None, 0)])
def test_numbers_of_the_wrong_kind_are_refused(wish):
    with pytest.raises(PlanError, match="number, not"):
        wish_of(*wish, None)
