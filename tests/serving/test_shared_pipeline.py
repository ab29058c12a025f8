"""Stand-ins pass for the real thing, and locked ones let one thread in at a time."""

import threading
import time

import torch
from tests.tiny import PIPELINES

from tacache import instant_plan
from tacache.diffusers import apply
from tacache.serving import shared_pipeline
from tacache.serving.shared_pipeline import Followers, StandIn, locked, without_walks


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


def test_pipelines_that_look_for_hooks_are_shown_the_layers_that_have_some():
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    shared = StandIn(network, without_walks(network))
    assert list(shared.modules()) == []
    network[1]._diffusers_hook = object()
    assert list(StandIn(network, without_walks(network)).modules()) == [network[1]]
    assert shared._reset_stateful_cache(recurse=True) is None


def test_a_plan_that_comes_again_is_not_applied_again(monkeypatch):
    applied = []
    monkeypatch.setattr(
        shared_pipeline, "apply", lambda pipe, plan: applied.append(plan) or apply(pipe, plan)
    )
    monkeypatch.setattr(shared_pipeline, "MAX_FOLLOWERS", 2)
    followers = Followers(PIPELINES["flux"].build)
    a, b, c = (instant_plan([1.0, 0.75, 0.5, 0.25, 0.0], k) for k in (2, 3, 4))
    assert followers.of(a) is followers.of(a)
    assert followers.of(b).scheduler.plan == b
    followers.of(a)
    followers.of(c)  # in the place of b, which was not asked for as long
    assert [plan is a for plan in applied] == [True, False, False]
    followers.of(b)
    assert applied == [a, b, c, b]
