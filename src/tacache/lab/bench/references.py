"""What the result of a method is compared with, made in this process or read from its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tacache.lab.bench.scoring import Result


class References(NamedTuple):
    """Results to compare with, and the noise that every method must start from."""

    full: Result
    fine: Result | None
    noise_sha256: str
    seconds: float | None = None  # of full steps, where this process has timed them


def load_result(file: Path) -> Result:
    """Read a reference from its file."""
    from safetensors.torch import load_file

    found = load_file(file)
    return Result(found["latents"], found["pixels"])


def references_of(
    results: Sequence[Result], noise_sha256: str, seconds: float | None
) -> References:
    """What there is to compare with: the full-step result, and the fine one where it is there."""
    return References(results[0], results[1] if len(results) > 1 else None, noise_sha256, seconds)
