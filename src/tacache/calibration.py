"""Calibration: full-step runs, measured into a profile while they are made."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from tacache.errors import ProfileError
from tacache.grid import step_lengths
from tacache.profile import Profile, profile_times
from tacache.storage.finished import FinishedRuns
from tacache.storage.origin import Origin
from tacache.tasu import indicators, norm
from tacache.velocity import Batch, Condition, Velocity, batches, check_velocity, euler
from tacache.work.processes import ALONE, Processes
from tacache.work.progress import track

Item = TypeVar("Item")


@torch.no_grad()
def calibrate(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    condition: Condition | None = None,
    batch_size: int | None = None,
    breaks: Sequence[float] = (),
    progress: bool = False,
) -> Profile:
    """Measure a profile on full-step Euler runs from `noise` (samples along dim 0).

    Only two velocities of one batch are held at a time. `condition={"label": y}` is sliced along
    dim 0 with the samples and passed on as `velocity(x, t, label=...)`. If the samples do not fit
    in one tensor, calibrate on parts and `Profile.merge` them: the result is the same. `breaks` are
    times below which another model or guidance takes over.

    Args:
        velocity: The guided velocity, `velocity(x, t, **condition)`.
        noise: The states that the samples start from, along dim 0.
        times: The noise levels of the full run, N + 1 numbers.
        condition: What belongs to each sample, by the names of `velocity`'s arguments.
        batch_size: How many samples one call of `velocity` gets at most.
        breaks: Noise levels below which another expert or guidance takes over.
        progress: Whether to show a progress bar.

    Returns:
        The profile of these runs.

    Raises:
        ProfileError: If a velocity is not finite, or not of its state's shape.

    """
    grid = profile_times(times)
    origin = Origin(
        latent_shape=tuple(noise.shape[1:]), dtype=str(noise.dtype).removeprefix("torch.")
    )
    parts = list(batches(noise, condition, batch_size))

    def measured(number: int, batch: Batch) -> Profile:
        seen = sum(len(part.noise) for part in parts[:number])
        velocities = (v for v, _ in full_steps(velocity, batch, grid))
        return measure(velocities, grid, origin, breaks, first_sample=seen)

    return measure_all(parts, measured, progress=progress)


def measure_all(
    runs: Sequence[Item],
    measured: Callable[[int, Item], Profile],
    *,
    finished: FinishedRuns | None = None,
    processes: Processes = ALONE,
    progress: bool = False,
) -> Profile:
    """Return the profile of all runs together; `measured(number, run)` returns that of one of them.

    Several processes share the runs out, and each gets the whole profile. Runs that are `finished`
    are not made again.
    """
    mine = range(processes.rank, len(runs), processes.count)
    known = finished.load() if finished is not None else {}
    done = {i: profile for i, profile in known.items() if i in mine}
    with processes.failing_together() as together:
        for i in track(mine, "calibrating", progress and processes.rank == 0):
            if i not in done:
                done[i] = measured(i, runs[i])
                if finished is not None:
                    finished.add(i, done[i])
    profiles = together.gathered(done)
    return Profile.merge(profiles[i] for i in sorted(profiles))


def full_steps(
    velocity: Velocity, batch: Batch, times: tuple[float, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the velocity of each step of a batch's full Euler run (eq. 1), and the next state."""
    x = batch.noise
    for t, t_next in pairwise(times):
        v = check_velocity(velocity(x, t, **batch.condition), x)
        x = euler(x, v, t, t_next)
        yield v, x


def measure(
    velocities: Iterable[Tensor],
    times: tuple[float, ...],
    origin: Origin,
    breaks: Sequence[float] = (),
    first_sample: int = 0,
) -> Profile:
    """Return the profile of one batch from its velocities in order; two are in memory at a time."""
    recorder = Recorder(times, first_sample)
    for v in velocities:
        recorder.add(v)
    return recorder.profile(origin, breaks)


class Recorder:
    """Measures k and d of each step of a full run while its velocities come in, one by one."""

    def __init__(self, times: tuple[float, ...], first_sample: int = 0) -> None:
        self.times, self.seen = times, 0
        self.latest: Tensor | None = None
        self._first_sample = first_sample
        self._magnitude: list[list[float]] = []
        self._direction: list[list[float]] = []

    def add(self, v: Tensor) -> None:
        """Take in the velocity of the next step."""
        last = self.seen == len(self.times) - 2
        check_measurable(v, self.seen, last=last, first_sample=self._first_sample)
        if self.latest is not None:
            k, d = indicators(self.latest, v, step_lengths(self.times)[self.seen - 1])
            self._magnitude.append(k)
            self._direction.append(d)
        self.latest = v.clone()  # the model may write its next velocity into the same memory
        self.seen += 1

    def profile(self, origin: Origin, breaks: Sequence[float] = ()) -> Profile:
        """Return the profile of the run, once it is over."""
        if self.seen != len(self.times) - 1:
            raise ProfileError(f"{len(self.times) - 1} steps gave {self.seen} velocities")
        return Profile.from_samples(self.times, self._magnitude, self._direction, origin, breaks)


def check_measurable(v: Tensor, step: int, *, last: bool, first_sample: int = 0) -> None:
    """Raise where a velocity has no magnitude or direction; only the last may be zero."""
    for i, size in enumerate(norm(v).flatten().tolist()):
        if not math.isfinite(size) or (size == 0 and not last):
            raise ProfileError(
                f"the velocity at step {step} of sample {first_sample + i} is zero, infinite or "
                "not a number: check the model and its dtype"
            )
