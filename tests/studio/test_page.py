"""What the page's events do, without a browser."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio")

from tacache.plan import Plan, make_plan  # noqa: E402
from tacache.studio.page import build  # noqa: E402
from tacache.studio.page.making import Making  # noqa: E402
from tacache.studio.page.trying import Trying  # noqa: E402
from tacache.studio.page.understanding import Understanding, anchors_of  # noqa: E402
from tests.studio.conftest import PROMPTS  # noqa: E402
from tests.studio.test_choices import fitted  # noqa: E402

ME = SimpleNamespace(session_hash="me")
NOTHING = gr.skip()


def test_the_page_is_built_without_anything_from_elsewhere(studio):
    page = build(studio)
    assert page.analytics_enabled is False
    named = [block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)]
    assert {"prompt", "draw", "stop", "stage", "tau-k", "tau-d", "learn", "upload"} <= set(named)
    assert len(named) == len(set(named))
    for event in page.fns.values():
        assert event.api_visibility == "private" or event.fn is None or event.name == "leave"


def test_drawing_ends_with_the_comparison(studio):
    updates = list(Trying(studio).draw("a fox", 1, 4, "linear", ME))
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
    *_, last = Trying(studio).draw("", 1, 4, "linear", ME)
    assert 'role="alert"' in last[0]
    assert "There is no prompt" in last[0]
    assert last[1]["interactive"] is True


def test_a_run_that_is_stopped_says_how_far_it_came(studio):
    events, words = Trying(studio), []
    for update in events.draw("a fox", 1, 4, "linear", ME):
        words.append(update[0])
        if "step 2 of 10" in update[0] or "step 3 of 4" in update[0]:
            events.stop(ME)
    assert "Stopped after" in words[-1]
    assert studio.session("me").gallery.entries == []


def test_the_settings_mean_a_speed(studio):
    events = Trying(studio)
    assert "4 of 10 steps run the model: up to 2.5 times" in events.meaning(4, "linear", ME)
    assert events.meaning(4, "linear", ME) != events.meaning(5, "linear", ME)
    assert "tuned" in events.meaning(4, "magcache", ME)
    assert "alert" in events.meaning(4, "fitted", ME)


def test_only_what_is_there_is_exported(studio):
    events = Trying(studio)
    assert "nothing to export" in events.export(ME)[1]
    list(events.draw("a fox", 1, 4, "linear", ME))
    archive, _ = events.export(ME)
    assert Path(archive["value"]).suffix == ".zip"


def test_thresholds_become_the_plan_of_the_person(studio):
    understanding, making = Understanding(studio), Making(studio)
    tau_k, tau_d, anchors = understanding.sliders(ME)
    assert understanding.moved(tau_k["value"], tau_d["value"], ME) == anchors
    assert understanding.moved(0, 0, ME) != anchors
    assert "alert" in understanding.moved(-1, 0, ME)
    rule, _ = making.use(0, 0, ME)
    assert rule == "own"
    assert studio.session("me").own.evaluations == 10
    assert studio.session("you").own is None


def test_without_a_profile_the_view_says_what_to_do(studio):
    session = studio.session("me")
    session.profile = None
    understanding = Understanding(studio)
    assert "under Make" in understanding.charts(ME)[0]
    assert "under Make" in understanding.sliders(ME)[2]
    assert "under Make" in anchors_of(session, 0, 0)
    assert Making(studio).use(0, 0, ME) == [NOTHING, NOTHING]
    assert Making(studio).files(ME)[3]["interactive"] is False


def test_charts_show_plans_and_the_last_run(studio):
    studio.shelf.put(fitted(studio.model, 4))
    list(Trying(studio).draw("a fox", 1, 4, "linear", ME))
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
    assert "&lt;b&gt;.json is no JSON file" in said


def test_learning_puts_a_plan_into_the_store(studio):
    *_, last = Making(studio).learn("\n".join(PROMPTS), "4", "run", ME)
    assert "put into the plan store" in last[0]
    (stored,) = studio.shelf.plans()
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
