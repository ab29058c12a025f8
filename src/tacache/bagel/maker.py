"""How BAGEL's inferencer, or a function of the user's, makes a picture of a sample."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from tacache.bagel.host import replaced
from tacache.errors import HostError, unknown
from tacache.hosts import Pixels
from tacache.prompts import Sample

# generate(prompt, **call): a picture by the model, from torch's global generator
Generate = Callable[..., Any]
# arguments of `interleave_inference` that make no picture, or are ours to give
NOT_FOR_CALLS = {"input_lists", "understanding_output"}


class Maker(NamedTuple):
    """How a sample becomes a picture."""

    generate: Generate
    call: Mapping[str, Any]

    def __call__(self, sample: Sample) -> Any:
        """Make one call, from noise of the sample's seed."""
        with seeded(sample.seed):
            return self.generate(sample.prompt, **self.call)


def maker_of(host: Any, generate: Generate | None, call: Mapping[str, Any]) -> Maker:
    """Return the inferencer's own call, or the function given; check its arguments."""
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
            raise unknown(f"{type(host).__name__} takes no argument", name, taken)
    return Maker(lambda prompt, **options: host(text=prompt, **options), call)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators for the length of a `with` block; then they are as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet(model: Any) -> Iterator[None]:
    """Switch off the progress bar that BAGEL shows for each run."""
    module = sys.modules.get(type(model).__module__)
    shown = hasattr(module, "tqdm")
    with replaced(module, tqdm=lambda items, **_: items) if shown else nullcontext():
        yield


def pixels_of(output: Any) -> Pixels | None:
    """Return the picture of a call's output; None without one."""
    if isinstance(output, Mapping):
        output = output.get("image")
    if isinstance(output, list | tuple):
        output = output[0] if len(output) == 1 else None
    if not hasattr(output, "convert"):  # of PIL
        return None
    pixels: Pixels = np.asarray(output.convert("RGB"), dtype=np.float32) / np.float32(255)
    return pixels
