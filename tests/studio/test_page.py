"""What the page's events do, without a browser."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio")

from tests.studio.conftest import PROMPTS  # noqa: E402
from tests.studio.test_choices import fitted  # noqa: E402

from tacache.instant import default_evaluations  # noqa: E402
from tacache.plan import Plan, make_plan  # noqa: E402
from tacache.studio.page import build  # noqa: E402
from tacache.studio.page.making import Making  # noqa: E402
from tacache.studio.page.trying import Trying  # noqa: E402
from tacache.studio.page.understanding import Understanding, anchors_of, ranges  # noqa: E402

pytestmark = pytest.mark.slow

ME = SimpleNamespace(session_hash="me")
YOU = SimpleNamespace(session_hash="you")
NOTHING = gr.skip()
FOUR = ("evaluations", 4, 35, 10)  # what is asked for, and where the sliders stand


def test_the_page_is_built_without_anything_from_elsewhere(studio):
    page = build(studio)
    assert page.analytics_enabled is False
    named = [block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)]
    assert {"prompt", "draw", "stop", "stage", "tau-k", "tau-d", "learn", "upload"} <= set(named)
    assert len(named) == len(set(named))
    for event in page.fns.values():
        assert event.api_visibility == "private" or event.fn is None or event.name == "leave"


def test_drawing_ends_with_the_comparison(studio):
    updates = list(Trying(studio).draw(ME, "a fox", 1, *FOUR, "linear"))
    status, draw, stop, stage, comparison, gallery = updates[-1]
    assert "Done." in status
    assert draw["interactive"] is True
    assert stop["interactive"] is False
    assert stage.count("<img") == 2
    assert "PSNR" in comparison
    assert len(gallery["value"]) == 1
    assert studio.session("me").drift
    assert updates[0][1]["interactive"] is False


def test_an_error_is_a_sentence_and_the_buttons_come_back(studio):
    *_, last = Trying(studio).draw(ME, "", 1, *FOUR, "linear")
    assert 'role="alert"' in last[0]
    assert "There is no prompt" in last[0]
    assert last[1]["interactive"] is True


def test_a_run_that_is_stopped_says_how_far_it_came(studio):
    events, words = Trying(studio), []
    for update in events.draw(ME, "a fox", 1, *FOUR, "linear"):
        words.append(update[0])
        if "step 2 of 10" in update[0] or "step 3 of 4" in update[0]:
            events.stop(ME)
    assert "Stopped after" in words[-1]
    assert studio.session("me").gallery.entries == []


def test_the_settings_mean_a_speed(studio):
    events = Trying(studio)
    assert "4 of 10 steps run the model: up to 2.5 times" in events.meaning(ME, *FOUR, "linear")
    five = events.meaning(ME, "evaluations", 5, 35, 10, "linear")
    assert five != events.meaning(ME, *FOUR, "linear")
    assert "tuned" in events.meaning(ME, *FOUR, "magcache")
    assert "alert" in events.meaning(ME, *FOUR, "fitted")


def test_the_promise_is_there_before_anything_is_drawn(studio, shelf):
    shelf.put(fitted(studio.model, 4))
    said = Trying(studio).meaning(ME, *FOUR, "fitted")
    assert "Promise, measured on 2 held-out samples: 30.0 dB" in said
    assert 'class="psnr"' in said
    assert "Not measured on this model" in Trying(studio).meaning(ME, *FOUR, "linear")


def test_other_steps_bring_their_own_budget_and_plans(studio, shelf):
    shelf.put(fitted(studio.model, 4))
    events = Trying(studio)
    evaluations, rule, _ = events.set_steps(20, "fitted", ME)
    assert (evaluations["maximum"], evaluations["value"]) == (20, default_evaluations(20))
    assert rule == "linear"
    assert "4 of 20 steps" in events.meaning(ME, *FOUR, "linear")
    assert "4 of 10 steps" in events.meaning(YOU, *FOUR, "linear")
    assert events.set_steps(10, "fitted", ME)[:2] == [gr.update(maximum=10, value=4), "fitted"]
    assert "alert" in events.set_steps(1000, "fitted", ME)[2]
    assert studio.session("me").steps == 10


def test_a_quality_is_asked_for_in_the_place_of_evaluations(studio, shelf):
    shelf.put(fitted(studio.model, 4))
    events = Trying(studio)
    assert "4 of 10 steps" in events.meaning(ME, "min_psnr", 9, 30, 10, "linear")
    assert "the best is 30.0 dB" in events.meaning(ME, "min_psnr", 9, 31, 10, "linear")
    *_, last = events.draw(ME, "a fox", 1, "min_psnr", 9, 30, 10, "linear")
    (entry,) = studio.session("me").gallery.entries
    assert "Done." in last[0]
    settings = {name: entry.settings[name] for name in ("min_psnr", "evaluations", "evaluated")}
    assert settings == {"min_psnr": 30.0, "evaluations": None, "evaluated": 4}
    assert "by quality, 4 of 10" in entry.caption


def test_only_what_is_there_is_exported(studio):
    events = Trying(studio)
    assert "nothing to export" in events.export(ME)[1]
    list(events.draw(ME, "a fox", 1, *FOUR, "linear"))
    archive, _ = events.export(ME)
    assert Path(archive["value"]).suffix == ".zip"


def test_thresholds_become_the_plan_of_the_person(studio):
    understanding, making = Understanding(studio), Making(studio)
    tau_k, tau_d, anchors = understanding.sliders(ME)
    assert understanding.moved(tau_k["value"], tau_d["value"], ME) == anchors
    assert understanding.moved(0, 0, ME) != anchors
    assert "alert" in understanding.moved(-1, 0, ME)
    ask, rule, _ = making.use(0, 0, ME)
    assert (ask, rule) == ("evaluations", "own")
    assert studio.session("me").own.evaluations == 10
    assert studio.session("you").own is None


def test_thresholds_move_the_anchors(profile):
    (tau_k, tau_d) = ranges(profile)
    strict = make_plan(profile, tau_k=0, tau_d=0)
    usual = make_plan(profile, tau_k=tau_k.first, tau_d=tau_d.first)
    loose = make_plan(profile, tau_k=tau_k.highest, tau_d=tau_d.highest)
    assert strict.evaluations == profile.steps
    assert strict.evaluations > usual.evaluations > loose.evaluations
    for one in (tau_k, tau_d):
        assert one.first < one.highest
        assert (one.highest / one.notch) == pytest.approx(round(one.highest / one.notch))


def test_without_a_profile_the_view_says_what_to_do(studio):
    session = studio.session("me")
    session.profile = None
    understanding = Understanding(studio)
    assert "under Make" in understanding.charts(ME)[0]
    assert "under Make" in understanding.sliders(ME)[2]
    assert "under Make" in anchors_of(None, 0, 0)
    assert Making(studio).use(0, 0, ME) == [NOTHING] * 3
    assert Making(studio).files(ME)[3]["interactive"] is False


def test_charts_show_plans_and_the_last_run(studio, shelf):
    shelf.put(fitted(studio.model, 4))
    list(Trying(studio).draw(ME, "a fox", 1, *FOUR, "linear"))
    curves, frontier, drift = Understanding(studio).charts(ME)
    assert curves.count("<figure") == 3
    assert "30.0 dB" in frontier
    assert "after step 10" in drift


def test_a_plan_goes_out_and_comes_back(studio, tmp_path):
    making, plan = Making(studio), make_plan(studio.profile, evaluations=4)
    assert "Loaded into the plan store: 4 of 10" in making.bring(
        str(plan.save(tmp_path / "x.json")), ME
    )
    assert studio.session("me").own == plan
    plans, about, plan_file, profile_file = making.files(ME)
    assert plans["choices"][0][0].startswith("4 of 10 steps, tasu")
    assert "4 of 10 steps" in about
    assert Plan.load(plan_file["value"]) == plan
    assert json.loads(Path(profile_file["value"]).read_text())["format"] == "tacache-profile"
    assert "no longer there" in making.chosen("gone", ME)[0]
    assert "no plan yet" in making.chosen(None, ME)[0]


def test_a_profile_is_the_persons_own(studio, tmp_path):
    other = studio.profile.model_copy(update={"samples": 7})
    said = Making(studio).bring(str(other.save(tmp_path / "p.json")), ME)
    assert "a profile of 7 runs" in said
    assert studio.session("me").profile == other
    assert studio.session("you").profile == studio.profile
    assert Making(studio).bring(None, ME) == ""


def test_a_malformed_file_is_a_sentence(studio, tmp_path):
    file = tmp_path / "<b>.json"
    file.write_text("{")
    said = Making(studio).bring(str(file), ME)
    assert 'role="alert"' in said
    assert "&lt;b&gt;.json is not JSON" in said


def test_learning_puts_a_plan_into_the_store(studio, shelf):
    *_, last = Making(studio).learn("\n".join(PROMPTS), "4", "run", ME)
    assert "put into the plan store" in last[0]
    (stored,) = shelf.plans()
    assert studio.session("me").own == stored.plan
    assert studio.session("me").profile.samples == 4


def test_learning_can_be_stopped_and_refused(studio):
    making = Making(studio)
    *_, refused = making.learn("one", "4", "run", ME)
    assert "give 2 to 64 prompts" in refused[0].lower()
    for update in making.learn("\n".join(PROMPTS), "4", "run", ME):
        if "step" in update[0]:
            making.stop(ME)
    assert "Stopped after" in update[0]
    assert update[1]["interactive"] is True
