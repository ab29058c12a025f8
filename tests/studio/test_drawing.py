import numpy as np
import pytest
import torch
from tests.studio.conftest import STEPS, tiny_model

from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.studio.drawing import ACCELERATED, FULL_STEPS, draw, draw_full, drift_of, loop_ends
from tacache.studio.turns import JobProgress, StoppedError

FOX = Sample("a red fox in the snow", 3)


def test_a_plan_is_followed_step_by_step(model, hearing):
    plan, watch = instant_plan(model.times, 4), hearing()
    made = draw(model, FOX, plan, watch)
    assert made.evaluations == 4
    assert made.pixels.shape == (32, 32, 3)
    assert [(one.part, one.done, one.total) for one in watch.news] == [
        (ACCELERATED, n, 4) for n in range(1, 5)
    ]
    assert sorted(made.states) == [*plan.anchors[1:], STEPS]


def test_pixels_are_those_of_a_plain_call(model, hearing):
    plan = instant_plan(model.times, 4)
    with model.host.follow(plan, model.call) as call:
        expected = model.host.draw(FOX, call)
    assert np.array_equal(draw(model, FOX, plan, hearing()).pixels, expected)


def test_a_plan_with_times_of_its_own_is_followed(model, hearing, monkeypatch):
    monkeypatch.setattr("tacache.studio.drawing.BETWEEN", 0)
    plan, watch = instant_plan(model.times, 4, target="flow"), hearing()
    made = draw(model, FOX, plan, watch)
    assert (made.evaluations, list(made.states)) == (4, [STEPS])
    assert [step for step, _ in drift_of(made, draw(model, FOX, None, hearing()))] == [STEPS]
    assert [end.t for end in loop_ends(model.times, plan)] == list(plan.times[1:])
    assert np.abs(watch.news[3].preview - made.pixels).max() < 1e-4


def test_a_run_stops_at_the_next_step(model, hearing):
    watch = hearing(stop_after=3)
    with pytest.raises(StoppedError):
        draw(model, FOX, None, watch)
    assert len(watch.news) == 3
    assert draw(model, FOX, None, hearing()).evaluations == STEPS  # the pipeline is as before


def test_full_steps_are_made_once_for_a_prompt_and_seed(model, hearing):
    first, second, other = hearing(), hearing(), hearing()
    made = draw_full(model, FOX, first)
    assert {one.part for one in first.news} == {FULL_STEPS}
    assert draw_full(model, FOX, second) is made
    assert second.news == []
    draw_full(model, FOX._replace(seed=4), other)
    assert len(other.news) == STEPS


def test_only_some_full_runs_are_remembered(model, hearing, monkeypatch):
    monkeypatch.setattr("tacache.studio.model.REMEMBERED", 1)
    made = draw_full(model, FOX, hearing())
    model.remember(FOX._replace(seed=4), made)
    assert list(model.full_runs) == [(FOX._replace(seed=4), STEPS)]


def test_drift_is_none_where_nothing_is_skipped(model, hearing):
    full = draw(model, FOX, None, hearing())
    same = draw(model, FOX, Plan.full(model.times), hearing())
    assert drift_of(same, full) == [(n, pytest.approx(0, abs=1e-5)) for n in range(1, STEPS + 1)]
    fast = draw(model, FOX, instant_plan(model.times, 3), hearing())
    drift = dict(drift_of(fast, full))
    assert drift[STEPS] > 0.001
    assert set(drift) == set(fast.states)


def test_states_of_large_runs_are_not_kept(model, hearing, monkeypatch):
    monkeypatch.setattr("tacache.studio.drawing.MAX_KEPT_NUMBERS", 1)
    assert draw(model, FOX, None, hearing()).states == {}


def test_previews_come_and_are_pictures(model, hearing, monkeypatch):
    monkeypatch.setattr("tacache.studio.drawing.BETWEEN", 0)
    watch = hearing()
    made = draw(model, FOX, None, watch)
    shown = [one.preview for one in watch.news if isinstance(one, JobProgress) and one.done > 1]
    assert all(one.shape == (32, 32, 3) for one in shown)
    # where the last step leads is the result
    assert np.abs(shown[-1] - made.pixels).max() < 1e-4


def test_clips_have_previews_too(hearing, monkeypatch):
    monkeypatch.setattr("tacache.studio.drawing.BETWEEN", 0)
    model, watch = tiny_model("wan"), hearing()
    assert model.makes_clips
    made = draw(model, FOX, instant_plan(model.times, 4), watch)
    assert made.pixels.ndim == 4
    last = watch.news[-1].preview
    assert np.abs(last - made.pixels[0]).max() < 0.1  # the first frame, decoded alone


def test_the_pipelines_threads_are_as_before(model, hearing):
    before = torch.get_num_threads()
    with model.turn(hearing()):
        pass
    assert torch.get_num_threads() == before
