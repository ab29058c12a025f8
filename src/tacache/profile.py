"""A profile: what full-step runs of a host measured, step by step (eq. 2-5)."""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import Self

from tacache.errors import ProfileError, TACacheError
from tacache.grid import as_times, break_steps, interpolate, step_lengths
from tacache.storage.files import FileRecord
from tacache.storage.origin import Origin

# A grid may leave the measured range by this share of its span (UniPC starts at 0.999999, not 1).
RANGE_TOLERANCE = 1e-3
# Of magnitude and direction: a velocity that grows or turns by a hundred times its length in a step
# of 1/10,000 has as much, and no model is near it.
MAX_RATE = 1e6
# How far log d is off a smooth curve where no turning is resolved: 0.09 to 0.15 in random networks.
ERRATIC = 0.1
# What not every host knows of its origin: profiles merge where only one of them knows it.
OFTEN_UNKNOWN = ("weights", "negative")


class Profile(FileRecord):
    """A profile holds what was measured: how each step changes the velocity, over samples.

    `magnitude` is MI, the paper's k per unit time; `direction` is DI, its d per step. Both are
    means, and both have a standard deviation. All have one entry a step; the last repeats the one
    before it, since no velocity follows the last step. `breaks` are times below which another
    model or guidance takes over: the steps from there on share no history with those before.
    """

    FORMAT: ClassVar[str] = "tacache-profile"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = ProfileError
    REMEDY: ClassVar[str] = "Calibrate again, or restore the file from where it came from"

    times: tuple[float, ...]
    samples: Annotated[int, Field(ge=1, le=10**9)]
    magnitude: tuple[float, ...]
    magnitude_std: tuple[float, ...]
    direction: tuple[float, ...]
    direction_std: tuple[float, ...]
    breaks: tuple[float, ...] = ()
    origin: Origin = Origin()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        steps = len(profile_times(self.times)) - 1
        for name in ("magnitude", "magnitude_std", "direction", "direction_std"):
            values = getattr(self, name)
            if len(values) != steps:
                raise ProfileError(
                    f"'{name}' has {len(values)} numbers, but times have {steps} steps"
                )
            if name != "magnitude" and min(values) < 0:
                raise ProfileError(f"'{name}' has a negative number, {min(values)}")
            check_rates(name, values, ProfileError)
        return self

    @property
    def steps(self) -> int:
        """Return N, the number of steps."""
        return len(self.times) - 1

    @property
    def unresolved(self) -> float:
        """Return the share of d^2, from 0 to 1, that is jumps and no turn that the steps resolve.

        A turn that the steps resolve has a smooth d. Jumps from one step to the next leave d more
        erratic than the samples' spread explains. In random networks, where all of it jumps, log d
        is off a smooth curve by about `ERRATIC`. Without a spread the answer is 0.
        """
        d = np.array(self.direction[:-1])  # the last repeats the one before it
        if len(d) < 3 or d.min() <= 0 or not any(self.direction_std):
            return 0.0
        bends = np.abs(np.diff(np.log(d), 2))  # of independent numbers, sqrt(6) their deviation
        erratic = np.median(bends) / (0.6745 * math.sqrt(6))
        by_chance = np.median(self.direction_std[:-1] / d) / math.sqrt(self.samples)
        return float(min(1.0, math.sqrt(max(0.0, erratic**2 - by_chance**2)) / ERRATIC))

    @classmethod
    def from_samples(
        cls,
        times: Iterable[float],
        magnitude: Sequence[Sequence[float]],
        direction: Sequence[Sequence[float]],
        origin: Origin | None = None,
        breaks: Sequence[float] = (),
    ) -> Self:
        """Make a profile of k_n and d_n (eq. 5), given as N - 1 rows with one number a sample."""
        grid = profile_times(times)
        k, d = np.array(magnitude, float), np.array(direction, float)
        if k.shape != d.shape or k.ndim != 2 or len(k) != len(grid) - 2 or not k.shape[1]:
            raise ProfileError(
                f"{len(grid) - 1} steps need {len(grid) - 2} rows of magnitude and of direction, "
                f"one number a sample; got shapes {k.shape} and {d.shape}"
            )
        if not (np.isfinite(k).all() and np.isfinite(d).all()):
            step, sample = np.argwhere(~(np.isfinite(k) & np.isfinite(d)))[0]
            raise ProfileError(
                f"magnitude and direction are not finite at step {step} of sample {sample}: the "
                "velocity there is zero, infinite or not a number; check the model and its dtype"
            )
        for step in break_steps(grid, breaks):
            if step > 1:  # the change into a new part is none of the old part's
                k[step - 1], d[step - 1] = k[step - 2], d[step - 2]
        return cls(
            times=grid,
            samples=k.shape[1],
            magnitude=_with_last_repeated(k.mean(axis=1)),
            magnitude_std=_with_last_repeated(_deviation(k)),
            direction=_with_last_repeated(d.mean(axis=1)),
            direction_std=_with_last_repeated(_deviation(d)),
            breaks=tuple(breaks),
            origin=origin or Origin(),
        )

    @classmethod
    def merge(cls, profiles: Iterable[Self]) -> Self:
        """Join profiles into one of all their samples; their order changes nothing but rounding."""
        parts = list(profiles)
        if not parts:
            raise ProfileError("there is no profile to merge: give at least one")
        merged = parts[0]
        for part in parts[1:]:
            merged = merged._merged_with(part)
        return merged

    def _merged_with(self, other: Self) -> Self:
        if self.times != other.times:
            raise ProfileError(
                f"profiles of different grids do not merge ({self.steps} and {other.steps} steps, "
                f"from {self.times[:3]} and {other.times[:3]}): resample one of them first"
            )
        if self.breaks != other.breaks:
            raise ProfileError(f"profiles break at {self.breaks} and {other.breaks}: do not merge")
        count = self.samples + other.samples
        magnitude, magnitude_std = _pooled(self, other, "magnitude")
        direction, direction_std = _pooled(self, other, "direction")
        return type(self)(
            times=self.times,
            samples=count,
            magnitude=magnitude,
            magnitude_std=magnitude_std,
            direction=direction,
            direction_std=direction_std,
            breaks=self.breaks,
            origin=_common_origin(self.origin, other.origin),
        )

    def resample(self, times: Iterable[float]) -> Self:
        """Return the profile on another grid; rates are interpolated between the measured steps.

        A rate belongs to the time its step starts at. The direction's rate is d over its step's
        length; the new d is that rate times the new length.
        """
        grid = profile_times(times)
        if grid == self.times:
            return self
        _warn_outside(grid, self.times)
        nodes, at = self.times[:-2], grid[:-2]  # nothing was measured over the last step
        lengths, new_lengths = step_lengths(self.times), step_lengths(grid)

        def carried(rates: Sequence[float]) -> tuple[float, ...]:
            return _interpolate_parts(at, nodes, rates[:-1], self.breaks)

        def per_step(values: tuple[float, ...]) -> tuple[float, ...]:
            rates = carried([value / dt for value, dt in zip(values, lengths, strict=True)])
            steps = [rate * dt for rate, dt in zip(rates, new_lengths, strict=False)]
            return _with_last_repeated(steps)

        return type(self)(
            times=grid,
            samples=self.samples,
            magnitude=_with_last_repeated(carried(self.magnitude)),
            magnitude_std=_with_last_repeated(carried(self.magnitude_std)),
            direction=per_step(self.direction),
            direction_std=per_step(self.direction_std),
            breaks=self.breaks,
            origin=self.origin,
        )


def check_rates(name: str, values: Sequence[float], error: type[TACacheError]) -> None:
    """Refuse rates that no run has, and that would leave no finite result."""
    largest = max(values, key=abs)
    if abs(largest) > MAX_RATE:
        raise error(f"'{name}' has {largest:g}: no velocity changes by more than {MAX_RATE:g}")


def profile_times(times: Iterable[float]) -> tuple[float, ...]:
    """Return a grid a profile can have: changes of velocity need at least two steps."""
    grid = as_times(times)
    if len(grid) < 3:
        raise ProfileError("a profile needs at least two steps: one step has no change of velocity")
    return grid


def _interpolate_parts(
    at: Sequence[float],
    nodes: Sequence[float],
    values: Sequence[float],
    breaks: Sequence[float],
) -> tuple[float, ...]:
    """Interpolate within each part between breaks; a part without nodes takes from all."""

    def part(t: float) -> int:
        return sum(t < b for b in breaks)

    interpolated: list[float] = []
    for t in at:
        same = [i for i, node in enumerate(nodes) if part(node) == part(t)] or range(len(nodes))
        interpolated += interpolate([t], [nodes[i] for i in same], [values[i] for i in same])
    return tuple(interpolated)


def _with_last_repeated(values: Iterable[float]) -> tuple[float, ...]:
    floats = [float(value) for value in values]
    return (*floats, floats[-1])


def _deviation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard deviation of each row over samples, n - 1 below; 0 for one sample."""
    samples = values.shape[1]
    return np.std(values, axis=1, ddof=1) if samples > 1 else np.zeros(len(values))


def _pooled(a: Profile, b: Profile, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of two groups of samples together (Chan, Golub and LeVeque 1979)."""
    count = a.samples + b.samples
    means, deviations = [], []
    for mean_a, std_a, mean_b, std_b in zip(
        getattr(a, name),
        getattr(a, f"{name}_std"),
        getattr(b, name),
        getattr(b, f"{name}_std"),
        strict=True,
    ):
        gap = mean_b - mean_a
        squares = (a.samples - 1) * std_a**2 + (b.samples - 1) * std_b**2
        squares += gap**2 * a.samples * b.samples / count
        means.append(mean_a + gap * b.samples / count)
        deviations.append(math.sqrt(squares / (count - 1)))
    return tuple(means), tuple(deviations)


def _common_origin(a: Origin, b: Origin) -> Origin:
    """Return the origin of merged profiles: the same but for prompts and what one does not know."""
    different = [name for name in Origin.model_fields if getattr(a, name) != getattr(b, name)]
    unknown = [name for name in OFTEN_UNKNOWN if None in (getattr(a, name), getattr(b, name))]
    if set(different) - {"prompts_sha256", *unknown}:
        raise ProfileError(
            "profiles of different hosts do not merge: they differ in "
            + ", ".join(f"{name} ({getattr(a, name)} and {getattr(b, name)})" for name in different)
        )
    return a.model_copy(update=dict.fromkeys(different))


def _warn_outside(times: Sequence[float], measured: Sequence[float]) -> None:
    slack = RANGE_TOLERANCE * (measured[0] - measured[-1])
    if times[0] > measured[0] + slack or times[-1] < measured[-1] - slack:
        warnings.warn(
            f"the grid from {times[0]:g} to {times[-1]:g} leaves the measured range from "
            f"{measured[0]:g} to {measured[-1]:g}: the nearest measured rates are used there",
            stacklevel=3,
        )
