"""The check of a driven call: its first step must be that of the plain call.

Driving rests on what pipelines look like inside (a loop with `enumerate`, a `step` a turn). So the
first driven call of a kind of pipeline is compared with a plain one up to its first step.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.diffusers.derived import subclass
from tacache.diffusers.driving.call import freeing_hooks, pipeline_with, scheduler_like
from tacache.diffusers.driving.loop import Abandoned
from tacache.errors import HostError


class FirstStep(NamedTuple):
    """A run's first step: the state it starts from, the velocity there, and where that leads."""

    state: Tensor
    velocity: Tensor
    result: Tensor


class Repeatable:
    """A call with the random numbers it begins with, to be made again."""

    def __init__(self, call: dict[str, Any]) -> None:
        self._call = {name: _copied(value) for name, value in call.items()}
        self._state = torch.get_rng_state()
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._devices = [torch.cuda.current_device()] if started else []
        self._device_states = [torch.cuda.get_rng_state(device) for device in self._devices]

    def first_step(self, pipe: Any) -> FirstStep:
        """The first step of the plain call, which ends there."""
        scheduler = scheduler_like(pipe, stopping_scheduler)
        plain = pipeline_with(pipe, scheduler)
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._state)
            for device, state in zip(self._devices, self._device_states, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                with freeing_hooks(plain):
                    plain(**self._call)
            except Abandoned:
                pass
        if scheduler.first is None:
            raise HostError(f"{type(pipe).__name__} never called its scheduler's step")
        found: FirstStep = scheduler.first
        return found


def check_same(name: str, driven: FirstStep, plain: FirstStep) -> None:
    """Refuse a pipeline whose driven call begins in another way than its plain one."""
    differ = [
        part
        for part, one, other in zip(FirstStep._fields, driven, plain, strict=True)
        if one.shape != other.shape or not torch.equal(one, other)
    ]
    if differ:
        raise HostError(
            f"{name} cannot be driven: held in its loop, its first step has another "
            f"{' and '.join(differ)} than in a plain call. Its loop is not what driving takes it "
            "for, or its results do not repeat"
        )


@functools.cache
def stopping_scheduler(parent: type) -> Any:
    """`parent` with a `step` that keeps the first step and ends the call there."""
    plain: Any = parent
    plain_step = plain.step

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        v, x = model_output.detach().clone(), sample.detach().clone()
        result = plain_step(self, model_output, timestep, sample, *args, **kwargs)
        self.first = FirstStep(x, v, result[0].detach().clone())
        raise Abandoned

    return subclass("Stopping", parent, {"first": None, "step": step})


def _copied(value: Any) -> Any:
    """An argument that may be used twice: generators go on from where they are now."""
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value.clone_state() if isinstance(value, torch.Generator) else value
