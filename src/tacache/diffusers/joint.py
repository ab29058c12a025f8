"""Joint pipelines, which step several latents in one loop: pictures, and sound beside them.

Each further latent has a scheduler of its own, and is named after what the pipeline calls it: that
of "audio" is `audio_scheduler`, a component or a copy of the pipeline's own that a call makes.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from diffusers import ModularPipeline
from diffusers.modular_pipelines.modular_pipeline import BlockState

from tacache.errors import HostError
from tacache.plan import Plan

SUFFIX = "_scheduler"


def further_schedulers(pipeline: Any) -> dict[str, Any]:
    """Return the schedulers that a pipeline has beside its own, by the names of their latents."""
    return _named(getattr(pipeline, "__dict__", {}))


def scheduler_names(pipeline: Any) -> tuple[str, ...]:
    """Return the attributes with a pipeline's schedulers, its own first."""
    return ("scheduler", *(name + SUFFIX for name in further_schedulers(pipeline)))


def latent_names(pipeline: Any) -> tuple[str, ...]:
    """Return the latents that a call may step beside the first: by components, and by its code."""
    if isinstance(pipeline, ModularPipeline):
        variables = [part.name for part in pipeline._blocks.intermediate_outputs if part.name]
    else:
        code = inspect.unwrap(type(pipeline).__call__).__code__
        variables = list(code.co_varnames) if "deepcopy" in code.co_names else []
    copied = [name.removesuffix(SUFFIX) for name in variables if name.endswith(SUFFIX)]
    return tuple(dict.fromkeys([*further_schedulers(pipeline), *copied]))


def latent_in(variables: Mapping[str, Any], scheduler: Any) -> str | None:
    """Return the latent that a frame's variables, or those of its block, say a scheduler steps."""
    block = variables.get("block_state")
    state = vars(block) if isinstance(block, BlockState) else {}
    named = {**_named(variables), **_named(state)}
    return next((name for name, part in named.items() if part is scheduler), None)


def _named(variables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removesuffix(SUFFIX): part
        for name, part in variables.items()
        if name.endswith(SUFFIX) and hasattr(part, "set_timesteps")
    }


def check_latents(pipeline: Any, plan: Plan) -> None:
    """Refuse a plan whose latents are not those of the pipeline, as far as both are known."""
    known, kind = latent_names(pipeline), type(pipeline).__name__
    if strange := set(plan.latents or ()) - set(known):
        raise HostError(
            f"the plan has the latent {', '.join(sorted(strange))} beside the first, and {kind} "
            f"steps {', '.join(known) or 'no other'}: make a plan for this pipeline"
        )
    for name in further_schedulers(pipeline):
        plan_of_latent(plan, name, pipeline)


def plan_of_latent(plan: Plan, name: str, pipeline: Any) -> Plan:
    """Return the plan that a further latent follows; without an entry only one that fits them all.

    Those are the full run, and a rule on the grid that a copy of the pipeline's scheduler shares.
    """
    if name in (plan.latents or ()):
        return plan.of_latent(name)
    shares_grid = name not in further_schedulers(pipeline) and plan.rule != "fitted"
    if plan.latents is None and (plan.is_full or shares_grid):
        return without_shape(plan)
    raise HostError(
        f"{type(pipeline).__name__} steps {name!r} beside its first latent, and the plan has no "
        "times and weights for it: fit one with this pipeline, or accelerate(pipe)"
    )


def without_shape(plan: Plan) -> Plan:
    """Return the plan for latents of any shape."""
    return plan.model_copy(update={"origin": plan.origin.model_copy(update={"latent_shape": None})})
