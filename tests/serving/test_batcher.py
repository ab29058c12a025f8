"""Batched requests are what direct calls are, in whatever order they come, stop and fail."""

import random
import time
from itertools import pairwise

import pytest
import torch
from tests.diffusers_support import STEPS, SUPPORTED, call_of, profile_of
from tests.tiny import PIPELINES

from tacache import HostError, Plan, instant_plan
from tacache.diffusers import applied
from tacache.serving import Batcher, Cancelled

pytestmark = pytest.mark.slow

FLUX = PIPELINES["flux"]
MIDWAY = ("flux-img2img", "flux-inpaint", "sd3-img2img", "wan-v2v")  # start at a strength
PATIENCE = 120  # seconds, on a busy machine


@pytest.fixture(scope="module")
def flux():
    return FLUX.build()


@pytest.fixture(scope="module")
def times(flux):
    return profile_of(FLUX, flux).times


def seeded(tiny, seed, **changes):
    return call_of(tiny, generator=torch.Generator().manual_seed(seed), **changes)


def direct(tiny, pipe, plan, seed, **changes):
    """The picture of one call without a batcher."""
    call = seeded(tiny, seed, **changes)
    if plan is None:
        return tiny.output(pipe(**call))
    strength = call["strength"] if tiny.name in MIDWAY else None
    with applied(pipe, plan, strength=strength):
        return tiny.output(pipe(**call | ({"strength": 1.0} if strength else {})))


def assert_same(found, wanted):
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("name", SUPPORTED)
def test_three_budgets_at_once_are_three_direct_calls(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    whole = profile_of(tiny, pipe, **({"strength": 1.0} if name in MIDWAY else {}))
    start = {"strength": 0.6} if name in MIDWAY else {}
    plans = [k and instant_plan(whole.times, k, breaks=whole.breaks) for k in (4, 6, None)]
    wanted = [direct(tiny, pipe, plan, seed, **start) for seed, plan in enumerate(plans)]
    with Batcher(pipe, max_wait_s=0.2) as batcher:
        requests = [
            batcher.submit(plan=plan, **seeded(tiny, seed, **start))
            for seed, plan in enumerate(plans)
        ]
        for request, picture in zip(requests, wanted, strict=True):
            assert_same(tiny.output(request.result(PATIENCE)), picture)
    assert all(request.remaining == 0 for request in requests)


def test_a_strength_by_default_is_that_of_the_call():
    tiny = PIPELINES["flux-img2img"]
    pipe = tiny.build()
    plan = instant_plan(profile_of(tiny, pipe, strength=1.0).times, 6)
    call = {name: value for name, value in seeded(tiny, 0).items() if name != "strength"}
    with Batcher(pipe) as batcher:
        found = tiny.output(batcher.submit(plan=plan, **call).result(PATIENCE))
    assert_same(found, direct(tiny, pipe, plan, 0, strength=0.6))


def test_evaluations_are_shared(flux, times):
    with Batcher(flux, max_wait_s=1.0) as batcher:
        requests = [
            batcher.submit(plan=instant_plan(times, 5), **seeded(FLUX, seed)) for seed in range(4)
        ]
        for request in requests:
            request.result(PATIENCE)
        batches, rows = batcher.batches
    assert rows == 4 * 5
    assert batches < rows


@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_budgets_sizes_and_cancels(flux, times, seed):
    chance = random.Random(seed)
    jobs = []
    for number in range(8):
        side = chance.choice((FLUX.call()["height"], 2 * FLUX.call()["height"]))
        budget = chance.choice((3, 5, 8, None))
        plan = budget and instant_plan(times, budget)
        jobs.append((plan, number, {"height": side, "prompt": f"picture {number}"}))
    stopped = set(chance.sample(range(8), 2))
    wanted = [direct(FLUX, flux, plan, i, **more) for plan, i, more in jobs]
    with Batcher(flux, max_rows=3, max_active=5, max_wait_s=0.02) as batcher:
        requests = []
        for plan, number, more in jobs:
            requests.append(batcher.submit(plan=plan, **seeded(FLUX, number, **more)))
            time.sleep(chance.random() * 0.05)
            if number in stopped:
                batcher.cancel(requests[number])
        for number, request in enumerate(requests):
            if number in stopped:
                try:
                    picture = request.result(PATIENCE)
                except Cancelled:
                    continue
            else:
                picture = request.result(PATIENCE)
            assert_same(FLUX.output(picture), wanted[number])


def test_what_is_left_falls_to_nothing_and_no_estimate_precedes_a_batch(flux, times):
    with Batcher(flux) as batcher:
        assert batcher.finish_estimates() is None
        request = batcher.submit(plan=instant_plan(times, 6), **seeded(FLUX, 0))
        seen = []
        while not request.is_done:
            seen.append(request.remaining)
            time.sleep(0.001)
        assert seen[0] == 6
        assert all(a >= b for a, b in pairwise(seen))
        assert (request.remaining, batcher.evaluations_queued) == (0, 0)
        assert batcher.finish_estimates() == {}


def test_more_requests_than_may_run_wait_in_their_order(flux, times):
    plan, ended = instant_plan(times, 2), []
    with Batcher(flux, max_active=1) as batcher:
        requests = [batcher.submit(plan=plan, **seeded(FLUX, seed)) for seed in range(3)]
        for number, request in enumerate(requests):
            request.when_done(lambda _, number=number: ended.append(number))
        estimates = batcher.finish_estimates()
        assert estimates is None or len(estimates) <= 3
        requests[-1].result(PATIENCE)
    assert ended == [0, 1, 2]


def test_an_error_is_that_of_its_own_request(flux, times):
    plan = instant_plan(times, 4)
    with Batcher(flux) as batcher:
        bad = batcher.submit(plan=plan, **seeded(FLUX, 0, height=13, prompt=7))
        good = batcher.submit(plan=plan, **seeded(FLUX, 1))
        with pytest.raises(ValueError, match="`prompt` has to be"):
            bad.result(PATIENCE)
        assert_same(FLUX.output(good.result(PATIENCE)), direct(FLUX, flux, plan, 1))


def test_one_that_has_not_begun_is_cancelled_without_being_run(flux, times):
    with Batcher(flux, max_active=1) as batcher:
        first = batcher.submit(**seeded(FLUX, 0))
        second = batcher.submit(**seeded(FLUX, 1))
        assert batcher.cancel(second)
        with pytest.raises(Cancelled):
            second.result(PATIENCE)
        assert second.calls == 0
        first.result(PATIENCE)
        assert not batcher.cancel(first)


def test_closing_without_finishing_stops_what_runs(flux):
    batcher = Batcher(flux)
    request = batcher.submit(**seeded(FLUX, 0, num_inference_steps=500))
    batcher.close(finish=False)
    with pytest.raises(Cancelled):
        request.result(PATIENCE)
    with pytest.raises(HostError, match="was closed"):
        batcher.submit(**seeded(FLUX, 1))


def test_the_pipeline_itself_stays_as_it_was(flux, times):
    before = dict(vars(flux))
    with Batcher(flux) as batcher:
        batcher.submit(plan=instant_plan(times, 3), **seeded(FLUX, 0)).result(PATIENCE)
    assert {name: vars(flux)[name] for name in before} == before


def test_a_plan_for_another_network_is_refused_before_it_waits(flux, times):
    foreign = Plan.model_validate(
        {**instant_plan(times, 3).model_dump(), "origin": {"denoiser": "OtherModel"}}
    )
    with Batcher(flux) as batcher, pytest.raises(HostError, match="OtherModel"):
        batcher.submit(plan=foreign, **seeded(FLUX, 0))


def test_offloaded_parts_and_caches_are_refused():
    pipe = FLUX.build()
    pipe.transformer._hf_hook = object()
    with pytest.raises(HostError, match="offloading"):
        Batcher(pipe)
    del pipe.transformer._hf_hook
    from diffusers import FirstBlockCacheConfig

    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(HostError, match="disable_cache"):
        Batcher(pipe)


def test_a_saved_number_of_steps_is_counted_before_the_run_begins(flux):
    with Batcher(flux, max_active=1) as batcher:
        batcher.submit(**seeded(FLUX, 0))
        waiting = batcher.submit(**seeded(FLUX, 1))
        assert waiting.remaining <= STEPS


def test_adapters_of_one_request_are_not_those_of_the_next(times):
    from peft import LoraConfig

    pipe = FLUX.build()
    adapter = LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    pipe.transformer.add_adapter(adapter, "style")
    pipe.transformer.disable_adapters()
    plain = direct(FLUX, pipe, None, 0)
    with Batcher(pipe) as batcher:
        found = [
            FLUX.output(batcher.submit(adapters=wanted, **seeded(FLUX, 0)).result(PATIENCE))
            for wanted in (None, [("style", 1.0)], None, (), [("style", 1.0)])
        ]
        with pytest.raises(HostError, match="no adapter 'other'"):
            batcher.submit(adapters=[("other", 1.0)], **seeded(FLUX, 0))
    for number in (0, 2, 3):
        assert_same(found[number], plain)
    assert_same(found[1], found[4])
    assert (found[1] - plain).abs().max() > 1e-3 * plain.abs().max()


def test_an_error_of_the_bookkeeping_ends_its_request(flux, times, monkeypatch):
    def fails(request):
        raise RuntimeError("a mistake of ours")

    with Batcher(flux) as batcher:
        monkeypatch.setattr(batcher, "_note", fails)
        request = batcher.submit(plan=instant_plan(times, 3), **seeded(FLUX, 0))
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            request.result(PATIENCE)
        assert batcher.evaluations_queued == 0


def test_what_is_known_of_calls_does_not_grow_with_requests(flux, times):
    plan = instant_plan(times, 3)
    with Batcher(flux) as batcher:
        sizes = []
        for seed in range(3):
            batcher.submit(plan=plan, **seeded(FLUX, seed)).result(PATIENCE)
            known = batcher._engine._known
            sizes.append((len(known._signatures), len(known._numbers)))
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("use_graphs", [True, False])
def test_on_a_gpu_pictures_are_those_of_direct_calls(use_graphs):
    """Without TF32, which differs between sizes of a batch; twice, so that graphs are replayed."""
    pipe = FLUX.build().to("cuda")
    times = profile_of(FLUX, pipe).times
    plans = [k and instant_plan(times, k) for k in (4, 6, None)] * 3
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        wanted = [direct(FLUX, pipe, plan, seed) for seed, plan in enumerate(plans)]
        with Batcher(pipe, max_rows=4, max_wait_s=0.05, use_graphs=use_graphs) as batcher:
            for _ in range(3):
                requests = [
                    batcher.submit(plan=plan, **seeded(FLUX, seed))
                    for seed, plan in enumerate(plans)
                ]
                for request, picture in zip(requests, wanted, strict=True):
                    assert_same(FLUX.output(request.result(PATIENCE)), picture)
            assert not use_graphs or len(batcher._engine._graphs) > 0


def test_a_batcher_may_do_without_graphs(flux):
    with Batcher(flux, use_graphs=False) as batcher:
        assert batcher._engine._graphs is None
    with Batcher(flux) as batcher:
        assert len(batcher._engine._graphs) == 0
