"""Rivals inside the model, for FLUX and Wan: DiCache, the caches of diffusers, and cache-dit.

with placed(pipe, Cache(PEERS["dicache"], settings), steps=50, branches=2) as meter:
    pipe(...)

They run in the real pipeline. `metering` counts at the model's layers what they evaluate.
"""

from typing import Any

from tacache.diffusers.peers.attaching import Site, check_supported, placed, restored
from tacache.diffusers.peers.base import Cache, Peer, Trials
from tacache.diffusers.peers.cachedit import DBCache
from tacache.diffusers.peers.dicache import DiCache
from tacache.diffusers.peers.library import FirstBlockCache, MagCacheInside, TaylorSeerInside
from tacache.diffusers.peers.metering import BlockMeter, metered

_ALL: tuple[Peer[Any], ...] = (
    DiCache(),
    FirstBlockCache(),
    MagCacheInside(),
    TaylorSeerInside("attention"),
    TaylorSeerInside("lite"),
    DBCache(),
    DBCache(order=1),
)
PEERS: dict[str, Peer[Any]] = {peer.name: peer for peer in _ALL}

__all__ = [
    "PEERS",
    "BlockMeter",
    "Cache",
    "Peer",
    "Site",
    "Trials",
    "check_supported",
    "metered",
    "placed",
    "restored",
]
