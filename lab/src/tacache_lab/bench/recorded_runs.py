"""Full-step runs of samples, kept as files of tensors beside the results."""

import pickle
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.calibration import full_steps
from tacache.prompts import Sample
from tacache.storage.tensors import load_values, save_values
from tacache.velocity import Batch
from tacache_lab.bench.host_calls import Calls


class FullRun(NamedTuple):
    """A full-step run of one sample: x_0 ... x_N and v_0 ... v_{N-1}, steps along dim 0."""

    states: Tensor
    velocities: Tensor


def full_run_file(caller: Calls, folder: Path, subject: Sample) -> Path:
    """Return the file that holds the full-step run of a sample."""
    return folder / f"full-{caller.key(*subject)}.pt"


def load_full_run(caller: Calls, folder: Path, subject: Sample) -> FullRun:
    """Return the full-step run of a sample that was recorded."""
    values = load_values(full_run_file(caller, folder, subject))
    return FullRun(values["states"].to(caller.device), values["velocities"].to(caller.device))


def record_full_run(caller: Calls, folder: Path, subject: Sample) -> None:
    """Run a sample with full steps and keep the run, unless it is there and whole."""
    file = full_run_file(caller, folder, subject)
    if holds(file, "states", "velocities", "seconds"):
        return
    started = time.perf_counter()
    with torch.no_grad(), caller.open(subject) as velocity:
        noise = velocity.run.noise
        steps = list(full_steps(velocity, Batch(noise, {}), velocity.times))
        states, velocities = [noise, *(x for _, x in steps)], [v for v, _ in steps]
    seconds = time.perf_counter() - started
    tensors = {"states": torch.cat(states).cpu(), "velocities": torch.cat(velocities).cpu()}
    save_values(file, {**tensors, "seconds": seconds})


def holds(file: Path, *names: str) -> bool:
    """Return whether a file of these values is there; one that was cut short is not."""
    try:
        return file.is_file() and set(names) <= load_values(file).keys()
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return False
