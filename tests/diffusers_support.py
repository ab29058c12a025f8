"""What the tests of the diffusers host share: runs, and velocities recorded and fed back.

Nothing here goes through the host under test, so that it can serve as an oracle: velocities are
recorded by a subclass of the pipeline's own scheduler class.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tests.forked import run_two_ranks
from tests.tiny import PIPELINES, Tiny
from tests.tiny.counting import counted
from tests.tiny.entry import as_tensor
from torch import Tensor

from tacache import Plan, Profile, Stepper, make_plan
from tacache.diffusers import calibrate

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
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
        **({"num_inference_steps": STEPS} if tiny.takes_steps else {}),
        "generator": torch.Generator().manual_seed(0),
        "output_type": tiny.latent_output,
    }
    return options | tiny.call() | changes


def in_two_processes(folder: Path, script: str) -> tuple[int, list[Any]]:
    """Run a script as two ranks; return the worse exit code, and what each rank has written."""
    return _answers(folder, *run_two_ranks(script, folder))


def under_torchrun(folder: Path, script: str, timeout: float = 90) -> tuple[int, list[Any]]:
    """Do the same under torchrun itself, in processes that have imported nothing."""
    (folder / "script.py").write_text(script)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, folder / "script.py", folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return _answers(folder, done.returncode, done.stderr)


def _answers(folder: Path, code: int, error: str) -> tuple[int, list[Any]]:
    files = [folder / f"{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), error
    return code, [json.loads(file.read_text()) for file in files]


def run(tiny: Tiny, pipe: Any, **changes: Any) -> Tensor:
    """All outputs of a run as one vector: the latents, and LTX2's sound after them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some pipelines draw the latents of a control picture without one
        result = pipe(**call_of(tiny, **changes))
    parts = [as_tensor(value) for value in result.values() if value is not None]
    return torch.cat([part.flatten() for part in parts])


def latents(tiny: Tiny, pipe: Any, **changes: Any) -> Tensor:
    """The first output of a run, in its own shape."""
    return tiny.output(pipe(**call_of(tiny, **changes)))


def profile_of(tiny: Tiny, pipe: Any, **changes: Any) -> Profile:
    """The host's calibration on the tiny pipeline's own prompt and arguments."""
    call = {"num_inference_steps": STEPS} | tiny.call() | changes
    prompt = call.pop("prompt", None)  # else the call brings embeddings
    return calibrate(pipe, None if prompt is None else [prompt], **call)


def plan_of(tiny: Tiny, pipe: Any, evaluations: int = EVALUATIONS, **changes: Any) -> Plan:
    """A skipping plan of a fresh calibration."""
    return make_plan(profile_of(tiny, pipe, **changes), evaluations=evaluations)


@contextmanager
def recorded(pipe: Any) -> Iterator[Velocities]:
    """The velocities every run hands to its scheduler, copies of it included."""
    seen: Velocities = defaultdict(list)
    parts = {name: getattr(pipe, name, None) for name in ("scheduler", "audio_scheduler")}
    plain = {name: part for name, part in parts.items() if part is not None}
    for name, scheduler in plain.items():
        setattr(pipe, name, _watched(scheduler, seen))
    try:
        yield seen
    finally:
        for name, scheduler in plain.items():
            setattr(pipe, name, scheduler)


def _watched(plain: Any, seen: Velocities) -> Any:
    """A scheduler like this one that notes the velocities it is handed."""

    def step(self: Any, model_output: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen[tuple(model_output.shape)].append(model_output.clone())
        return type(plain).step(self, model_output, *args, **kwargs)

    step.__signature__ = _signature(type(plain).step)
    members: dict[str, Any] = {"step": step}
    if not hasattr(plain, "scale_model_input"):  # Bria calls it on every class but the plain one
        members["scale_model_input"] = lambda self, sample, *_, **__: sample
    watched: Any = type(f"Watched{type(plain).__name__}", (type(plain),), members)
    return watched.from_config(plain.config)


def _signature(function: Any) -> Any:
    import inspect

    return inspect.signature(function)


@contextmanager
def fed(velocities: Velocities) -> Iterator[list[int]]:
    """Recorded velocities in place of rebuilt ones; a list of the steps where that happened."""
    steps: list[int] = []
    jump_as_planned = Stepper.jump

    def skip(stepper: Stepper, x: Tensor) -> Tensor:
        steps.append(stepper.step)
        return velocities[tuple(x.shape)][stepper.step].clone()

    def jump(stepper: Stepper, x: Tensor, evaluate: Callable[[], Tensor]) -> Tensor:
        anchor = stepper.step
        jump_as_planned(stepper, x, evaluate)
        steps.extend(range(anchor + 1, stepper.step))
        spans = -torch.tensor(stepper.plan.times).diff()[anchor : stepper.step]
        known = torch.stack(velocities[tuple(x.shape)][anchor : stepper.step], dim=-1)
        return known @ (spans / spans.sum())

    with mock.patch.object(Stepper, "_skip", skip), mock.patch.object(Stepper, "jump", jump):
        yield steps


def fitted(times: tuple[float, ...], anchors: tuple[int, ...], **fields: Any) -> Plan:
    """A fitted plan made by hand: it extrapolates a little."""
    rows = [(1.0,), (1.25, -0.25), *[(1.5, -0.75, 0.25)] * len(anchors)]
    return Plan(
        rule="fitted", times=times, anchors=anchors, weights=tuple(rows[: len(anchors)]), **fields
    )
