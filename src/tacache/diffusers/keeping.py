"""A pipeline's running call, kept so that a fit can make it again, one sample at a time."""

import copy
import functools
import inspect
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from torch import Tensor

from tacache.diffusers.calls import RunningCall
from tacache.diffusers.driving.call import pipeline_with
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.pipeline import PipelineHost
from tacache.host import Call, Host
from tacache.host.learning import Kept
from tacache.prompts import Sample
from tacache.work.processes import ALONE, Processes

# arguments that say how a call ends or where its noise comes from, or that only watch it
LEFT_OUT = {
    "callback",
    "callback_on_step_end",
    "callback_on_step_end_tensor_inputs",
    "callback_steps",
    "generator",
    "latents",
    "num_images_per_prompt",
    "num_videos_per_prompt",
    "output_type",
    "return_dict",
}
EMBEDDED = ("embed", "attention_mask")  # in the names of arguments that stand for a prompt
PLAIN = bool | int | float | str


class RunningSource:
    """The running call of a pipeline, for a fit to come (`tacache.host.accelerating.Source`)."""

    def __init__(self, call: RunningCall) -> None:
        self._pipe, self._call = call.pipeline, call

    @functools.cached_property
    def _arguments(self) -> dict[str, Any]:
        return _own_arguments(self._call)

    def refusal(self) -> str | None:
        """Why calls like this one cannot be made again."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            return "several processes of a launcher share this model, and all must do the same"
        if not isinstance(self._pipe, DiffusionPipeline):
            return "the blocks of a modular pipeline hold its loop, so it cannot be held there"
        if "latents" not in inspect.signature(type(self._pipe).__call__).parameters:
            return f"{type(self._pipe).__name__} takes no latents, so its noise cannot be given"
        for name, value in self._arguments.items():
            if not _can_be_kept(name, value):
                return f"its {name} ({type(value).__name__}) cannot be kept for later"
        return None

    def call_of(self, row: int, rows: int) -> dict[str, Any]:
        """The arguments of one sample of the batch."""
        call = {name: _row(name, value, row, rows) for name, value in self._arguments.items()}
        asks_latents = self._call.arguments.get("output_type") == "latent"
        return call | ({"output_type": "latent"} if asks_latents else {})

    def host(self, samples: Sequence[Kept]) -> tuple[Host, Call]:
        """The pipeline without a plan, called as it was for each sample."""
        shared = [one.call.get("output_type") for one in samples]
        return KeptCalls(self._pipe, samples), {"output_type": "latent"} if any(shared) else {}


class KeptCalls(PipelineHost):
    """A pipeline whose sample with seed i is that of the i-th kept call."""

    def __init__(self, pipe: Any, samples: Sequence[Kept]) -> None:
        super().__init__(pipeline_with(pipe, copy.deepcopy(plain_scheduler(pipe))))
        self.samples = samples

    def arguments(self, sample: Sample, call: Call) -> Call:
        """The kept arguments, from the kept noise."""
        kept = self.samples[sample.seed]
        device = getattr(self.pipe, "_execution_device", "cpu")
        there = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in kept.call.items()
        }
        source = {"generator": torch.Generator().manual_seed(sample.seed)}
        return {**source, **there, **call, "latents": kept.noise.to(device)}

    def processes(self) -> Processes:
        """One alone: others of a launcher know nothing of the fit."""
        return ALONE


def _own_arguments(call: RunningCall) -> dict[str, Any]:
    """What the pipeline was called with beside its defaults, as far as a later call needs it.

    Pipelines overwrite their arguments before the loop: a prompt is encoded, and encodings are put
    behind those of the negative prompt.
    """
    known = inspect.signature(type(call.pipeline).__call__).parameters
    given = {
        name: call.arguments[name]
        for name, parameter in known.items()
        if name in call.arguments and name not in LEFT_OUT
        and not _is(call.arguments[name], parameter.default)
    }  # fmt: skip
    if given.get("prompt") is not None:
        return {n: v for n, v in given.items() if not _stands_for_prompt(n)}
    return {name: _positive(name, value, given) for name, value in given.items()}


def _is(value: Any, default: Any) -> bool:
    """Whether an argument has the value it has unless told."""
    if value is None or value is default:
        return True
    return isinstance(value, PLAIN) and type(value) is type(default) and value == default


def _stands_for_prompt(name: str) -> bool:
    return any(word in name for word in EMBEDDED)


def _positive(name: str, value: Any, given: dict[str, Any]) -> Any:
    """An encoding without that of the negative prompt, which SD3 and others put before it."""
    negative = given.get(f"negative_{name}")
    if not (isinstance(value, Tensor) and isinstance(negative, Tensor)):
        return value
    count = len(negative)
    behind = len(value) == 2 * count and torch.equal(value[:count], negative)
    return value[count:] if behind else value


def _can_be_kept(name: str, value: Any) -> bool:
    if isinstance(value, Tensor):
        return _stands_for_prompt(name) and "image" not in name
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.size < 10_000  # noise levels
    if isinstance(value, dict):
        return all(isinstance(key, str) and _can_be_kept("", one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(_can_be_kept(name, one) for one in value)
    return isinstance(value, PLAIN | np.generic)


def _row(name: str, value: Any, row: int, rows: int) -> Any:
    """What of an argument belongs to one sample of the batch; prompts are repeated in order."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if not isinstance(value, Tensor | list | tuple) or not len(value) or rows % len(value):
        return value
    at = row // (rows // len(value))
    if isinstance(value, Tensor):
        return value[at : at + 1].detach().cpu().clone()
    if isinstance(value[at], Tensor):  # an encoding for each prompt
        return [value[at].detach().cpu().clone()]
    return value[at] if "prompt" in name else value
