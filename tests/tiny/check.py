"""Builds and runs every tiny pipeline: `python -m tests.tiny.check [name ...]`."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tests.tiny import PIPELINES, Tiny

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

STEPS = 5
CLOCK_NAMES = ("timestep", "timesteps", "t")


@dataclass(frozen=True)
class Verdict:
    """What one pipeline did; the flags must all be true."""

    name: str
    build_seconds: float
    run_seconds: float
    calls: int
    scheduler: str
    flags: dict[str, bool]

    def __str__(self) -> str:
        failed = [flag for flag, holds in self.flags.items() if not holds]
        return (
            f"{self.name:18} build {self.build_seconds:5.2f} s  run {self.run_seconds:5.2f} s  "
            f"calls {self.calls:3}  {self.scheduler:34} "
            + (f"FAILED: {', '.join(failed)}" if failed else "ok")
        )


@contextmanager
def counted(pipe: DiffusionPipeline, denoisers: tuple[str, ...]) -> Iterator[list[nn.Module]]:
    """A list that grows by one at every forward call of a denoiser."""
    calls: list[nn.Module] = []
    modules = [getattr(pipe, name) for name in denoisers]
    handles = [
        module.register_forward_hook(lambda called, *_: calls.append(called)) for module in modules
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def frozen(pipe: DiffusionPipeline, denoisers: tuple[str, ...]) -> Iterator[None]:
    """Denoisers whose output is always that of their first call."""
    outputs: dict[nn.Module, Any] = {}
    handles = [
        getattr(pipe, name).register_forward_hook(
            lambda module, _, output: outputs.setdefault(module, output)
        )
        for name in denoisers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(tiny: Tiny, pipe: DiffusionPipeline, **overrides: Any) -> Tensor:
    """Five steps to latents, from seed 0 unless told otherwise."""
    options = {
        "num_inference_steps": STEPS,
        "generator": torch.Generator().manual_seed(0),
        "output_type": tiny.latent_output,
    }
    return tiny.output(pipe(**options | tiny.call() | overrides))


def depends_on_time(tiny: Tiny, pipe: DiffusionPipeline) -> bool:
    """Whether a denoiser's answer to one recorded call changes with the time alone."""
    module = getattr(pipe, tiny.denoisers[0])
    recorded: list[inspect.BoundArguments] = []

    def record(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        recorded.append(inspect.signature(module.forward).bind(*args, **kwargs))

    handle = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        run(tiny, pipe)
    finally:
        handle.remove()
    call = recorded[-1]  # the first may be at time zero
    now = answer(module, call)
    clock = next(name for name in CLOCK_NAMES if name in call.arguments)
    call.arguments[clock] = call.arguments[clock] / 2
    return not torch.equal(now, answer(module, call))


@torch.no_grad()
def answer(module: nn.Module, call: inspect.BoundArguments) -> Tensor:
    """A denoiser's velocity for recorded arguments."""
    result = module(*call.args, **call.kwargs)[0]
    return result[0] if isinstance(result, list | tuple) else result


def check(tiny: Tiny) -> Verdict:
    """Runs one pipeline and its second build, and compares."""
    start = time.perf_counter()
    pipe = tiny.build()
    built = time.perf_counter()
    with counted(pipe, tiny.denoisers) as calls:
        first = run(tiny, pipe)
    ran = time.perf_counter()
    flags = {
        "repeats": torch.equal(first, run(tiny, pipe)),
        "rebuilds": torch.equal(first, run(tiny, tiny.build())),
        "finite": bool(first.isfinite().all()),
        "varies": float(first.float().std()) > 0.01,
        "calls": len(calls) == STEPS * tiny.calls_per_step,
        "every denoiser": {getattr(pipe, name) for name in tiny.denoisers} == set(calls),
        "prompt": not torch.equal(first, run(tiny, pipe, prompt="two blue birds")),
        "time": depends_on_time(tiny, pipe),
    }
    return Verdict(
        name=tiny.name,
        build_seconds=built - start,
        run_seconds=ran - built,
        calls=len(calls),
        scheduler=type(pipe.scheduler).__name__,
        flags=flags,
    )


def main(names: list[str]) -> int:
    """Prints a line per pipeline; the exit status is the number that failed."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    failures = 0
    for name in names or PIPELINES:
        verdict = check(PIPELINES[name])
        print(verdict, flush=True)
        failures += not all(verdict.flags.values())
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
