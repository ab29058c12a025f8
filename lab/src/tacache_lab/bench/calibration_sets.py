"""Calibration samples: their full-step runs, recorded once into files, and calls to try things on.

Every method is made ready on the same samples. Their seeds are apart from those that are judged, so
that no method has seen the noise it is judged with.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tacache.calibration import measure
from tacache.errors import HostError
from tacache.profile import Profile
from tacache.prompts import Sample, fingerprint
from tacache.storage.tensors import load_values
from tacache_lab.bench.flow_runs import load_flow, record_flow
from tacache_lab.bench.host_calls import Calls, Counted
from tacache_lab.bench.recorded_runs import (
    FullRun,
    full_run_file,
    load_full_run,
    record_full_run,
)
from tacache_lab.bench.records import TunedOn
from tacache_lab.bench.tuning_journal import TuningJournal
from tacache_lab.methods import RecordedProblem

FIRST_SEED = 1_000_000  # of calibration; the others count on
MEMORY = 2**30  # bytes of velocities that tuning remembers


class CalibrationVelocity:
    """velocity(x, t, sample=numbers) of some samples, which evaluates no state twice.

    Each sample has a call of its own, open until the stack is closed; off the grid of full steps,
    further calls are opened, one for each time, where they must be. Tuning tries settings whose
    runs begin alike: what they share is evaluated once. Velocities are kept in the CPU's memory;
    beyond `limit` bytes the oldest is forgotten.
    """

    def __init__(
        self, caller: Calls, subjects: Sequence[Sample], stack: ExitStack, limit: int = MEMORY
    ) -> None:
        self._caller, self._subjects, self._stack = caller, subjects, stack
        self._calls: dict[tuple[int, float | None], Counted] = {}
        self._known: OrderedDict[tuple[int, float, bytes], Tensor] = OrderedDict()
        self._limit, self._bytes = limit, 0

    def __call__(self, x: Tensor, t: float, sample: Sequence[int]) -> Tensor:
        """Return the velocities of these samples."""
        return torch.cat([self._row(x[k : k + 1], t, i) for k, i in enumerate(sample)])

    def remember(self, x: Tensor, t: float, number: int, v: Tensor) -> None:
        """Keep the velocity of a sample at a state."""
        self._known[number, t, digest(x)] = v.cpu()
        self._bytes += v.nbytes
        while self._bytes > self._limit:
            self._bytes -= self._known.popitem(last=False)[1].nbytes

    def _row(self, x: Tensor, t: float, number: int) -> Tensor:
        known = self._known.get((number, t, digest(x)))
        if known is not None:
            return known.to(x.device)
        v = self._call(number, t)(x, t)
        self.remember(x, t, number, v)
        return v

    def _call(self, number: int, t: float) -> Counted:
        """Return the open call that evaluates a sample at this time."""
        times = self._caller.times
        fits = self._caller.any_time or t in times[:-1]
        place = (number, None if fits else t)
        if place not in self._calls:
            # Two steps: Mochi cannot count to one.
            grid = None if fits else (t, (t + times[-1]) / 2, times[-1])
            opened = self._caller.open(self._subjects[number], grid)
            self._calls[place] = self._stack.enter_context(opened)
        return self._calls[place]


def digest(x: Tensor) -> bytes:
    """Return a hash of a tensor's values."""
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
    tries: TuningJournal = field(default_factory=TuningJournal, compare=False)

    @property
    def subjects(self) -> list[Sample]:
        """Return prompts with the seeds of their noise."""
        return [Sample(prompt, FIRST_SEED + i) for i, prompt in enumerate(self.prompts)]

    @property
    def prompts_sha256(self) -> str:
        """Return a hash of the prompts."""
        return fingerprint(self.prompts)

    @property
    def tuned_on(self) -> TunedOn:
        """Return what records say of these samples."""
        return TunedOn(
            source=self.source,
            samples=len(self.prompts),
            prompts_sha256=self.prompts_sha256,
            seconds=sum(load_values(self._file(subject))["seconds"] for subject in self.subjects),
        )

    def record(self, subject: Sample) -> None:
        """Run one of its samples with full steps, and along the flow where it is asked for."""
        record_full_run(self.caller, self.folder, subject)
        if self.flow is not None:
            record_flow(self.caller, self.folder, subject, self.flow)

    def end(self, number: int) -> Tensor:
        """Return where tuning wants a sample to end: with full steps, or with the flow."""
        if self.flow is None:
            return self.full_run(number).states[-1:]
        return self._along_flow(number)[-1:]

    def _along_flow(self, number: int) -> Tensor:
        assert self.flow is not None
        return load_flow(self.caller, self.folder, self.subjects[number], self.flow)

    def full_run(self, number: int) -> FullRun:
        """Return the full-step run of one sample."""
        return load_full_run(self.caller, self.folder, self.subjects[number])

    @cached_property
    def profile(self) -> Profile:
        """Return the profile of these samples."""
        caller = self.caller
        return Profile.merge(
            measure(
                self.full_run(i).velocities[:, None],
                caller.times,
                caller.host,
                caller.breaks,
                first_sample=i,
            )
            for i in range(len(self.prompts))
        )

    @contextmanager
    def recording(self) -> Iterator[RecordedProblem]:
        """Open all samples with their full-step runs, and a velocity to run others with."""
        full_runs = [self.full_run(i) for i in range(len(self.prompts))]
        states = torch.stack([full_run.states for full_run in full_runs], dim=1)
        velocities = torch.stack([full_run.velocities for full_run in full_runs], dim=1)
        aims: tuple[Tensor, ...] = ()
        if self.flow is not None:
            aims = tuple(torch.stack([self._along_flow(i) for i in range(len(full_runs))], dim=1))
        with ExitStack() as stack:
            velocity = CalibrationVelocity(self.caller, self.subjects, stack)
            for i, full_run in enumerate(full_runs):
                for x, t, v in zip(
                    full_run.states, self.caller.times, full_run.velocities, strict=False
                ):
                    velocity.remember(x[None], t, i, v[None])
            yield RecordedProblem(
                velocity,
                states[0],
                self.caller.times,
                {"sample": list(range(len(full_runs)))},
                self.caller.grid,
                tuple(states),
                tuple(velocities),
                self.tries,
                aims,
                self.most,
            )

    @property
    def outline(self) -> RecordedProblem:
        """Return the grids without any run, for methods that need no samples."""
        caller = self.caller
        return RecordedProblem(_unevaluated, torch.zeros(1, 1), caller.times, grid=caller.grid)

    def _file(self, subject: Sample) -> Path:
        return full_run_file(self.caller, self.folder, subject)


def _unevaluated(x: Tensor, t: float) -> Tensor:
    raise HostError("a method that needs no calibration samples asked for a velocity")
