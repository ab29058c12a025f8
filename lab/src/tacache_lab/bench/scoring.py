"""How a picture or clip compares to a reference, and the scores it has without one."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.errors import HostError
from tacache.fidelity import capped
from tacache.models import shipped
from tacache.tasu import relative_distance
from tacache_lab.bench.records import Fidelity, Values
from tacache_lab.following import Item
from tacache_lab.picture_metrics import METRICS, Samples, measure

DEFAULT_METRICS = ("psnr", "ssim")
CPU = torch.device("cpu")


class Result(NamedTuple):
    """What a run ended with: latents, and a picture (channels, height, width) or its frames."""

    latents: Tensor
    pixels: Tensor


def as_pixels(values: NDArray[np.float32]) -> Tensor:
    """Return what a pipeline returns, channels last, with channels before height and width."""
    return torch.from_numpy(np.ascontiguousarray(values)).movedim(-1, -3).contiguous()


def compare(
    reference: Result, result: Result, metrics: Sequence[str], device: torch.device = CPU
) -> Fidelity:
    """Return drift of the latents, and those of the metrics that compare to a reference."""
    samples = Samples(_on(device, result.pixels), references=_on(device, reference.pixels))
    compared = [name for name in metrics if METRICS[name].needs == "references"]
    return Fidelity(
        drift=drift(reference.latents, result.latents), metrics=_values(compared, samples)
    )


def score(
    result: Result,
    prompt: str,
    metrics: Sequence[str],
    device: torch.device = CPU,
    *,
    answer: Item | None = None,
    model: str | None = None,
) -> Values:
    """Return the metrics that need no reference; `answer` says what the prompt asks for."""
    samples = Samples(
        _on(device, result.pixels),
        prompts=[prompt],
        answers=None if answer is None else [answer],
        detector=detector_of(model),
    )
    return _values([name for name in metrics if METRICS[name].needs != "references"], samples)


def detector_of(model: str | None) -> Path | None:
    """Return the detector that ships for a model's pictures, where one does."""
    facts = shipped().get(model or "")
    return facts.detector if facts and facts.detector.is_file() else None


def drift(reference: Tensor, x: Tensor) -> float:
    """Return |x - reference| / |reference|, over all of a sample's elements."""
    distance = float(relative_distance(x[None], reference[None]))
    if not math.isfinite(distance):
        raise HostError("the result has values that are not finite")
    return distance


def _on(device: torch.device, pixels: Tensor) -> Tensor:
    """Move one sample to where metrics run: CUDA for their networks; MPS lacks float64."""
    return pixels[None].to(device if device.type == "cuda" else CPU)


def _values(names: Sequence[str], samples: Samples) -> Values:
    """Return one number each, and one of the sample's kind where it has one."""
    values: Values = {}
    for name, numbers in measure(names, samples).items():
        values[name] = numbers if isinstance(numbers, str) else _number(numbers[0])
        if not isinstance(numbers, str):
            kinds = METRICS[name].kinds_of(samples)
            values |= {f"{name}/{kind}": values[name] for kind in kinds}
    return values


def _number(value: float) -> float | str:
    return "failed: it is not a number" if math.isnan(value) else capped(value)
