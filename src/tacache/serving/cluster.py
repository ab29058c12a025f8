"""Starting Ray on this machine, or joining a cluster of it."""

import logging
import os

import ray

from tacache.errors import HostError, first_line


def join(address: str | None, *, dashboard: bool = False) -> None:
    """Start Ray on this machine or join a cluster; it tells nobody about its use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        return
    more = {} if address is not None else {"include_dashboard": dashboard}
    try:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False, **more)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise HostError(f"Ray cannot be started or joined: {first_line(error)}") from error
