"""Full-step runs of samples, kept as files of tensors beside the results."""

import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.calibration import full_steps
from tacache.lab.bench.seam import Calls
from tacache.prompts import Sample
from tacache.storage.atomic import writing
from tacache.velocity import Batch


class Walk(NamedTuple):
    """A full-step run of one sample: x_0 ... x_N and v_0 ... v_{N-1}, steps along dim 0."""

    states: Tensor
    velocities: Tensor


def walk_file(caller: Calls, folder: Path, subject: Sample) -> Path:
    """The file that holds the full-step run of a sample."""
    return folder / f"full-{caller.key(*subject)}.safetensors"


def load_walk(caller: Calls, folder: Path, subject: Sample) -> Walk:
    """The full-step run of a sample that was recorded."""
    from safetensors.torch import load_file

    found = load_file(walk_file(caller, folder, subject))
    return Walk(found["states"].to(caller.device), found["velocities"].to(caller.device))


def record_walk(caller: Calls, folder: Path, subject: Sample) -> None:
    """Run a sample with full steps and keep the run, unless it is there and whole."""
    if holds(walk_file(caller, folder, subject), "states", "velocities", "seconds"):
        return
    started = time.perf_counter()
    with torch.no_grad(), caller.open(subject) as velocity:
        noise = velocity.run.noise
        steps = list(full_steps(velocity, Batch(noise, {}), velocity.times))
        states, velocities = [noise, *(x for _, x in steps)], [v for v, _ in steps]
    save_tensors(
        walk_file(caller, folder, subject),
        {
            "states": torch.cat(states),
            "velocities": torch.cat(velocities),
            "seconds": torch.tensor(time.perf_counter() - started, dtype=torch.float64),
        },
    )


def save_tensors(target: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file of tensors; a write that is stopped leaves no file."""
    from safetensors.torch import save

    content = save({name: value.cpu().contiguous() for name, value in tensors.items()})
    with writing(target) as draft:
        draft.write_bytes(content)


def holds(file: Path, *names: str) -> bool:
    """Whether a file of these tensors is there; one that was cut short or damaged is not."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as found:
            return set(names) <= set(found.keys())
    except (OSError, SafetensorError):
        return False


def seconds_of(file: Path) -> float:
    """How long a run took, without loading the rest of it."""
    from safetensors import safe_open

    with safe_open(file, "pt") as found:
        return float(found.get_tensor("seconds"))
