"""What a benchmark runs on, told by the host it is given: a pipeline of diffusers, or BAGEL.

BAGEL needs a transformers that today's diffusers does not go with, so neither needs the other.
"""

import os
from typing import Any

from tacache.errors import HostError
from tacache.lab.bench.seam import Calls, Subject
from tacache.work.processes import Processes


def is_bagel(host: Any) -> bool:
    """Whether this is BAGEL's inferencer."""
    return hasattr(host, "interleave_inference")


def caller_of(host: Any, call: dict[str, Any], first: Subject) -> Calls:
    """What opens a host's calls."""
    if is_bagel(host):
        from tacache.lab.bench.bagel_calls import BagelCaller

        return BagelCaller(host, call, first)
    from tacache.lab.bench.calls import Caller

    return Caller(host, call, first)


def processes_of(host: Any) -> Processes:
    """Those that share a host's work."""
    if is_bagel(host) and os.environ.get("WORLD_SIZE", "1") != "1":
        raise HostError("bagel runs in one process: leave torchrun (--device auto uses all GPUs)")
    return Processes.current()
