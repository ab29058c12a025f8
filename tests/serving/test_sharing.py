import threading
import time
from types import SimpleNamespace

import pytest

from tacache.serving.sharing import with_shared_tokenizers


class Tokenizer:
    """Counts how many threads are in it at a time."""

    model_max_length = 7

    def __init__(self):
        self.inside, self.most = 0, 0

    def _work(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.005)
        self.inside -= 1

    def __call__(self, text):
        """Two tokens."""
        self._work()
        return [1, 2]

    def tokenize(self, text):
        """Two words."""
        self._work()
        return ["a", "b"]


class Pipeline(SimpleNamespace):
    """Has its parts as a pipeline does."""

    @property
    def components(self):
        """The parts by name."""
        return vars(self)


@pytest.fixture
def pipe():
    first = Tokenizer()
    return Pipeline(tokenizer=first, tokenizer_2=None, vae=object(), scheduler=object())


def test_one_thread_at_a_time_is_in_a_tokenizer(pipe):
    """Also where one calls it and another one of its methods."""
    shared = with_shared_tokenizers(pipe)
    ways = [shared.tokenizer, shared.tokenizer.tokenize] * 4
    threads = [threading.Thread(target=way, args=("a fox",)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pipe.tokenizer.most == 1


def test_all_else_is_the_pipelines_own(pipe):
    shared = with_shared_tokenizers(pipe)
    assert shared.vae is pipe.vae
    assert isinstance(shared.tokenizer, Tokenizer)
    assert shared.tokenizer.model_max_length == 7
    assert (shared.tokenizer("x"), shared.tokenizer.tokenize("x")) == ([1, 2], ["a", "b"])
    assert type(pipe.tokenizer) is Tokenizer
