"""A pipeline's running call, kept so that a fit can make it again, one sample at a time."""

import copy
import functools
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from diffusers import ModularPipeline
from torch import Tensor

from tacache.diffusers.applying import plain_scheduler
from tacache.diffusers.calls import RunningCall, argument_names
from tacache.diffusers.driven_call import pipeline_with
from tacache.diffusers.joint import latent_names, scheduler_names
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.solving import DiffusersEuler
from tacache.diffusers.trajectory import PipelineTrajectory
from tacache.errors import HostError
from tacache.fitting.latents import JointEuler, average
from tacache.hosts import Call, Host, Pixels
from tacache.hosts.learning import RecordedSample
from tacache.plan import Plan
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
EMBEDDED = (
    "embed",
    "attention_mask",
    "token_tags",
)  # in the names of arguments that stand for a prompt
PLAIN = bool | int | float | str


class RunningSource:
    """The running call of a pipeline, for a fit to come (`tacache.hosts.choosing.Source`)."""

    def __init__(self, call: RunningCall) -> None:
        self._pipe, self._call = call.pipeline, call

    @functools.cached_property
    def _arguments(self) -> dict[str, Any]:
        return _own_arguments(self._call)

    def refusal(self) -> str | None:
        """Return why calls like this one cannot be made again."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            return "several processes of a launcher share this model, and all must do the same"
        if isinstance(self._pipe, ModularPipeline):
            blocks = self._pipe._blocks
            needed = {
                parameter.name
                for parameter in blocks.inputs
                if parameter.name and parameter.required
            }
            own = {output.name for output in blocks.intermediate_outputs}
            if unseen := needed - own - set(self._call.passed or {}):
                return (
                    f"its {', '.join(sorted(unseen))} came in a state that other blocks have made"
                )
        for name, value in self._arguments.items():
            if not _can_be_kept(name, value):
                return f"its {name} ({type(value).__name__}) cannot be kept for later"
        return None

    def call_of(self, row: int, rows: int) -> dict[str, Any]:
        """Return the arguments of one sample of the batch."""
        call = {
            name: _plain(_row(name, value, row, rows)) for name, value in self._arguments.items()
        }
        asks_latents = self._call.arguments.get("output_type") == "latent"
        return call | ({"output_type": "latent"} if asks_latents else {})

    def host(self, samples: Sequence[RecordedSample]) -> tuple[Host, Call]:
        """Return the pipeline without a plan, called as it was for each sample."""
        shared = [sample.call.get("output_type") for sample in samples]
        return KeptCalls(self._pipe, samples), {"output_type": "latent"} if any(shared) else {}


class KeptCalls(PipelineHost):
    """A pipeline whose sample with seed i is that of the i-th kept call."""

    def __init__(self, pipe: Any, samples: Sequence[RecordedSample]) -> None:
        schedulers = {name: plain_scheduler(pipe, name) for name in scheduler_names(pipe)}
        super().__init__(pipeline_with(pipe, **copy.deepcopy(schedulers)))
        self.samples = samples
        self._followed: Plan | None = None
        # In the form of the loop's latents; those of a joint model may have another in a call.
        self._takes_noise = "latents" in (argument_names(pipe) or ()) and not latent_names(pipe)

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[PipelineTrajectory]:
        """Yield a kept call, held in its loop."""
        noise = self.samples[sample.seed].noise
        with ExitStack() as stack:
            if self._takes_noise:
                try:
                    run = stack.enter_context(super().open(sample, call, times))
                    self._takes_noise = torch.equal(run.noise.cpu(), noise)
                except HostError:
                    self._takes_noise = False
            if not self._takes_noise:
                run = stack.enter_context(super().open(sample, call, times))
                run.other_noise = noise.to(run.noise.device)
            yield run

    def arguments(self, sample: Sample, call: Call) -> Call:
        """Return the kept arguments, from the kept noise."""
        kept = self.samples[sample.seed]
        device = getattr(self.pipe, "_execution_device", "cpu")
        values = kept.call | ({"latents": kept.noise} if self._takes_noise else {})
        there = {name: _moved(value, device) for name, value in values.items()}
        return {"generator": torch.Generator().manual_seed(sample.seed), **there, **call}

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """Follow a plan, also from noise that a plain call cannot be given."""
        with super().follow(plan, call) as followed:
            self._followed = plan
            yield followed

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Return the picture or clip of a kept call, from the kept noise.

        Where the pipeline would draw its own, the call is held and led along the plan.
        """
        if self._takes_noise or self._followed is None:
            return super().draw(sample, call)
        with self.open(sample, call) as run:
            pixels = run.finish(_end_by(self._followed, run))
            self.sounds = run.sounds
        if pixels is None:
            raise HostError(f"{self.family} made pictures of the full run and now makes none")
        return pixels

    def processes(self) -> Processes:
        """Return this process alone: others of a launcher know nothing of the fit."""
        return ALONE


def _end_by(plan: Plan, run: PipelineTrajectory) -> Tensor:
    """Return where a held run of a joint model ends under a fitted plan."""
    each = (plan.of_latent(latent.name) for latent in run.latents)
    tables = [own.weights or () for own in each]
    integrator, x = JointEuler(run.latents, DiffusersEuler), run.noise
    velocities: list[Tensor] = []
    for i, (n, m) in enumerate(pairwise((*plan.anchors, plan.steps))):
        velocities.append(run.evaluate(x, n))
        x = integrator.move(x, average(run.latents, velocities, tables, i), n, m)
    return x


def _moved(value: Any, device: Any) -> Any:
    """Return an argument with its tensors on a device."""
    if isinstance(value, list):
        return [_moved(element, device) for element in value]
    return value.to(device) if isinstance(value, Tensor) else value


def _own_arguments(call: RunningCall) -> dict[str, Any]:
    """Return what the pipeline was called with beside its defaults, for a later call.

    Where it is not seen what the user passed, an encoded prompt is left to be encoded again, and
    encodings are parted from those of the negative prompt that the pipeline put before them.
    """
    known = _defaults(call.pipeline)
    arguments = call.arguments if call.passed is None else call.passed
    left_out = LEFT_OUT | {f"{name}_latents" for name in latent_names(call.pipeline)}
    beside = {
        name: arguments[name]
        for name, default in known.items()
        if name in arguments and name not in left_out and not _is(arguments[name], default)
    }
    if call.passed is not None:
        return beside
    if beside.get("prompt") is not None:
        return {n: v for n, v in beside.items() if not _stands_for_prompt(n)}
    return {name: _positive(name, value, beside) for name, value in beside.items()}


def _defaults(pipeline: Any) -> dict[str, Any]:
    """Return the arguments of a pipeline's call, each with its default."""
    if isinstance(pipeline, ModularPipeline):
        return {
            parameter.name or parameter.kwargs_type: parameter.default
            for parameter in pipeline._blocks.inputs
        }
    parameters = inspect.signature(type(pipeline).__call__).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def _is(value: Any, default: Any) -> bool:
    """Return whether an argument has the value it has unless told."""
    if value is default:
        return True
    return isinstance(value, PLAIN) and type(value) is type(default) and value == default


def _stands_for_prompt(name: str) -> bool:
    return any(word in name for word in EMBEDDED)


def _positive(name: str, value: Any, arguments: dict[str, Any]) -> Any:
    """Return an encoding without that of the negative prompt, which SD3 puts before it."""
    negative = arguments.get(f"negative_{name}")
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
        return all(
            isinstance(key, str) and _can_be_kept("", element) for key, element in value.items()
        )
    if isinstance(value, list | tuple):
        return all(_can_be_kept(name, element) for element in value)
    return value is None or isinstance(value, PLAIN | np.generic)


def _row(name: str, value: Any, row: int, rows: int) -> Any:
    """Return what of an argument belongs to one sample; prompts are repeated in order."""
    if not isinstance(value, Tensor | list | tuple) or not len(value) or rows % len(value):
        return value.detach().cpu() if isinstance(value, Tensor) else value
    at = row // (rows // len(value))
    if isinstance(value, Tensor):
        return value[at : at + 1].detach().cpu().clone()
    if isinstance(value[at], Tensor):  # an encoding for each prompt
        return [value[at].detach().cpu().clone()]
    return value[at] if "prompt" in name else value


def _plain(value: Any) -> Any:
    """Return a value with numbers of Python in the place of numpy's, which a file gives back."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, tuple):
        return tuple(_plain(element) for element in value)
    return value
