"""Starting Ray on this machine, or joining a cluster of it."""

import logging
import os

import ray

from tacache.errors import HostError, first_line


def join(address: str | None, *, dashboard: bool = False) -> bool:
    """Join the cluster at an address or at `RAY_ADDRESS`, else start Ray here; True if started.

    It tells nobody about its use, unless `RAY_USAGE_STATS_ENABLED=1` is set.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        return False
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    more = {"include_dashboard": dashboard} if where == "local" else {}
    try:
        ray.init(address=where, logging_level=logging.WARNING, log_to_driver=False, **more)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise HostError(f"Ray cannot be started or joined: {first_line(error)}") from error
    return where == "local"
