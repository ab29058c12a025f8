"""Joint models behind a server: requests follow plans of all latents, stored ones among them."""

import pytest
import torch
from tests.tiny import PIPELINES
from tests.tiny.joint import paired

from tacache.diffusers import applied, fit_plan
from tacache.serving.batcher import Batcher
from tacache.serving.budgets import Budgets
from tacache.serving.probe import signature_of
from tacache.storage.store import PlanStore

CALL = {"num_inference_steps": 12}
EVALUATIONS = 6


def noise(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def fitted():
    pipe = paired(bend=0.4)
    return fit_plan(pipe, ["a", "b"], evaluations=EVALUATIONS, search=False, **CALL)


def test_requests_follow_the_stored_plan_of_all_latents(fitted, tmp_path):
    """Each has schedulers of its own, for every latent."""
    pipe, store = paired(bend=0.4), PlanStore(tmp_path, shipped=())
    run = signature_of(pipe, CALL)
    assert run.latents.keys() == {"audio"}
    assert run.latents["audio"] != run.times
    instant = Budgets(store).offer(run, EVALUATIONS).plan
    assert (instant.rule, instant.latents.keys()) == ("linear", {"audio"})
    store.put(fitted)
    budgets = Budgets(store)
    assert [one.plan for one in budgets.stored(run)] == [fitted]
    plan = budgets.offer(run, EVALUATIONS).plan
    assert plan == fitted
    with applied(pipe, plan):
        expected = [pipe(**CALL, generator=noise(i)) for i in range(2)]
    batcher = Batcher(pipe, use_graphs=False)
    try:
        requests = [batcher.submit(plan=plan, generator=noise(i), **CALL) for i in range(2)]
        for request, alone in zip(requests, expected, strict=True):
            found = request.result(60)
            assert request.evaluated == EVALUATIONS
            torch.testing.assert_close(found.frames, alone.frames)
            torch.testing.assert_close(found.audio, alone.audio)
    finally:
        batcher.close()


@pytest.mark.slow
def test_a_copy_of_the_schedulers_grid_is_known_before_the_run():
    call = {name: value for name, value in PIPELINES["ltx2"].call().items() if name != "prompt"}
    run = signature_of(PIPELINES["ltx2"].build(), call)
    assert run.latents == {"audio": run.times}
