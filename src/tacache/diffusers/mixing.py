"""Fits on a mix of settings: arguments of the pipeline that differ from run to run."""

from collections.abc import Mapping, Sequence
from typing import Any

from tacache.diffusers.runs import check_call_names
from tacache.errors import HostError

Vary = Mapping[str, Sequence[Any]]  # an argument's name -> its values, taken in turn

# what a fit sets itself or needs to be the same
FIXED = ("prompt", "generator", "num_inference_steps", "strength", "output_type", "return_dict")


def check_vary(pipe: Any, vary: Vary, call: Mapping[str, Any]) -> None:
    """Stop before any work where a mix cannot be."""
    check_call_names(pipe, dict(vary))
    for name, values in vary.items():
        if name in FIXED:
            raise HostError(f"{name} is the same for all runs of a fit: it cannot vary")
        if name in call:
            raise HostError(f"{name} is given ({call[name]!r}) and varied: leave one of them out")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise HostError(f"vary takes a list of values for {name}, not {values!r}")


def call_of_run(call: Mapping[str, Any], vary: Vary, number: int) -> dict[str, Any]:
    """The arguments of a run: the next value of everything that varies."""
    return {**call, **{name: values[number % len(values)] for name, values in vary.items()}}


def middle(vary: Vary) -> dict[str, Any]:
    """One value of each: the middle one where they have an order, what a plan is used at first."""
    return {name: _middle(values) for name, values in vary.items()}


def _middle(values: Sequence[Any]) -> Any:
    ordered = all(isinstance(value, int | float) for value in values)
    return sorted(values)[(len(values) - 1) // 2] if ordered else values[0]
