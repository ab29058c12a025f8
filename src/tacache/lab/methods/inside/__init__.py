"""Rivals inside the model, for FLUX and Wan: DiCache, the caches of diffusers, and cache-dit.

with placed(pipe, Cache(CACHES["dicache"], settings), steps=50, branches=2) as meter:
    pipe(...)

They run in the real pipeline. `metering` counts at the model's layers what they evaluate.
"""

from typing import Any

from tacache.lab.methods.inside.attaching import Site, check_supported, placed, restored
from tacache.lab.methods.inside.base import Cache, InsideCache, Trials
from tacache.lab.methods.inside.cachedit import DBCache
from tacache.lab.methods.inside.dicache import DiCache
from tacache.lab.methods.inside.library import FirstBlockCache, MagCacheInside, TaylorSeerInside
from tacache.lab.methods.inside.metering import BlockMeter, metered

_ALL: tuple[InsideCache[Any], ...] = (
    DiCache(),
    FirstBlockCache(),
    MagCacheInside(),
    TaylorSeerInside("attention"),
    TaylorSeerInside("lite"),
    DBCache(),
    DBCache(order=1),
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
