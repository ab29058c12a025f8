"""The host of what a benchmark is given: a pipeline, BAGEL's inferencer, or a host itself.

BAGEL needs a transformers that today's diffusers does not go with, so neither needs the other.
"""

import importlib
from typing import Any

from tacache.errors import HostError
from tacache.host import Host

# what a model has that a host knows it by -> where that host is
KNOWN_BY = {
    "interleave_inference": ("tacache.bagel.inferencer", "BagelHost"),
    "scheduler": ("tacache.diffusers.pipeline", "PipelineHost"),
}


def host_of(model: Any) -> Host:
    """The host that runs a model."""
    if hasattr(model, "with_steps"):  # a host already
        found: Host = model
        return found
    for name, (module, kind) in KNOWN_BY.items():
        if hasattr(model, name):
            found = getattr(importlib.import_module(module), kind)(model)
            return found
    raise HostError(
        f"{type(model).__name__} is neither a pipeline of diffusers nor BAGEL's inferencer: give "
        "one of these, or a tacache.host.Host"
    )
