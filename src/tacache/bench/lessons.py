"""Calibration samples: their full-step runs, recorded once into files, and calls to try things on.

Every method is made ready on the same samples. Their seeds are apart from those that are judged, so
that no method has seen the noise it is judged with.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.baselines import Recording
from tacache.bench.calls import Caller, SampleVelocity, Subject
from tacache.bench.records import Taught
from tacache.calibration import measure
from tacache.profile import Profile
from tacache.prompts import fingerprint
from tacache.velocity import euler

FIRST_SEED = 1_000_000  # of calibration; the others count on


class Walk(NamedTuple):
    """A full-step run of one sample: x_0 ... x_N and v_0 ... v_{N-1}, steps along dim 0."""

    states: Tensor
    velocities: Tensor


@dataclass(frozen=True)
class Lesson:
    """Some prompts of a source, to make methods ready on."""

    caller: Caller
    folder: Path
    source: str
    prompts: tuple[str, ...]

    @property
    def subjects(self) -> list[Subject]:
        """Prompts with the seeds of their noise."""
        return [Subject(prompt, FIRST_SEED + i) for i, prompt in enumerate(self.prompts)]

    @property
    def prompts_sha256(self) -> str:
        """A hash of its prompts."""
        return fingerprint(self.prompts)

    @property
    def taught(self) -> Taught:
        """What records say of it."""
        return Taught(
            source=self.source,
            samples=len(self.prompts),
            prompts_sha256=self.prompts_sha256,
            seconds=sum(_seconds(self._file(subject)) for subject in self.subjects),
        )

    def walk(self, number: int) -> Walk:
        """The full-step run of one sample."""
        from safetensors.torch import load_file

        found = load_file(self._file(self.subjects[number]))
        device = self.caller.device
        return Walk(found["states"].to(device), found["velocities"].to(device))

    @cached_property
    def profile(self) -> Profile:
        """What the paper measures of these samples."""
        caller = self.caller
        return Profile.merge(
            measure(
                self.walk(i).velocities[:, None],
                caller.times,
                caller.host,
                caller.breaks,
                first_sample=i,
            )
            for i in range(len(self.prompts))
        )

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """All samples with their full-step runs, and a velocity function to run others with."""
        walks = [self.walk(i) for i in range(len(self.prompts))]
        states = torch.stack([walk.states for walk in walks], dim=1)
        velocities = torch.stack([walk.velocities for walk in walks], dim=1)
        with ExitStack() as stack:
            yield Recording(
                SampleVelocity(self.caller, self.subjects, stack),
                states[0],
                self.caller.times,
                {"sample": list(range(len(walks)))},
                self.caller.grid,
                tuple(states),
                tuple(velocities),
            )

    def _file(self, subject: Subject) -> Path:
        return walk_file(self.caller, self.folder, subject)


def walk_file(caller: Caller, folder: Path, subject: Subject) -> Path:
    """Where the full-step run of a sample is kept."""
    return folder / f"full-{caller.key(*subject)}.safetensors"


def record_walk(caller: Caller, folder: Path, subject: Subject) -> None:
    """Run a sample with full steps and keep the run, unless it is there."""
    if walk_file(caller, folder, subject).exists():
        return
    started = time.perf_counter()
    with torch.no_grad(), caller.open(subject) as velocity:
        states, velocities = [velocity.run.noise], []
        for t, t_next in pairwise(velocity.times):
            velocities.append(velocity(states[-1], t))
            states.append(euler(states[-1], velocities[-1], t, t_next))
    save_tensors(
        walk_file(caller, folder, subject),
        {
            "states": torch.cat(states),
            "velocities": torch.cat(velocities),
            "seconds": torch.tensor(time.perf_counter() - started, dtype=torch.float64),
        },
    )


def save_tensors(target: Path, tensors: dict[str, Tensor]) -> None:
    """A file of tensors, complete or not there."""
    from safetensors.torch import save_file

    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _seconds(file: Path) -> float:
    """How long a run took, without loading the rest of it."""
    from safetensors import safe_open

    with safe_open(file, "pt") as found:
        return float(found.get_tensor("seconds"))
