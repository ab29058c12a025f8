"""The arguments of a pipeline's call: samples as prompts and generators, and names checked."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from tacache.errors import unknown
from tacache.prompts import Sample


def run_arguments(samples: Sequence[Sample], call: dict[str, Any]) -> dict[str, Any]:
    """The pipeline's keyword arguments for these samples; one generator a sample.

    Noise is drawn on the CPU, so that a seed gives the same on every machine and device.
    """
    generators = [torch.Generator().manual_seed(sample.seed) for sample in samples]
    arguments = {**call, "generator": generators if len(generators) > 1 else generators[0]}
    prompts = [sample.prompt for sample in samples if sample.prompt is not None]
    if prompts:
        arguments["prompt"] = prompts if len(prompts) > 1 else prompts[0]
    return arguments


def giving(pipe: Any, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with this `output_type`, where the pipeline lets one ask for it."""
    accepts = "output_type" in inspect.signature(type(pipe).__call__).parameters
    return {**arguments, "output_type": kind} if accepts else arguments


def check_call_names(pipe: Any, call: dict[str, Any]) -> None:
    """Stop at a misspelt or foreign argument before the first long run."""
    _, *own = inspect.signature(type(pipe).__call__).parameters.values()  # but for self
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own):
        return
    known = [parameter.name for parameter in own]
    for name in call:
        if name not in known:
            raise unknown(f"{type(pipe).__name__} has no argument", name, known)
