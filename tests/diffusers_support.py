"""What the tests of the diffusers host share: runs, and velocities recorded and fed back.

Nothing here goes through the host under test, so that it can serve as an oracle: velocities are
recorded by a subclass of the pipeline's own scheduler class.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

from tacache import Plan, Profile, Stepper, make_plan
from tacache.diffusers import calibrate
from tacache.diffusers.derived import subclass
from tests.tiny import PIPELINES, Tiny
from tests.tiny.check import counted
from tests.tiny.entry import as_tensor

torch.set_num_threads(1)

STEPS = 12
EVALUATIONS = 6
REFUSED = ("sana-sprint", "sdxl", "skyreels-v2-df")
MODULAR = tuple(name for name in PIPELINES if name.startswith("modular-"))
SUPPORTED = tuple(name for name in PIPELINES if name not in (*REFUSED, *MODULAR))

# Per shape of latents, the velocities in the order of the steps: LTX2's sound has another shape.
Velocities = dict[tuple[int, ...], list[Tensor]]

__all__ = ["EVALUATIONS", "MODULAR", "REFUSED", "STEPS", "SUPPORTED", "counted"]


def call_of(tiny: Tiny, **changes: Any) -> dict[str, Any]:
    """The keyword arguments of a short run to latents from seed 0."""
    options = {
        "num_inference_steps": STEPS,
        "generator": torch.Generator().manual_seed(0),
        "output_type": tiny.latent_output,
    }
    return options | tiny.call() | changes


def run(tiny: Tiny, pipe: Any, **changes: Any) -> Tensor:
    """All outputs of a run as one vector: the latents, and LTX2's sound after them."""
    result = pipe(**call_of(tiny, **changes))
    parts = [as_tensor(value) for value in result.values() if value is not None]
    return torch.cat([part.flatten() for part in parts])


def latents(tiny: Tiny, pipe: Any, **changes: Any) -> Tensor:
    """The first output of a run, in its own shape."""
    return tiny.output(pipe(**call_of(tiny, **changes)))


def profile_of(tiny: Tiny, pipe: Any, **changes: Any) -> Profile:
    """The host's calibration on the tiny pipeline's own prompt and arguments."""
    call = {"num_inference_steps": STEPS} | tiny.call() | changes
    return calibrate(pipe, [call.pop("prompt")], **call)


def plan_of(tiny: Tiny, pipe: Any, evaluations: int = EVALUATIONS, **changes: Any) -> Plan:
    """A skipping plan of a fresh calibration."""
    return make_plan(profile_of(tiny, pipe, **changes), evaluations=evaluations)


@contextmanager
def recorded(pipe: Any) -> Iterator[Velocities]:
    """The velocities every run hands to its scheduler, copies of it included."""
    seen: Velocities = defaultdict(list)
    plain = pipe.scheduler

    def step(self: Any, model_output: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen[tuple(model_output.shape)].append(model_output.clone())
        return type(plain).step(self, model_output, *args, **kwargs)

    step.__signature__ = _signature(type(plain).step)
    pipe.scheduler = subclass("Watched", type(plain), {"step": step}).from_config(plain.config)
    try:
        yield seen
    finally:
        pipe.scheduler = plain


def _signature(function: Any) -> Any:
    import inspect

    return inspect.signature(function)


@contextmanager
def fed(velocities: Velocities) -> Iterator[list[int]]:
    """Recorded velocities in place of rebuilt ones; a list of the steps where that happened."""
    steps: list[int] = []

    def skip(stepper: Stepper, x: Tensor) -> Tensor:
        steps.append(stepper.step)
        return velocities[tuple(x.shape)][stepper.step].clone()

    with mock.patch.object(Stepper, "_skip", skip):
        yield steps


def fitted(times: tuple[float, ...], anchors: tuple[int, ...], **fields: Any) -> Plan:
    """A fitted plan made by hand: it extrapolates a little."""
    rows = [(1.0,), (1.25, -0.25), *[(1.5, -0.75, 0.25)] * len(anchors)]
    return Plan(
        rule="fitted", times=times, anchors=anchors, weights=tuple(rows[: len(anchors)]), **fields
    )
