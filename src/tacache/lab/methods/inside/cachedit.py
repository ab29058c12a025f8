"""cache-dit's DBCache, run as it is installed, with and without its TaylorSeer calibrator."""

import importlib.util
import os
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import Field

from tacache.errors import HostError, PlanError
from tacache.lab.methods.inside.attaching import Site
from tacache.lab.methods.inside.base import Thresholded
from tacache.lab.methods.inside.families import blocks_of
from tacache.lab.methods.tuning import LOOSEST
from tacache.storage.files import Frozen

INSTALL = "pip install 'tacache[peers]'"


class DBCacheSettings(Frozen):
    """The first blocks that always run, the last ones, the first steps, and the threshold."""

    threshold: Annotated[float, Field(ge=0)] = 0.08
    first_blocks: Annotated[int, Field(ge=1)] = 8
    last_blocks: Annotated[int, Field(ge=0)] = 0
    warm_up: Annotated[int, Field(ge=0)] = 8


class DBCache(Thresholded[DBCacheSettings]):
    """cache-dit's DBCache; with `order`, its TaylorSeer calibrator of that order."""

    citation = "DefTruth et al., cache-dit: DBCache, 2025"
    published = MappingProxyType(
        {"flux": DBCacheSettings(), "flux-fast": DBCacheSettings(first_blocks=1)}
    )

    def __init__(self, order: int | None = None) -> None:
        self.order = order
        self.name = "cache-dit" + ("" if order is None else "-taylorseer")

    def variants(self, steps: int, evaluations: int) -> Sequence[DBCacheSettings]:
        """One first block, as few as it can have, and a short or a longer warm-up."""
        warm_ups = dict.fromkeys((1, max(1, min(8, evaluations // 3))))
        return [
            DBCacheSettings(threshold=LOOSEST, first_blocks=1, warm_up=warm_up)
            for warm_up in warm_ups
        ]

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

    def check(self, transformer: Any, settings: DBCacheSettings) -> None:
        """Refuse a model without blocks between those that always run."""
        blocks = len(blocks_of(transformer))
        if settings.first_blocks + settings.last_blocks >= blocks:
            raise PlanError(
                f"{self.name} with {settings.first_blocks} first and {settings.last_blocks} last "
                f"blocks has none to skip: the model has {blocks}"
            )

    def install(self, site: Site, settings: DBCacheSettings) -> None:
        """Install it by cache-dit's own function."""
        self.check(site.transformer, settings)
        library = _cache_dit()
        config = library.DBCacheConfig(
            Fn_compute_blocks=settings.first_blocks,
            Bn_compute_blocks=settings.last_blocks,
            max_warmup_steps=settings.warm_up,
            residual_diff_threshold=settings.threshold,
            enable_separate_cfg=site.branches > 1,
            num_inference_steps=site.steps,
        )
        calibrator = None
        if self.order is not None:
            calibrator = library.TaylorSeerCalibratorConfig(taylorseer_order=self.order)
        library.enable_cache(site.transformer, cache_config=config, calibrator_config=calibrator)


def _cache_dit() -> Any:
    """The library, which writes to stdout unless it is told not to before it is loaded."""
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "ERROR")
    return importlib.import_module("cache_dit")
