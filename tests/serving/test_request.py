"""What a request says of itself while it runs, to threads that look at any time."""

import threading

import pytest
import torch
from diffusers import UniPCMultistepScheduler
from tests.tiny import PIPELINES

from tacache.instant import instant_plan
from tacache.serving.batcher import Batcher
from tacache.serving.probe import signature_of

STEPS, BUDGET = 12, 4


@pytest.fixture(scope="module")
def pipe():
    made = PIPELINES["wan"].build()
    made.set_progress_bar_config(disable=True)
    return made


def call() -> dict:
    few = {"num_inference_steps": STEPS, "output_type": "latent"}
    return {**PIPELINES["wan"].call(), **few, "generator": torch.Generator().manual_seed(0)}


@pytest.mark.parametrize("budget", [BUDGET, STEPS])
def test_what_is_left_is_exact_in_the_middle_of_a_step(pipe, budget, monkeypatch):
    """A step under a plan walks over the full grid: its numbers are not those of evaluations."""
    few = {name: value for name, value in call().items() if name not in ("prompt", "generator")}
    times = signature_of(pipe, few).times  # tries the scheduler's step, before it is looked into
    plan = None if budget == STEPS else instant_plan(times, budget)
    requests, seen, known = [], [], threading.Event()
    plain = UniPCMultistepScheduler.convert_model_output

    def looking(self, *args, **kwargs):
        assert known.wait(60)
        seen.append((requests[0].evaluated, requests[0].remaining))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(UniPCMultistepScheduler, "convert_model_output", looking)
    with Batcher(pipe) as batcher:
        requests.append(batcher.submit(plan=plan, **call()))
        known.set()
        requests[0].result(60)
    assert len(seen) >= STEPS
    assert seen == sorted(seen)
    assert {made + left for made, left in seen} == {budget}
    assert (requests[0].evaluated, requests[0].remaining) == (budget, 0)


def test_a_run_before_the_batcher_is_not_taken_for_that_of_a_request(pipe):
    pipe(**call())
    with Batcher(pipe, max_active=1) as batcher:
        requests = [batcher.submit(**call()) for _ in range(2)]
        assert (requests[1].evaluated, requests[1].remaining) == (0, STEPS)
        assert [len(one.result(60)) for one in requests] == [1, 1]
