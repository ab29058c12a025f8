"""Caches inside a transformer of FLUX or Wan: counted, true at zero, gone when taken out."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import pytest
import torch
from tests.tiny import PIPELINES
from tests.tiny.configurations import flux_parts, wan_transformer
from tests.tiny.weights import seeded
from torch import Tensor

from tacache import HostError, PlanError, time_grid
from tacache_lab.methods.inside import CACHES, Cache, metered, placed
from tacache_lab.methods.inside.cachedit import (
    DBCache,
    DBCacheSettings,
    StepMasks,
    StepMaskSettings,
)
from tacache_lab.methods.inside.cfglate import LateGuidanceSettings
from tacache_lab.methods.inside.dicache import DiCacheSettings
from tacache_lab.methods.inside.families import attention_of, blocks_of
from tacache_lab.methods.inside.inside_cache import tightest
from tacache_lab.methods.inside.library import (
    FirstBlockSettings,
    MagCacheInsideSettings,
    TaylorSeerInsideSettings,
    mag_schedule,
    nearest,
    spread,
    taylor_schedule,
)
from tacache_lab.methods.inside.seacache import SeaCacheSettings, unpacked
from tacache_lab.methods.magcache import FLUX_RATIOS, WAN_RATIOS
from tacache_lab.methods.tuning import MAX_THRESHOLD

STEPS = 8
TINY = {"FluxPipeline": PIPELINES["flux"], "WanPipeline": PIPELINES["wan-euler"]}
# what makes two calls a step of one, and one of two
GUIDED = {"true_cfg_scale": 2.0, "negative_prompt": "grey"}
UNGUIDED = {"guidance_scale": 1.0}
MISSING = importlib.util.find_spec("cache_dit") is None
NEEDS_CACHE_DIT = pytest.mark.skipif(
    MISSING, reason="cache-dit is not installed: pip install 'tacache[peers]'"
)
NAMES = [
    pytest.param(name, marks=NEEDS_CACHE_DIT) if name.startswith("cache-dit") else name
    for name in CACHES
    if name != "cfg-late"  # which needs guidance
]
DBCACHES = ("cache-dit", "cache-dit-taylorseer", "cache-dit-dmd", "cache-dit-foca")
EXACT: dict[str, Any] = {
    "dicache": DiCacheSettings(threshold=0, retention=0),
    "diffusers-fbcache": FirstBlockSettings(threshold=0),
    "diffusers-magcache": MagCacheInsideSettings(
        threshold=0, max_skip=3, retention=0, ratios=(1.0,) * STEPS
    ),
    "diffusers-taylorseer": TaylorSeerInsideSettings(interval=1, warm_up=1),
    "diffusers-taylorseer-lite": TaylorSeerInsideSettings(interval=1, warm_up=1),
    "diffusers-seacache": SeaCacheSettings(threshold=0),
    **dict.fromkeys(DBCACHES, DBCacheSettings(threshold=0, first_blocks=1, warm_up=1)),
    "cache-dit-masks": StepMaskSettings(evaluated=tuple(range(STEPS))),
}
# what leaves the first step, and those it must have, and skips the rest
SKIPPING: dict[str, Any] = {
    "dicache": DiCacheSettings(threshold=1e6, retention=0.25),
    "diffusers-fbcache": FirstBlockSettings(threshold=1e6),
    "diffusers-magcache": MagCacheInsideSettings(
        threshold=1e6, max_skip=2, retention=0.25, ratios=(1.0,) * STEPS
    ),
    "diffusers-taylorseer": TaylorSeerInsideSettings(interval=3, warm_up=2),
    "diffusers-taylorseer-lite": TaylorSeerInsideSettings(interval=3, warm_up=2),
    "diffusers-seacache": SeaCacheSettings(threshold=1e6, order=1),
    **dict.fromkeys(DBCACHES, DBCacheSettings(threshold=1e6, first_blocks=1, warm_up=3)),
    "cache-dit-masks": StepMaskSettings(evaluated=(0, 1, 4), forecast="foca"),
}
SPENT = {
    "dicache": 2,
    "diffusers-fbcache": 1,
    "diffusers-magcache": 4,  # 0, 1, 4, 7
    "diffusers-taylorseer": 4,  # 0, 1, 3, 6
    "diffusers-taylorseer-lite": 4,
    "diffusers-seacache": 2,  # the first and the last
    **dict.fromkeys(DBCACHES, 3),
    "cache-dit-masks": 3,
}


@seeded
def build_flux() -> Any:
    """The tiny pipeline with two double and three single blocks."""
    made = PIPELINES["flux"].build()
    made.register_modules(
        transformer=flux_parts()["transformer"](num_layers=2, num_single_layers=3)
    )
    return made


@seeded
def build_wan() -> Any:
    """The tiny pipeline with five blocks."""
    made = PIPELINES["wan-euler"].build()
    made.register_modules(transformer=wan_transformer(num_layers=5))
    return made


@pytest.fixture(scope="module", params=[build_flux, build_wan], ids=["flux", "wan"])
def pipe(request) -> Any:
    return request.param()


def latents(pipe: Any, guided: bool = True, **changes: Any) -> Tensor:
    """A run to latents, with one or two calls a step."""
    tiny = TINY[type(pipe).__name__]
    if tiny.calls_per_step == 1:
        branches = GUIDED if guided else {}
    else:
        branches = {} if guided else UNGUIDED
    options = {"num_inference_steps": STEPS, "output_type": "latent", **tiny.call()}
    generator = torch.Generator().manual_seed(0)
    return tiny.output(pipe(generator=generator, **options | branches | changes))


@pytest.fixture(scope="module")
def full(pipe) -> dict[bool, Tensor]:
    """The full runs, without and with two calls a step."""
    return {guided: latents(pipe, guided) for guided in (False, True)}


def cached(pipe: Any, name: str, settings: Any, guided: bool = True) -> tuple[Tensor, list[int]]:
    """A run with the cache in, and the steps that its meter saw evaluated."""
    evaluated: list[int] = []
    with placed(pipe, Cache(CACHES[name], settings), STEPS, 1 + guided) as meter:

        def ask(_: Any, n: int, *__: Any) -> dict[str, Any]:
            evaluated.extend([n] if meter.took() else [])
            return {}

        made = latents(pipe, guided, callback_on_step_end=ask)
    assert meter.steps == STEPS
    assert len(meter.branches) == 1 + guided
    cached.equivalent_evaluations = meter.equivalent_evaluations  # type: ignore[attr-defined]
    return made, evaluated


# --- every one of them ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_at_zero_it_is_the_full_run(pipe, full, name, guided):
    made, evaluated = cached(pipe, name, EXACT[name], guided)
    torch.testing.assert_close(made, full[guided], rtol=1e-5, atol=1e-5)
    assert evaluated == list(range(STEPS))
    assert cached.equivalent_evaluations == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_skipped_steps_are_not_counted_and_cost_what_they_run(pipe, full, name):
    made, evaluated = cached(pipe, name, SKIPPING[name])
    assert evaluated[0] == 0
    assert len(evaluated) == SPENT[name]
    assert made.isfinite().all()
    assert not torch.equal(made, full[True])
    assert SPENT[name] <= cached.equivalent_evaluations < STEPS
    # these run no block at a skip
    whole = ("diffusers-magcache", "diffusers-taylorseer-lite", "diffusers-seacache")
    assert (cached.equivalent_evaluations == SPENT[name]) == (name in whole)
    assert torch.equal(cached(pipe, name, SKIPPING[name])[0], made)  # in a new state


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_taken_out_the_pipeline_is_as_before(pipe, full, name):
    def everything() -> list[dict[str, Any]]:
        parts = list(pipe.transformer.modules())
        return [*(dict(vars(part)) for part in parts), *(dict(part._modules) for part in parts)]

    def stop(*_: Any) -> dict[str, Any]:
        raise RuntimeError("stop")

    before, hooks = everything(), len(pipe.transformer._forward_hooks)
    cache = Cache(CACHES[name], SKIPPING[name])
    with pytest.raises(RuntimeError, match="stop"), placed(pipe, cache, STEPS, 2):
        latents(pipe, callback_on_step_end=stop)
    after = everything()
    assert all(list(a) == list(b) for a, b in zip(before, after, strict=True))
    assert all(a[k] is b[k] for a, b in zip(before, after, strict=True) for k in a)
    assert len(pipe.transformer._forward_hooks) == hooks
    layers = [x for block in blocks_of(pipe.transformer) for x in block.modules()]
    assert not any(layer._forward_hooks for layer in layers)
    assert not pipe.transformer.is_cache_enabled
    assert torch.equal(latents(pipe), full[True])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_guidance_branches_are_kept_apart(pipe, name):
    """With the same text in both branches, guidance changes nothing, whatever is skipped."""
    prompt = TINY[type(pipe).__name__].call()["prompt"]
    with placed(pipe, Cache(CACHES[name], SKIPPING[name]), STEPS, 2):
        guided = latents(pipe, negative_prompt=prompt)
    with placed(pipe, Cache(CACHES[name], SKIPPING[name]), STEPS, 1):
        alone = latents(pipe, guided=False)
    torch.testing.assert_close(guided, alone, rtol=1e-4, atol=1e-4)


# --- counting ---------------------------------------------------------------------------------


def test_the_meter_counts_calls_of_the_late_block_and_no_other_branch(pipe):
    with metered(pipe.transformer) as meter:
        latents(pipe, num_inference_steps=2)
        assert list(meter.branches) == ["cond", "uncond"]
        assert meter.took()
        assert not meter.took()
        late = attention_of(pipe.transformer, blocks_of(pipe.transformer)[-1]).to_q
        with pipe.transformer.cache_context("uncond"):
            late(torch.zeros(1, 3, late.in_features))
        assert not meter.took()
        with pipe.transformer.cache_context("cond"):
            late(torch.zeros(1, 3, late.in_features))
        assert meter.took()
    assert "cache_context" not in vars(pipe.transformer)


def test_a_meter_that_saw_nothing_is_worth_nothing(pipe):
    with metered(pipe.transformer) as meter:
        assert meter.equivalent_evaluations == 0


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sd3", "no cache can be put into SD3Transformer2DModel"),
        ("sdxl", "has no transformer"),
        ("flux-kontext", "cache_context"),
        ("wan-2.2", "two transformers"),
        ("wan-vace", "FluxPipeline and WanPipeline"),
    ],
)
def test_other_models_are_refused(name, reason):
    cache = Cache(CACHES["dicache"], SKIPPING["dicache"])
    with pytest.raises(HostError, match=reason), placed(PIPELINES[name].build(), cache, STEPS, 1):
        pass


def test_a_second_cache_is_refused(pipe):
    from diffusers import FirstBlockCacheConfig

    cache = Cache(CACHES["dicache"], SKIPPING["dicache"])
    with (
        placed(pipe, cache, STEPS, 1),
        pytest.raises(HostError, match="already"),
        placed(pipe, cache, STEPS, 1),
    ):
        pass
    pipe.transformer.enable_cache(FirstBlockCacheConfig())
    try:
        with pytest.raises(HostError, match="already"), placed(pipe, cache, STEPS, 1):
            pass
    finally:
        pipe.transformer.disable_cache()


def test_without_cache_dit_its_extra_is_named(pipe, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cache = Cache(CACHES["cache-dit"], SKIPPING["cache-dit"])
    with pytest.raises(HostError, match=r"tacache\[peers\]"), placed(pipe, cache, STEPS, 1):
        pass


def test_cache_dit_is_refused_beside_other_processes(pipe, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(HostError, match="one process"):
        CACHES["cache-dit"].available()


@NEEDS_CACHE_DIT
def test_cache_dit_needs_blocks_to_skip(pipe):
    cache = Cache(CACHES["cache-dit"], DBCacheSettings())
    with pytest.raises(PlanError, match="the model has 5"), placed(pipe, cache, STEPS, 1):
        pass


# --- tuning -----------------------------------------------------------------------------------


class _Trials:
    """Runs that are counted by a formula: evaluations fall as the threshold rises."""

    steps, family, most = 20, "flux", None
    grid = staticmethod(time_grid)

    def __init__(self, fewest: float = 1.0) -> None:
        self.fewest, self.asked = fewest, 0
        self.runs = Counter[Any]()  # samples that settings were tried on

    def evaluations(self, settings: Any) -> float:
        self.asked += 1
        threshold = getattr(settings, "threshold", 0)
        return round(max(self.fewest, self.steps / (1 + 10 * threshold)))

    def error(self, settings: Any, samples: int) -> float:
        self.runs[settings] = max(samples, self.runs[settings])
        return abs(hash(settings)) % 97 + samples

    def seen(self, settings: Any, look: Any) -> list[Any]:
        return [[1.0, *(1.05 for _ in range(19))], [1.0, *(1.03 for _ in range(19))]]


@pytest.mark.parametrize("evaluations", [20, 13, 5])
def test_a_threshold_is_found_that_meets_the_budget(evaluations):
    trials = _Trials()
    found = tightest(trials, FirstBlockSettings(threshold=MAX_THRESHOLD), evaluations)
    assert trials.evaluations(found) == evaluations
    assert (found.threshold == 0) == (evaluations == 20)
    assert trials.asked < 15


@pytest.mark.parametrize("name", ["dicache", "diffusers-fbcache", "cache-dit"])
def test_a_budget_below_what_it_must_have_is_unreachable_with_the_nearest(name):
    with pytest.raises(PlanError, match="nearest it comes is 6"):
        CACHES[name].fit(_Trials(fewest=6), 4)


def test_dicache_keeps_as_much_of_its_retention_as_the_budget_has_room_for():
    variants = CACHES["dicache"].variants
    assert {one.retention for one in variants(50, 25)} == {0.2, 0.0}
    assert {one.retention for one in variants(50, 7)} == {0.1, 0.0}
    assert {one.retention for one in variants(50, 4)} == {0.0}
    assert {one.cap for one in variants(50, 4)} == {1.5, 2.0}


@pytest.mark.parametrize("name", ["diffusers-magcache", "diffusers-taylorseer-lite"])
@pytest.mark.parametrize("evaluations", [20, 7, 3])
def test_schedules_known_before_a_run_spend_the_budget(name, evaluations):
    schedule = mag_schedule if "mag" in name else taylor_schedule
    found = CACHES[name].candidates(_Trials(), evaluations)
    assert 1 <= len(found) <= 96
    spent = {len(schedule(settings, 20)) for settings in found}
    assert max(spent) == evaluations
    assert max(1, evaluations - 2) <= min(spent)
    assert len(spent) > 1 or evaluations == 20
    trials = _Trials()
    best = CACHES[name].fit(trials, evaluations)
    assert trials.error(best, 1) == min(trials.error(one, 1) for one in found)


def test_only_the_best_candidates_are_tried_on_more_samples():
    trials = _Trials()
    found = CACHES["diffusers-taylorseer-lite"].candidates(trials, 7)
    CACHES["diffusers-taylorseer-lite"].fit(trials, 7)
    tried = sorted(trials.runs.values(), reverse=True)
    assert tried == [8] * 4 + [2] * 8 + [1] * (len(found) - 12)
    assert {trials.error(one, 0) for one, n in trials.runs.items() if n == 8} == set(
        sorted(trials.error(one, 0) for one in found)[:4]
    )


def test_taylorseer_cannot_run_on_one_evaluation():
    with pytest.raises(PlanError, match="one of every interval"):
        CACHES["diffusers-taylorseer"].fit(_Trials(), 1)


def test_magcache_takes_the_mean_ratios_of_the_model():
    (ratio,) = {round(r, 6) for r in CACHES["diffusers-magcache"].measured(_Trials())[1:]}
    assert ratio == 1.04


@pytest.mark.parametrize(("family", "ratios"), [("flux", FLUX_RATIOS), ("wan", WAN_RATIOS)])
def test_magcache_also_tries_the_ratios_published_for_the_family(family, ratios):
    trials = _Trials()
    trials.family = family
    tried = {one.ratios for one in CACHES["diffusers-magcache"].candidates(trials, 7)}
    assert tried == {CACHES["diffusers-magcache"].measured(trials), nearest(ratios, 20)}


def test_published_ratios_are_taken_to_other_numbers_of_steps():
    assert nearest((1.0, 2.0, 3.0), 5) == (1.0, 1.0, 2.0, 3.0, 3.0)  # halves to the even one
    assert nearest((1.0, 2.0, 3.0), 1) == (1.0,)


def test_of_many_candidates_both_ends_are_kept():
    kept = spread(range(100), 48)
    assert (len(kept), kept[0], kept[-1]) == (48, 0, 99)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diffusers-magcache", "diffusers-taylorseer-lite"])
@pytest.mark.parametrize("evaluations", [3, 6])
def test_schedules_are_those_the_library_runs(pipe, name, evaluations):
    class Short(_Trials):
        steps = STEPS

        def seen(self, settings: Any, look: Any) -> list[Any]:
            return [[1.0, 1.2, 1.1, 1.05, 0.99, 0.97, 0.9, 0.8]]

    schedule = mag_schedule if "mag" in name else taylor_schedule
    for settings in CACHES[name].candidates(Short(), evaluations)[:2]:
        assert cached(pipe, name, settings)[1] == list(schedule(settings, STEPS))


def test_magcache_measures_ratios_with_diffusers_own_measurement(pipe):
    from tacache_lab.methods.inside.library import _calibrated

    asking = MagCacheInsideSettings(threshold=0, max_skip=1, retention=0)
    seen: list[list[float]] = []

    def look(*_: Any) -> dict[str, Any]:
        seen.append(list(_calibrated(pipe.transformer)))
        return {}

    with placed(pipe, Cache(CACHES["diffusers-magcache"], asking), STEPS, 2):
        latents(pipe, callback_on_step_end=look)
    ratios = seen[-1]
    assert len(ratios) == STEPS
    assert ratios[0] == 1.0
    assert all(0.2 < ratio < 5 for ratio in ratios)


def test_names_say_how_cache_dit_forecasts():
    names = [DBCache(forecast).name for forecast in (None, "taylorseer", "dmd", "foca")]
    assert tuple(names) == DBCACHES


@pytest.mark.slow
@NEEDS_CACHE_DIT
def test_a_step_mask_alone_says_what_is_evaluated(pipe):
    for forecast in (None, "dmd"):
        settings = StepMaskSettings(evaluated=(0, 2, 3, 7), forecast=forecast)
        assert cached(pipe, "cache-dit-masks", settings)[1] == [0, 2, 3, 7]


@pytest.mark.slow
@NEEDS_CACHE_DIT
def test_a_published_mask_is_cache_dits_own(pipe):
    import cache_dit

    mask = cache_dit.steps_mask(total_steps=STEPS, mask_policy="fast")
    evaluated = cached(pipe, "cache-dit-masks", StepMasks.published["flux-fast"])[1]
    assert evaluated == [n for n, computed in enumerate(mask) if computed]


@pytest.mark.parametrize("evaluations", [13, 7, 3])
def test_step_masks_spend_the_budget_with_and_without_a_forecast(evaluations):
    masks = CACHES["cache-dit-masks"].candidates(_Trials(), evaluations)
    assert max(len(settings.evaluated) for settings in masks) == evaluations
    assert all(settings.evaluated[0] == 0 for settings in masks)
    assert {settings.forecast for settings in masks} == {None, "taylorseer"}


def test_seacache_sees_the_latents_that_flux_packs():
    from diffusers import FluxPipeline

    latents = torch.randn(1, 3, 6, 4)
    tokens = FluxPipeline._pack_latents(latents, 1, 3, 6, 4)
    assert torch.equal(unpacked(tokens[0], 3, 2)[:, 0], latents[0])


@pytest.mark.slow
def test_seacache_skips_no_more_in_a_row_than_it_may(pipe):
    settings = SeaCacheSettings(threshold=1e6, max_skip=2)
    assert cached(pipe, "diffusers-seacache", settings)[1] == [0, 3, 6, 7]


def test_an_old_diffusers_is_told_to_be_renewed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HostError, match=r"0\.42"):
        CACHES["diffusers-seacache"].available()


# --- guidance gated off late ------------------------------------------------------------------


def test_late_guidance_is_the_full_run_where_all_steps_have_it(pipe, full):
    made, evaluated = cached(pipe, "cfg-late", LateGuidanceSettings(guided=1))
    assert torch.equal(made, full[True])
    assert evaluated == list(range(STEPS))
    assert cached.equivalent_evaluations == STEPS


def test_a_step_without_guidance_is_half_an_evaluation(pipe, full):
    """The first two steps are those of the full run, the others those of one without guidance."""
    states: list[Tensor] = []

    def keep(_: Any, n: int, __: Any, seen: dict[str, Tensor]) -> dict[str, Any]:
        states.append(seen["latents"])
        return {}

    cache = Cache(CACHES["cfg-late"], LateGuidanceSettings(guided=2 / STEPS))
    with placed(pipe, cache, STEPS, 2):
        latents(pipe, callback_on_step_end=keep)
    gated = list(states)
    states.clear()
    latents(pipe, callback_on_step_end=keep)
    assert torch.equal(gated[1], states[1])
    assert not torch.equal(gated[2], states[2])
    _, evaluated = cached(pipe, "cfg-late", LateGuidanceSettings(guided=2 / STEPS))
    assert evaluated == list(range(STEPS))
    assert cached.equivalent_evaluations == pytest.approx(2 + (STEPS - 2) / 2)
    assert torch.equal(latents(pipe), full[True])  # taken out


def test_without_guidance_there_is_nothing_to_leave_out(pipe):
    cache = Cache(CACHES["cfg-late"], LateGuidanceSettings())
    with pytest.raises(PlanError, match="this call has none"), placed(pipe, cache, STEPS, 1):
        pass


def test_late_guidance_spends_its_budget_in_halves():
    candidates = CACHES["cfg-late"].candidates(_Trials(), 13)
    for settings in candidates:
        steps = len(settings.times) - 1
        guided = round(settings.guided * steps)
        assert guided >= 1
        assert guided + (steps - guided) / 2 == 13
    assert [len(settings.times) - 1 for settings in candidates] == list(range(13, 21))
    assert len(CACHES["cfg-late"].candidates(_Trials(), 1)) == 1
