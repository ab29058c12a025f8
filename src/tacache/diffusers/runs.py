"""One calibration as a list of runs: which prompts and seeds go into each call of the pipeline."""

import difflib
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tacache.errors import HostError
from tacache.prompts import check_seeds


class Run(NamedTuple):
    """One call of the pipeline: its prompts (None where the call brings embeddings) and seeds."""

    prompts: tuple[str, ...] | None
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        what = "the given embeddings" if self.prompts is None else " | ".join(self.prompts)
        return f"{what!r} with seed {', '.join(map(str, self.seeds))}"


def plan_runs(prompts: Sequence[str] | None, seeds: Sequence[int], batch_size: int) -> list[Run]:
    """Every prompt with every seed, `batch_size` samples a call."""
    check_seeds(seeds)
    if prompts is None:
        return [Run(None, (seed,)) for seed in seeds]
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    return [
        Run(*zip(*pairs[start : start + batch_size], strict=True))
        for start in range(0, len(pairs), batch_size)
    ]


def run_arguments(run: Run, call: dict[str, Any]) -> dict[str, Any]:
    """The pipeline's keyword arguments for one run; one generator a sample.

    Noise is drawn on the CPU, so that a seed gives the same on every machine and device.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in run.seeds]
    arguments = {**call, "generator": generators if len(generators) > 1 else generators[0]}
    if run.prompts is not None:
        arguments["prompt"] = list(run.prompts) if len(run.prompts) > 1 else run.prompts[0]
    return arguments


def check_call_names(pipe: Any, call: dict[str, Any]) -> None:
    """A misspelt or foreign argument stops before the first long run."""
    known = inspect.signature(type(pipe).__call__).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in call:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise HostError(
                f"{type(pipe).__name__} has no argument {name!r}"
                + (f" (meant {close[0]!r}?)" if close else "")
            )
