"""Calibration samples: their full-step runs, recorded once into files, and calls to try things on.

Every method is made ready on the same samples. Their seeds are apart from those that are judged, so
that no method has seen the noise it is judged with.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tacache.calibration import full_steps, measure
from tacache.errors import HostError
from tacache.lab.bench.records import TunedOn
from tacache.lab.bench.seam import Calls, SampleVelocity
from tacache.lab.bench.tries import KnownTries
from tacache.lab.methods import Recording
from tacache.profile import Profile
from tacache.prompts import Sample, fingerprint
from tacache.storage.atomic import writing
from tacache.velocity import Batch

FIRST_SEED = 1_000_000  # of calibration; the others count on
MEMORY = 2**30  # bytes of velocities that tuning remembers


class Walk(NamedTuple):
    """A full-step run of one sample: x_0 ... x_N and v_0 ... v_{N-1}, steps along dim 0."""

    states: Tensor
    velocities: Tensor


class Remembered:
    """velocity(x, t, sample=numbers) that evaluates no state twice.

    Tuning tries settings whose runs begin alike; what they share is evaluated once. Velocities are
    kept in the CPU's memory; beyond `limit` bytes the oldest is forgotten.
    """

    def __init__(
        self,
        velocity: Callable[[Tensor, float, Sequence[int]], Tensor],
        limit: int = MEMORY,
    ) -> None:
        self._velocity, self._limit = velocity, limit
        self._known: OrderedDict[tuple[int, float, bytes], Tensor] = OrderedDict()
        self._bytes = 0

    def __call__(self, x: Tensor, t: float, sample: Sequence[int]) -> Tensor:
        """The velocities of these samples."""
        rows = [self._row(x[k : k + 1], t, i) for k, i in enumerate(sample)]
        return torch.cat(rows)

    def remember(self, x: Tensor, t: float, number: int, v: Tensor) -> None:
        """Keep the velocity of a sample at a state."""
        key = (number, t, digest(x))
        self._known[key] = v.cpu()
        self._bytes += v.nbytes
        while self._bytes > self._limit:
            self._bytes -= self._known.popitem(last=False)[1].nbytes

    def _row(self, x: Tensor, t: float, number: int) -> Tensor:
        known = self._known.get((number, t, digest(x)))
        if known is not None:
            return known.to(x.device)
        v = self._velocity(x, t, [number])
        self.remember(x, t, number, v)
        return v


def digest(x: Tensor) -> bytes:
    """A hash of a tensor's values."""
    content = x.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class CalibrationSet:
    """The calibration prompts of one source.

    `tries` knows what a method's tuning has tried before it was stopped.
    """

    caller: Calls
    folder: Path
    source: str
    prompts: tuple[str, ...]
    tries: KnownTries = field(default_factory=KnownTries, compare=False)

    @property
    def subjects(self) -> list[Sample]:
        """Prompts with the seeds of their noise."""
        return [Sample(prompt, FIRST_SEED + i) for i, prompt in enumerate(self.prompts)]

    @property
    def prompts_sha256(self) -> str:
        """A hash of the prompts."""
        return fingerprint(self.prompts)

    @property
    def tuned_on(self) -> TunedOn:
        """What records say of these samples."""
        return TunedOn(
            source=self.source,
            samples=len(self.prompts),
            prompts_sha256=self.prompts_sha256,
            seconds=sum(_seconds(self._file(subject)) for subject in self.subjects),
        )

    def walk(self, number: int) -> Walk:
        """The full-step run of one sample."""
        return load_walk(self.caller, self.folder, self.subjects[number])

    @cached_property
    def profile(self) -> Profile:
        """The profile of these samples."""
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
            opened = SampleVelocity(self.caller, self.subjects, stack)
            velocity = Remembered(opened)
            for i, walk in enumerate(walks):
                for x, t, v in zip(walk.states, self.caller.times, walk.velocities, strict=False):
                    velocity.remember(x[None], t, i, v[None])
            yield Recording(
                velocity,
                states[0],
                self.caller.times,
                {"sample": list(range(len(walks)))},
                self.caller.grid,
                tuple(states),
                tuple(velocities),
                self.tries,
            )

    @property
    def outline(self) -> Recording:
        """The grids without any run, for methods that need no samples."""
        caller = self.caller
        return Recording(_unevaluated, torch.zeros(1, 1), caller.times, grid=caller.grid)

    def _file(self, subject: Sample) -> Path:
        return walk_file(self.caller, self.folder, subject)


def _unevaluated(x: Tensor, t: float) -> Tensor:
    raise HostError("a method that needs no calibration samples asked for a velocity")


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


def _seconds(file: Path) -> float:
    """How long a run took, without loading the rest of it."""
    from safetensors import safe_open

    with safe_open(file, "pt") as found:
        return float(found.get_tensor("seconds"))
