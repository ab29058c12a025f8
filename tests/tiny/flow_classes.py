"""The classes of the installed diffusers that sample a flow, found by the schedulers they name."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

# Schedulers that have no `beta_start` among their options, and sample no flow all the same.
NOT_FLOWS = {
    "AmusedScheduler",  # tokens
    "BlockRefinementScheduler",  # tokens
    "CMStochasticIterativeScheduler",
    "DDPMWuerstchenScheduler",
    "DiscreteDDIMScheduler",  # tokens
    "EDMDPMSolverMultistepScheduler",
    "EDMEulerScheduler",
    "EntropyBoundScheduler",  # tokens
    "KarrasDiffusionSchedulers",
    "KarrasVeScheduler",
    "ScoreSdeVeScheduler",
    "UnCLIPScheduler",
    "VQDiffusionScheduler",  # tokens
}
UNNAMED = "SchedulerMixin"  # any scheduler at all


def samples_a_flow(scheduler: str) -> bool | None:
    """Whether a scheduler is for flows; None where its configuration decides."""
    import diffusers

    if scheduler in NOT_FLOWS:
        return False
    if scheduler == UNNAMED:
        return None
    options = inspect.signature(getattr(diffusers, scheduler)).parameters
    if "use_flow_sigmas" in options:
        return None
    return "beta_start" not in options


def parts_of(pipeline: Any) -> dict[str, str]:
    """A pipeline's arguments or, of a modular one, its blocks' components; each with its type."""
    import diffusers

    if issubclass(pipeline, diffusers.ModularPipeline):
        blocks = getattr(diffusers, pipeline.default_blocks_name)()
        return {one.name: _named(one.type_hint) for one in blocks.expected_components}
    parameters = inspect.signature(pipeline).parameters
    return {name: _named(one.annotation) for name, one in parameters.items()}


def _named(hint: Any) -> str:
    """A type's own name, without its module; none where nothing is said."""
    if hint in (None, inspect.Parameter.empty):
        return ""
    return hint.__name__ if isinstance(hint, type) else re.sub(r"(\w+\.)+", "", str(hint))


def named_schedulers(parts: dict[str, str]) -> tuple[str, ...]:
    """The scheduler classes that these parts name; a type that says nothing stands for any."""
    hints = [hint for name, hint in parts.items() if re.search(r"(^|_)scheduler$", name)]
    found = {name for hint in hints for name in re.findall(r"\w+Schedulers?\b", hint) or [UNNAMED]}
    return tuple(sorted(found))


def has_a_flow(parts: dict[str, str]) -> bool:
    """Whether a pipeline samples a flow, or may; one that steps a transformer by itself may."""
    schedulers = named_schedulers(parts)
    if not schedulers:
        return "transformer" in parts
    verdicts = [samples_a_flow(one) for one in schedulers]
    return any(verdicts) or all(one is None for one in verdicts)


@functools.cache
def flow_classes() -> dict[str, dict[str, str]]:
    """Each pipeline class of diffusers that samples a flow, or may, with its parts."""
    import diffusers

    bases = diffusers.DiffusionPipeline, diffusers.ModularPipeline
    kinds = [getattr(diffusers, name) for name in dir(diffusers)]
    pipelines = [
        kind
        for kind in kinds
        if inspect.isclass(kind) and issubclass(kind, bases) and kind not in bases
        if ".deprecated." not in kind.__module__
    ]
    parts = {kind.__name__: parts_of(kind) for kind in pipelines}
    return {name: own for name, own in parts.items() if has_a_flow(own)}
