"""cache-dit's DBCache, run as it is installed: with its forecasts (calibrators) and step masks."""

import importlib.util
import os
from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from tacache.errors import HostError, PlanError
from tacache.storage.files import Frozen
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.inside.families import blocks_of
from tacache_lab.methods.inside.inside_cache import InsideCache, Settings, Thresholded, Trials
from tacache_lab.methods.inside.library import MAX_SCHEDULES
from tacache_lab.methods.spectrum import GROWTHS, WARM_UPS, WINDOWS, SpectrumSettings, growing
from tacache_lab.methods.tuning import MAX_THRESHOLD, spending, spread

INSTALL = "pip install 'tacache[peers]'"
# cache-dit's ways to continue what blocks added: polynomials, exponentials, and an ODE's solver
Forecast = Literal["taylorseer", "dmd", "foca"]
CONFIGS: dict[Forecast, str] = {
    "taylorseer": "TaylorSeerCalibratorConfig",
    "dmd": "DMDCalibratorConfig",
    "foca": "FoCaCalibratorConfig",
}
MASKED: tuple[Forecast | None, ...] = (None, "taylorseer")  # forecasts that masks are tried with


class DBCacheSettings(Frozen):
    """The first blocks that always run, the last ones, the first steps, and the threshold."""

    threshold: Annotated[float, Field(ge=0)] = 0.08
    first_blocks: Annotated[int, Field(ge=1)] = 8
    last_blocks: Annotated[int, Field(ge=0)] = 0
    warm_up: Annotated[int, Field(ge=0)] = 8


class StepMaskSettings(Frozen):
    """The steps that are evaluated, or one of cache-dit's own masks by its name, and a forecast."""

    evaluated: tuple[int, ...] = ()
    policy: Literal["slow", "medium", "fast", "ultra"] | None = None
    forecast: Forecast | None = None


class CacheDiT(InsideCache[Settings]):
    """What all rivals by the package have in common."""

    def available(self) -> None:
        """Refuse where cache-dit is missing, or would compare samples of other processes."""
        if importlib.util.find_spec("cache_dit") is None:
            raise HostError(f"{self.name} needs the package cache-dit: {INSTALL}")
        group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if group and torch.distributed.get_world_size() > 1:
            raise HostError(
                f"{self.name} averages its decisions over all processes, which run other samples "
                "here: run it without torchrun, in one process, with --retry-failed on the same "
                "results"
            )

    def enable(self, site: Site, forecast: Forecast | None, **fields: Any) -> None:
        """Install it by cache-dit's own function, in its order-1 or default form of a forecast."""
        library = _cache_dit()
        config = library.DBCacheConfig(
            enable_separate_cfg=site.branches > 1, num_inference_steps=site.steps, **fields
        )
        calibrator = getattr(library, CONFIGS[forecast])() if forecast else None
        library.enable_cache(site.transformer, cache_config=config, calibrator_config=calibrator)


class DBCache(Thresholded[DBCacheSettings], CacheDiT[DBCacheSettings]):
    """cache-dit's DBCache, as it is or with one of its forecasts."""

    citation = "DefTruth et al., cache-dit: DBCache, 2025"
    published = MappingProxyType(
        {"flux": DBCacheSettings(), "flux-fast": DBCacheSettings(first_blocks=1)}
    )

    def __init__(self, forecast: Forecast | None = None) -> None:
        self.forecast = forecast
        self.name = "cache-dit" + (f"-{forecast}" if forecast else "")

    def variants(self, steps: int, evaluations: int) -> Sequence[DBCacheSettings]:
        """Return one first block, as few as it can have, and a short or a longer warm-up."""
        warm_ups = dict.fromkeys((1, max(1, min(8, evaluations // 3))))
        return [
            DBCacheSettings(threshold=MAX_THRESHOLD, first_blocks=1, warm_up=warm_up)
            for warm_up in warm_ups
        ]

    def check(self, transformer: Any, settings: DBCacheSettings) -> None:
        """Refuse a model without blocks between those that always run."""
        blocks = len(blocks_of(transformer))
        if settings.first_blocks + settings.last_blocks >= blocks:
            raise PlanError(
                f"{self.name} with {settings.first_blocks} first and {settings.last_blocks} last "
                f"blocks has none to skip: the model has {blocks}"
            )

    def install(self, site: Site, settings: DBCacheSettings) -> None:
        """Install it with these limits."""
        self.check(site.transformer, settings)
        self.enable(
            site,
            self.forecast,
            Fn_compute_blocks=settings.first_blocks,
            Bn_compute_blocks=settings.last_blocks,
            max_warmup_steps=settings.warm_up,
            residual_diff_threshold=settings.threshold,
        )


class StepMasks(CacheDiT[StepMaskSettings]):
    """cache-dit's step masks (SCM): which steps are evaluated is said before the run."""

    name = "cache-dit-masks"
    citation = "DefTruth et al., cache-dit: steps computation masks, 2025"
    needs = "its first step is always evaluated"
    published = MappingProxyType(
        {
            f"{family}-{policy}": StepMaskSettings(policy=policy, forecast="taylorseer")
            for family in ("flux", "wan")
            for policy in ("fast", "ultra")
        }
    )

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[StepMaskSettings]:
        """Return masks of a warm-up and ever longer skips, as cache-dit's own ones have them."""
        by_steps: dict[tuple[int, ...], StepMaskSettings] = {}
        for warm_up, window, growth in product(WARM_UPS, WINDOWS, GROWTHS):
            schedule = SpectrumSettings(warm_up=warm_up, window=window, growth=growth)
            evaluated = growing(trials.steps, schedule)
            by_steps.setdefault(evaluated, StepMaskSettings(evaluated=evaluated))
        return [
            settings.model_copy(update={"forecast": forecast})
            for settings in spread(spending(by_steps, evaluations), MAX_SCHEDULES)
            for forecast in MASKED
        ]

    def install(self, site: Site, settings: StepMaskSettings) -> None:
        """Install it with a mask that nothing but the mask decides, and one first block."""
        mask = [int(n in settings.evaluated) for n in range(site.steps)]
        if settings.policy is not None:
            mask = _cache_dit().steps_mask(total_steps=site.steps, mask_policy=settings.policy)
        self.enable(
            site,
            settings.forecast,
            Fn_compute_blocks=1,
            max_warmup_steps=1,
            steps_computation_mask=mask,
            steps_computation_policy="static",
        )


def _cache_dit() -> Any:
    """Return the library, which writes to stdout unless it is told not to before it is loaded."""
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "ERROR")
    return importlib.import_module("cache_dit")
