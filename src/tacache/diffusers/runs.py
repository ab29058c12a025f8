"""One calibration as a list of runs: which prompts and seeds go into each call of the pipeline."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Run(NamedTuple):
    """One call of the pipeline: its prompts (None where the call brings embeddings) and seeds."""

    prompts: tuple[str, ...] | None
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        what = "the given embeddings" if self.prompts is None else " | ".join(self.prompts)
        return f"{what!r} with seed {', '.join(map(str, self.seeds))}"


def plan_runs(prompts: Sequence[str] | None, seeds: Sequence[int], batch_size: int) -> list[Run]:
    """Every prompt with every seed, `batch_size` samples a call."""
    if prompts is None:
        return [Run(None, (seed,)) for seed in seeds]
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    return [
        Run(*zip(*pairs[start : start + batch_size], strict=True))
        for start in range(0, len(pairs), batch_size)
    ]


def run_arguments(run: Run, call: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The pipeline's keyword arguments for one run; one generator a sample."""
    generators = [torch.Generator(_generator_device(device)).manual_seed(s) for s in run.seeds]
    arguments = {**call, "generator": generators if len(generators) > 1 else generators[0]}
    if run.prompts is not None:
        arguments["prompt"] = list(run.prompts) if len(run.prompts) > 1 else run.prompts[0]
    return arguments


def _generator_device(device: torch.device) -> str:
    """Noise drawn on the CPU is the same on every machine."""
    return "cpu" if device.type in ("cpu", "mps", "meta") else device.type
