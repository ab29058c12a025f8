"""Calibration samples: their full-step runs, recorded once into files, and calls to try things on.

Every method is made ready on the same samples. Their seeds are apart from those that are judged, so
that no method has seen the noise it is judged with.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tacache.calibration import measure
from tacache.errors import HostError
from tacache.lab.bench.flow_runs import load_flow, record_flow
from tacache.lab.bench.records import TunedOn
from tacache.lab.bench.seam import Calls, SampleVelocity
from tacache.lab.bench.tries import KnownTries
from tacache.lab.bench.walks import Walk, load_walk, record_walk, seconds_of, walk_file
from tacache.lab.methods import Recording
from tacache.profile import Profile
from tacache.prompts import Sample, fingerprint

FIRST_SEED = 1_000_000  # of calibration; the others count on
MEMORY = 2**30  # bytes of velocities that tuning remembers


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

    `flow` is the number of steps of the runs that stand for the flow, where methods are tuned to
    end near it and not near full steps. `most` is how many settings of a rival are tried, where not
    all are. `tries` knows what a method's tuning has tried before it was stopped.
    """

    caller: Calls
    folder: Path
    source: str
    prompts: tuple[str, ...]
    flow: int | None = None
    most: int | None = None
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
            seconds=sum(seconds_of(self._file(subject)) for subject in self.subjects),
        )

    def record(self, subject: Sample) -> None:
        """Run one of its samples with full steps, and along the flow where it is asked for."""
        record_walk(self.caller, self.folder, subject)
        if self.flow is not None:
            record_flow(self.caller, self.folder, subject, self.flow)

    def end(self, number: int) -> Tensor:
        """Where tuning wants a sample to end: with full steps, or with the flow."""
        if self.flow is None:
            return self.walk(number).states[-1:]
        return self._along_flow(number)[-1:]

    def _along_flow(self, number: int) -> Tensor:
        assert self.flow is not None
        return load_flow(self.caller, self.folder, self.subjects[number], self.flow)

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
        aims: tuple[Tensor, ...] = ()
        if self.flow is not None:
            aims = tuple(torch.stack([self._along_flow(i) for i in range(len(walks))], dim=1))
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
                aims,
                self.most,
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
