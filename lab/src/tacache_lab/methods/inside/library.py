"""The caches that come with diffusers, run as they are: FirstBlockCache, MagCache, TaylorSeer."""

import math
from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from diffusers.hooks import (
    FirstBlockCacheConfig,
    MagCacheConfig,
    TaylorSeerCacheConfig,
    apply_first_block_cache,
    apply_mag_cache,
    apply_taylorseer_cache,
)
from pydantic import Field

from tacache.storage.files import Frozen
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.inside.families import blocks_of, family_of
from tacache_lab.methods.inside.inside_cache import LOWEST, InsideCache, Thresholded, Trials
from tacache_lab.methods.magcache import FLUX_RATIOS, WAN_RATIOS
from tacache_lab.methods.tuning import (
    MAX_SEARCHED_THRESHOLD,
    MAX_THRESHOLD,
    TuningRuns,
    spending,
    spread,
)

RETENTIONS = (0.2, 0.1, 0.0)
THRESHOLDS = 120  # tried for MagCache, whose schedule is known without a run
MAG_CACHE_HOOK = "mag_cache_block_hook"  # diffusers' name of it
PUBLISHED_RATIOS = {"flux": FLUX_RATIOS, "wan": WAN_RATIOS}
NEVER = -1.0  # a threshold of 0 would skip where a ratio is 1, as it compares by <=
ORDERS = (1, 2)
MAX_SCHEDULES = 48  # schedules that are run


class FirstBlockSettings(Frozen):
    """The threshold of the relative change in the first block since the last evaluation."""

    threshold: Annotated[float, Field(ge=0)] = 0.05


class FirstBlockCache(Thresholded[FirstBlockSettings]):
    """diffusers' FirstBlockCache."""

    name = "diffusers-fbcache"
    citation = "Cheng, ParaAttention's First Block Cache, 2024, as in diffusers"
    published = MappingProxyType({"flux": FirstBlockSettings()})

    def variants(self, steps: int, evaluations: int) -> Sequence[FirstBlockSettings]:
        """Return one variant: it has nothing but a threshold."""
        return [FirstBlockSettings(threshold=MAX_THRESHOLD)]

    def install(self, site: Site, settings: FirstBlockSettings) -> None:
        """Install it by diffusers' own function."""
        config = FirstBlockCacheConfig(threshold=settings.threshold)
        apply_first_block_cache(site.transformer, config)


class MagCacheInsideSettings(Frozen):
    """MagCache's numbers; without ratios it measures them and skips nothing."""

    threshold: Annotated[float, Field(ge=0)]
    max_skip: Annotated[int, Field(ge=1)]
    retention: Annotated[float, Field(ge=0, le=1)]
    ratios: tuple[float, ...] = ()


class MagCacheInside(InsideCache[MagCacheInsideSettings]):
    """diffusers' MagCache, on residuals of all blocks; tuned with ratios of the model itself."""

    name = "diffusers-magcache"
    citation = "Ma et al., MagCache: Fast Video Generation with Magnitude-Aware Cache, 2025"
    published = MappingProxyType(
        {
            "flux": MagCacheInsideSettings(
                threshold=0.24, max_skip=5, retention=0.1, ratios=FLUX_RATIOS
            ),
            "flux-library": MagCacheInsideSettings(
                threshold=0.06, max_skip=3, retention=0.2, ratios=FLUX_RATIOS
            ),
            "wan-slow": MagCacheInsideSettings(
                threshold=0.12, max_skip=2, retention=0.2, ratios=WAN_RATIOS
            ),
            "wan-fast": MagCacheInsideSettings(
                threshold=0.12, max_skip=4, retention=0.2, ratios=WAN_RATIOS
            ),
        }
    )

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[MagCacheInsideSettings]:
        """Return the model's ratios and the published ones, at all limits that spend the budget."""
        steps = trials.steps
        span = (MAX_SEARCHED_THRESHOLD / LOWEST) ** (1 / THRESHOLDS)
        thresholds = [0.0, *(LOWEST * span**i for i in range(THRESHOLDS + 1))]
        skips = range(1, 2 * math.ceil(steps / evaluations) + 1)
        known = self.measured(trials), nearest(PUBLISHED_RATIOS[trials.family], steps)
        by_steps: dict[tuple[int, ...], MagCacheInsideSettings] = {}
        for ratios, retention, threshold, skip in product(known, RETENTIONS, thresholds, skips):
            settings = MagCacheInsideSettings(
                threshold=threshold, max_skip=skip, retention=retention, ratios=ratios
            )
            by_steps.setdefault(mag_schedule(settings, steps), settings)
        return spread(spending(by_steps, evaluations), MAX_SCHEDULES)

    def tuning_runs(self, steps: int, evaluations: int, most: int) -> TuningRuns:
        """Return the tries, and the run in which ratios are measured."""
        return TuningRuns(on_all=most, on_few=math.ceil(steps / evaluations))

    def measured(self, trials: Trials) -> tuple[float, ...]:
        """Return the mean ratios of the calibration samples, by diffusers' own measurement."""
        asking = MagCacheInsideSettings(threshold=0, max_skip=1, retention=0)
        rows = trials.seen(asking, _calibrated)
        return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))

    def install(self, site: Site, settings: MagCacheInsideSettings) -> None:
        """Install it by diffusers' own function."""
        measuring = not settings.ratios
        config = MagCacheConfig(
            threshold=settings.threshold or NEVER,
            max_skip_steps=settings.max_skip,
            retention_ratio=settings.retention,
            # measuring, a step more than there are: at its last one it prints and forgets
            num_inference_steps=site.steps + measuring,
            mag_ratios=None if measuring else torch.tensor(settings.ratios),
            calibrate=measuring,
        )
        apply_mag_cache(site.transformer, config)


def mag_schedule(settings: MagCacheInsideSettings, steps: int) -> tuple[int, ...]:
    """Return the steps that diffusers' MagCache evaluates, with a ratio for every step."""
    retained = round_half_up(settings.retention * steps)
    chosen, ratio, total, skipped = [], 1.0, 0.0, 0
    for n, own in enumerate(settings.ratios):
        if n and n >= retained:
            ratio *= own
            skipped, total = skipped + 1, total + abs(1.0 - ratio)
            if total <= (settings.threshold or NEVER) and skipped <= settings.max_skip:
                continue
        chosen.append(n)
        ratio, total, skipped = 1.0, 0.0, 0
    return tuple(chosen)


def nearest(ratios: Sequence[float], steps: int) -> tuple[float, ...]:
    """Return ratios of another number of steps, each by the nearest of those there are."""
    last = len(ratios) - 1
    return tuple(ratios[round(i * last / max(1, steps - 1))] for i in range(steps))


def round_half_up(x: float) -> int:
    """Round a share of the steps as diffusers does."""
    return int(x + 0.5)


def _calibrated(transformer: Any) -> list[float]:
    hook = blocks_of(transformer)[-1]._diffusers_hook.get_hook(MAG_CACHE_HOOK)
    states = hook.state_manager._state_cache
    ratios: list[float] = next(iter(states.values())).calibration_ratios
    return ratios


class TaylorSeerInsideSettings(Frozen):
    """Every so many steps after a warm-up; the kept factors are in float32."""

    interval: Annotated[int, Field(ge=1)] = 5
    warm_up: Annotated[int, Field(ge=1)] = 3
    order: Annotated[int, Field(ge=0)] = 1


class TaylorSeerInside(InsideCache[TaylorSeerInsideSettings]):
    """diffusers' TaylorSeer: what attention gives is predicted, or, `lite`, what the model gives.

    Without `lite` only attention is skipped, so that a skipped step costs much of an evaluation.
    """

    citation = "Liu et al., From Reusing to Forecasting: TaylorSeers, 2025, as in diffusers"
    needs = "its first step is always evaluated, and one of every interval"
    published = MappingProxyType(
        {
            "flux": TaylorSeerInsideSettings(),
            "flux-paper": TaylorSeerInsideSettings(interval=6),
            "wan": TaylorSeerInsideSettings(warm_up=1),
        }
    )

    def __init__(self, kind: Literal["attention", "lite"]) -> None:
        self.kind = kind
        self.skip_cost = 0.5 if kind == "attention" else 0.0
        self.name = "diffusers-taylorseer" + ("-lite" if kind == "lite" else "")

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[TaylorSeerInsideSettings]:
        """Return all intervals and warm-ups that spend nearly all of the budget."""
        by_steps: dict[tuple[int, ...], TaylorSeerInsideSettings] = {}
        for interval, warm_up in product(range(1, trials.steps + 1), range(1, evaluations + 1)):
            settings = TaylorSeerInsideSettings(interval=interval, warm_up=warm_up)
            by_steps.setdefault(taylor_schedule(settings, trials.steps), settings)
        best = spending(by_steps, evaluations)
        orders: list[dict[str, Any]] = [{"order": order} for order in ORDERS]
        return [
            candidate.model_copy(update=update)
            for candidate in spread(best, MAX_SCHEDULES)
            for update in orders
        ]

    def install(self, site: Site, settings: TaylorSeerInsideSettings) -> None:
        """Install it by diffusers' own function, whose defaults find no attention of Wan."""
        patterns = family_of(site.transformer).attentions if self.kind == "attention" else None
        config = TaylorSeerCacheConfig(
            cache_interval=settings.interval,
            disable_cache_before_step=settings.warm_up,
            max_order=settings.order,
            taylor_factors_dtype=torch.float32,
            use_lite_mode=self.kind == "lite",
            cache_identifiers=None if patterns is None else list(patterns),
        )
        apply_taylorseer_cache(site.transformer, config)


def taylor_schedule(settings: TaylorSeerInsideSettings, steps: int) -> tuple[int, ...]:
    """Return the steps that diffusers' TaylorSeer evaluates."""
    return tuple(
        n
        for n in range(steps)
        if n < settings.warm_up or (n - settings.warm_up - 1) % settings.interval == 0
    )
