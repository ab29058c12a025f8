"""Prompt following: whether pictures show what their prompts ask for, in the manner of GenEval."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tacache.errors import HostError
from tacache.fidelity import check_pictures
from tacache.lab.following import Detector, Item, judge, load_detector


def following(image: Tensor, answers: Sequence[Item], detector: Path | None) -> Tensor:
    """1 where a picture shows all that its prompt asks for, else 0, by a detector's file."""
    check_pictures("Prompt following", image)
    if detector is None:
        raise HostError("no detector knows this model's pictures: one ships for tiny-flux")
    verdicts = judge(_loaded(detector), image.float().clamp(0, 1), answers)
    return torch.tensor([float(right) for _, right in verdicts])


@cache
def _loaded(detector: Path) -> Detector:
    """A detector, read once a process."""
    return load_detector(detector)
