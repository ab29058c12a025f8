"""Rivals inside the model, for FLUX and Wan: DiCache, the caches of diffusers, and cache-dit.

with placed(pipe, Cache(CACHES["dicache"], settings), steps=50, branches=2) as meter:
    pipe(...)

They run in the real pipeline. `metering` counts at the model's layers what they evaluate.
"""

from typing import Any

from tacache_lab.methods.inside.attaching import Site, check_supported, placed, restored
from tacache_lab.methods.inside.cachedit import DBCache, StepMasks
from tacache_lab.methods.inside.cfglate import LateGuidance
from tacache_lab.methods.inside.dicache import DiCache
from tacache_lab.methods.inside.inside_cache import Cache, InsideCache, Trials
from tacache_lab.methods.inside.library import FirstBlockCache, MagCacheInside, TaylorSeerInside
from tacache_lab.methods.inside.metering import BlockMeter, metered
from tacache_lab.methods.inside.seacache import SeaCache

_ALL: tuple[InsideCache[Any], ...] = (
    DiCache(),
    FirstBlockCache(),
    MagCacheInside(),
    TaylorSeerInside("attention"),
    TaylorSeerInside("lite"),
    SeaCache(),
    DBCache(),
    DBCache("taylorseer"),
    DBCache("dmd"),
    DBCache("foca"),
    StepMasks(),
    LateGuidance(),
)
CACHES: dict[str, InsideCache[Any]] = {cache.name: cache for cache in _ALL}

__all__ = [
    "CACHES",
    "BlockMeter",
    "Cache",
    "InsideCache",
    "Site",
    "Trials",
    "check_supported",
    "metered",
    "placed",
    "restored",
]
