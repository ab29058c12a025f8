"""What is said of a picture or clip: its distance to a reference, and scores of its own."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.bench.records import Fidelity, Values
from tacache.decomposition import norm
from tacache.errors import HostError
from tacache.metrics import METRICS, Samples, measure

DEFAULT_METRICS = ("psnr", "ssim")
CPU = torch.device("cpu")
LIMIT = 999.0  # dB, of equal pictures: JSON has no infinity


class Result(NamedTuple):
    """What a run ended with: latents, and a picture (channels, height, width) or its frames."""

    latents: Tensor
    pixels: Tensor


def as_pixels(values: NDArray[np.float32]) -> Tensor:
    """What a pipeline returns, channels last, with channels before height and width."""
    return torch.from_numpy(np.ascontiguousarray(values)).movedim(-1, -3).contiguous()


def compare(
    reference: Result, made: Result, metrics: Sequence[str], device: torch.device = CPU
) -> Fidelity:
    """Drift of the latents, and those of the metrics that compare to a reference."""
    samples = Samples(_on(device, made.pixels), references=_on(device, reference.pixels))
    compared = [name for name in metrics if METRICS[name].needs == "references"]
    return Fidelity(
        drift=drift(reference.latents, made.latents), metrics=_values(compared, samples)
    )


def score(made: Result, prompt: str, metrics: Sequence[str], device: torch.device = CPU) -> Values:
    """Those of the metrics that need no reference."""
    samples = Samples(_on(device, made.pixels), prompts=[prompt])
    return _values([name for name in metrics if METRICS[name].needs != "references"], samples)


def drift(reference: Tensor, x: Tensor) -> float:
    """|x - reference| / |reference|, over all of a sample's elements."""
    wanted, found = reference.double()[None], x.double()[None]
    relative = float(norm(found - wanted) / norm(wanted))
    if not math.isfinite(relative):
        raise HostError("the result has values that are not finite")
    return relative


def _on(device: torch.device, pixels: Tensor) -> Tensor:
    """One sample where metrics run: networks of theirs are slow on a CPU; MPS lacks float64."""
    return pixels[None].to(device if device.type == "cuda" else CPU)


def _values(names: Sequence[str], samples: Samples) -> Values:
    """One number each; a metric that cannot run says why."""
    return {
        name: found if isinstance(found, str) else _number(found[0])
        for name, found in measure(names, samples).items()
    }


def _number(value: float) -> float | str:
    return "failed: it is not a number" if math.isnan(value) else max(-LIMIT, min(value, LIMIT))
