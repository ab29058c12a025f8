"""Pictures of prompts, made by BAGEL's inferencer or by a function of the user's."""

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacache.bagel.host import replaced
from tacache.errors import HostError
from tacache.prompts import check_seeds

# generate(prompt, **call): a picture by the model, from torch's global generator
Generate = Callable[..., Any]
# arguments of `interleave_inference` that make no picture, or are ours to give
NOT_FOR_CALLS = {"input_lists", "understanding_output"}


class Job(NamedTuple):
    """One call: a prompt and a seed."""

    prompt: str
    seed: int

    def __str__(self) -> str:
        return f"{self.prompt!r} with seed {self.seed}"


class Maker(NamedTuple):
    """How a job becomes a picture."""

    generate: Generate
    call: Mapping[str, Any]

    def __call__(self, job: Job) -> Any:
        """The output of one call, from noise of the job's seed."""
        with seeded(job.seed):
            return self.generate(job.prompt, **self.call)


def jobs_of(prompts: Sequence[str], seeds: Sequence[int] | None) -> list[Job]:
    """Every prompt with every seed, [0] without any."""
    check_seeds(seeds or [])
    return [Job(prompt, seed) for prompt in prompts for seed in (seeds or [0])]


def maker_of(host: Any, generate: Generate | None, call: Mapping[str, Any]) -> Maker:
    """The inferencer's own call, or the function given; a misspelt argument is an error."""
    if generate is not None:
        return Maker(generate, call)
    if not hasattr(host, "interleave_inference"):
        raise HostError(
            "a Bagel alone makes no picture of a prompt: give its InterleaveInferencer, or "
            "generate=..., a function of a prompt that calls the model"
        )
    taken = {"image", *inspect.signature(host.interleave_inference).parameters} - NOT_FOR_CALLS
    for name in call:
        if name not in taken:
            close = difflib.get_close_matches(name, taken, n=1)
            raise HostError(
                f"{type(host).__name__} takes no argument {name!r} here"
                + (f" (meant {close[0]!r}?)" if close else "")
            )
    return Maker(lambda prompt, **options: host(text=prompt, **options), call)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's generators at a seed for the length of a `with` block, then as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet(model: Any) -> Iterator[None]:
    """No progress bar of BAGEL's own, one a run."""
    module = sys.modules.get(type(model).__module__)
    shown = hasattr(module, "tqdm")
    with replaced(module, tqdm=lambda items, **_: items) if shown else nullcontext():
        yield


def pixels_of(output: Any) -> Tensor | None:
    """The picture of a call's output in [0, 1], (1, height, width, channels); None without one."""
    if isinstance(output, Mapping):
        output = output.get("image")
    if isinstance(output, list | tuple):
        output = output[0] if len(output) == 1 else None
    if not hasattr(output, "convert"):  # of PIL
        return None
    return torch.from_numpy(np.asarray(output.convert("RGB"), dtype=np.float32) / 255)[None]
