"""Stand-ins pass for the real thing, and locked ones let one thread in at a time."""

import threading
import time

from tacache.serving.shared_pipeline import StandIn, locked


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


def test_one_thread_at_a_time_is_in_a_tokenizer_whichever_method_it_calls():
    tokenizer = Tokenizer()
    shared = locked(tokenizer, threading.RLock())
    ways = [shared, shared.tokenize] * 4
    threads = [threading.Thread(target=way, args=("a fox",)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokenizer.most == 1


def test_all_else_is_the_real_ones():
    tokenizer = Tokenizer()
    shared = locked(tokenizer, threading.RLock())
    assert isinstance(shared, Tokenizer)
    assert shared.model_max_length == 7
    assert (shared("x"), shared.tokenize("x")) == ([1, 2], ["a", "b"])
    shared.model_max_length = 9
    assert tokenizer.model_max_length == 9


def test_a_stand_in_has_its_own_methods_and_the_rest_of_the_real_one():
    tokenizer = Tokenizer()
    other = StandIn(tokenizer, {"tokenize": str.upper})
    assert (other.tokenize("a"), other.most, other._orig_mod) == ("A", 0, tokenizer)
