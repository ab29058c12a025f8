"""The guiders of diffusers that a pipeline's loop consults, and whether they count its turns."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from diffusers.guiders.guider_utils import BaseGuidance
from torch import Tensor

from tacache.errors import HostError

SHAPES = ((1, 4, 4, 4), (1, 4, 4))  # pictures, and packed tokens: some guiders take only these


def enabled_guiders(pipeline: Any) -> list[Any]:
    """Return the guiders among the parts of a pipeline, by their class or by their name."""
    parts = getattr(pipeline, "__dict__", {}).items()
    guiders = [
        part for name, part in parts if isinstance(part, BaseGuidance) or name.endswith("guider")
    ]
    return [guider for guider in guiders if getattr(guider, "_enabled", guider is not None)]


def has_momentum(pipeline: Any) -> bool:
    """Return whether guidance depends on the loop iterations before."""
    if any(base.__name__ in _WITH_MOMENTUM for base in type(pipeline).__mro__):
        return True
    states = (getattr(guider, "__dict__", {}) for guider in enabled_guiders(pipeline))
    return any(_momenta(state) for state in states)


def check_guider(name: str, guider: Any, totals: Iterable[int], allowed: bool) -> None:
    """Stop where a guider of pipeline `name` does something else at some iterations of the loop.

    It is tried out on loops of these many iterations. One that cannot be tried is `allowed` where
    the user has said what changes on the way.
    """
    kind = type(guider).__name__
    try:
        counts = _counts(guider, totals, _shape_for(guider))
    except Exception as error:
        if allowed:
            return
        raise HostError(
            f"the {kind} of {name} cannot be tried out ({type(error).__name__}: {error}), so it "
            "may count loop iterations, which are fewer under a plan: if it does the same in all "
            "of them, say so with apply(pipe, plan, breaks=())"
        ) from error
    if counts:
        raise HostError(
            f"the {kind} of {name} changes its guidance by a count of loop iterations "
            f"({_counted_settings(guider)}), which are fewer under a plan: give it start=0, stop=1 "
            "and no later start or first steps of its own (adaptive_projected_guidance_start_step"
            "=-1, zero_init_steps=0), take another guider, or run without a plan"
        )


def _shape_for(guider: Any) -> tuple[int, ...]:
    """Return a shape of predictions that the guider takes, as far as one is known."""
    pictures, tokens = SHAPES
    try:
        _outcome(guider, 0, 2, pictures)
    except RuntimeError:
        return tokens
    return pictures


def _counts(guider: Any, totals: Iterable[int], shape: tuple[int, ...]) -> bool:
    """Return whether the same predictions give another result at another iteration."""
    outcomes = [_outcome(guider, step, total, shape) for total in totals for step in range(total)]
    names, result = outcomes[0]
    return not all(n == names and torch.equal(guided, result) for n, guided in outcomes)


def _outcome(
    guider: Any, step: int, total: int, shape: tuple[int, ...]
) -> tuple[list[str], Tensor]:
    """Return what the guider asks for and makes of it at one iteration of a pipeline's loop."""
    tried = copy.copy(guider)
    for momentum in _momenta(vars(tried)):  # it is warned of, see `has_momentum`
        setattr(tried, momentum, None)
    tried.set_state(step=step, num_inference_steps=total, timestep=torch.tensor(0.5))
    tried.momentum_buffer = None
    batches = tried.prepare_inputs({"states": torch.zeros(shape, device="cpu")})
    names = [str(getattr(batch, tried._identifier_key)) for batch in batches]
    for batch, name in zip(batches, names, strict=True):
        seed = tried._input_predictions.index(name)
        source = torch.Generator("cpu").manual_seed(seed)
        batch.noise_pred = torch.randn(shape, generator=source, device="cpu")
    result = tried(batches)
    return names, result[0] if not isinstance(result, Tensor) else result


def _momenta(values: dict[str, Any]) -> list[str]:
    return [
        name for name, value in values.items() if name.endswith("momentum") and value is not None
    ]


def _counted_settings(guider: Any) -> str:
    """Return the settings of a guider that speak of steps, for a message."""
    state = ("_step", "_num_inference_steps")
    settings = {
        name.lstrip("_"): value
        for name, value in vars(guider).items()
        if any(word in name for word in ("start", "stop", "step")) and name not in state
    }
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


_WITH_MOMENTUM = {"AceStepPipeline"}  # in the loop itself, whatever the arguments
