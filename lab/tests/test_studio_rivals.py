"""Methods of the lab on the page: the same noise, counted evaluations, tuned once."""

import subprocess
import sys

import pytest
from tests.studio.conftest import Hearing, tiny_model

from tacache.errors import HostError, PlanError
from tacache.prompts import Sample
from tacache.studio.turns import JobProgress, StoppedError
from tacache_lab.studio_rivals import MAX_TRIES, RIVALS, TUNING, Rivals

pytestmark = pytest.mark.slow

FOX = Sample("a red fox in the snow", 3)


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def hearing():
    return Hearing


def test_a_rival_is_tuned_once_and_draws(model, hearing):
    rivals, first, again = Rivals(model), hearing(), hearing()
    made = rivals.draw("magcache", 5, FOX, first)
    assert made.pixels.shape == (32, 32, 3)
    assert 1 <= made.evaluations <= 5
    parts = {one.part for one in first.news if isinstance(one, JobProgress)}
    assert TUNING in parts
    rivals.draw("magcache", 5, FOX, again)
    assert TUNING not in {one.part for one in again.news}


def test_fewer_steps_are_what_the_pipeline_does_with_fewer(model, hearing):
    made = Rivals(model).draw("fewer", 5, FOX, hearing())
    expected = model.host.draw(FOX, {**model.call, "num_inference_steps": 5})
    assert made.evaluations == 5
    assert abs(made.pixels - expected).max() < 1e-4


def test_few_settings_are_tried_and_a_budget_out_of_reach_is_refused(model, hearing):
    rivals, first = Rivals(model), hearing()
    with pytest.raises(PlanError, match="are impossible"):
        rivals.draw("magcache", model.steps + 1, FOX, first)
    assert rivals._calibration.most == MAX_TRIES


def test_a_rival_can_be_stopped(model, hearing):
    watch = hearing(stop_after=4)
    with pytest.raises((StoppedError, HostError)):
        Rivals(model).draw("magcache", 5, FOX, watch)
    assert len(watch.news) == 4


def test_the_names_are_those_of_the_lab():
    from tacache_lab.methods import BASELINES

    assert set(RIVALS) <= set(BASELINES)


def test_an_unknown_method_is_refused(model, hearing):
    with pytest.raises(HostError, match="no method"):
        Rivals(model).draw("../x", 5, FOX, hearing())


def test_the_lab_is_loaded_by_no_page_on_which_no_rival_is_chosen():
    code = "import sys, tacache.studio.page; print([m for m in sys.modules if 'tacache_lab' in m])"
    pytest.importorskip("gradio")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
