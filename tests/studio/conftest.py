"""A studio on a tiny pipeline, without a page."""

import threading

import pytest
from tests.tiny import PIPELINES

from tacache.diffusers.pipeline import PipelineHost, calibrate
from tacache.storage.store import PlanStore
from tacache.studio.model import StudioModel
from tacache.studio.sessions import Studio
from tacache.studio.shelf import Shelf
from tacache.studio.turns import Watch

STEPS = 10
PROMPTS = ["a red fox in the snow", "two blue birds", "an old stone bridge", "a bowl of soup"]


def tiny_model(name="flux"):
    tiny = PIPELINES[name]
    call = {**tiny.call(), "num_inference_steps": STEPS}
    call.pop("prompt")
    pipe = tiny.build()
    pipe.set_progress_bar_config(disable=True)
    return StudioModel(name, PipelineHost(pipe), call)


@pytest.fixture(scope="session")
def tiny_profile():
    model = tiny_model()
    return calibrate(model.host.pipe, PROMPTS[:2], **model.call)


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def store(tmp_path):
    return PlanStore(tmp_path / "plans", shipped=())


@pytest.fixture
def shelf(model, store):
    return Shelf(model, store)


@pytest.fixture
def studio(model, store, tmp_path, tiny_profile):
    made = Studio(model, store, tmp_path)
    made.profile = tiny_profile
    return made


class Hearing(Watch):
    """A watch that keeps all news, and stops a job after so many of them."""

    def __init__(self, stop_after=None):
        self.news, self._after = [], stop_after
        super().__init__(self._hear, threading.Event())

    def _hear(self, news):
        self.news.append(news)
        if self._after is not None and len(self.news) >= self._after:
            self.stop.set()


@pytest.fixture
def hearing():
    return Hearing
