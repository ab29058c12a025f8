"""The one seam all baselines sit on: the same velocity function, noise and grid, and one counter.

A `Problem` is what every method gets. A `Recording` is a problem whose full-step run is known: what
methods are tuned on. Whatever a method does, its evaluations are counted at the velocity function.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from tacache.errors import HostError, PlanError
from tacache.grid import as_times, interpolate
from tacache.storage.files import Frozen
from tacache.tasu import relative_distance
from tacache.velocity import Condition, Velocity, batches, check_velocity, euler
from tacache_lab.methods.tuning import least, named, spread, unreachable

Settings = TypeVar("Settings", bound=Frozen)
# tried(name, make): make() of a try, or what it came to before
Tried = Callable[[str, Callable[[], tuple[float, ...]]], tuple[float, ...]]
# grid(K): the K-step grid, made the way the full one was made
Grid = Callable[[int], Sequence[float]]


class Outcome(NamedTuple):
    """Samples, and for each the times the model was evaluated at, in order, as counted there."""

    x: Tensor
    evaluated: tuple[tuple[float, ...], ...]

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Return how often the model was evaluated for each sample."""
        return tuple(map(len, self.evaluated))


@dataclass(frozen=True)
class SamplingProblem:
    """What every method gets: a velocity function, noise (samples along dim 0) and a time grid.

    `grid(K)` makes a K-step grid the way `times` was made, for methods that take fewer steps. A
    method that decides online evaluates some samples of a batch only: give it per-sample data as
    `condition`, which is cut with the samples, or batches of one.
    """

    velocity: Velocity
    noise: Tensor
    times: Sequence[float]
    condition: Condition = field(default_factory=dict)
    grid: Grid | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", as_times(self.times))
        tuple(batches(self.noise, self.condition))  # checks their lengths

    @property
    def steps(self) -> int:
        """Return N, the number of steps of the full run."""
        return len(self.times) - 1

    @property
    def samples(self) -> int:
        """Return how many samples the noise holds."""
        return len(self.noise)

    def shorter(self, steps: int) -> tuple[float, ...]:
        """Return the grid of this many steps; without `grid`, every N/K-th time of the full one."""
        if steps == self.steps:
            return tuple(self.times)
        if self.grid is None:
            at = [i * self.steps / steps for i in range(steps, -1, -1)]
            nodes = range(self.steps, -1, -1)
            return interpolate(at, nodes, self.times[::-1])[::-1]
        times = as_times(self.grid(steps))
        if len(times) != steps + 1:
            raise HostError(f"grid({steps}) must give {steps + 1} times, not {len(times)}")
        return times


class Visit(NamedTuple):
    """A step of the full grid: where it starts, and the velocity it is taken with."""

    step: int
    t: float
    x: Tensor
    v: Tensor


def last_state(visits: Iterable[Visit], times: Sequence[float]) -> Tensor:
    """Return where a walk over the whole grid ends."""
    (last,) = deque(visits, maxlen=1)
    return euler(last.x, last.v, last.t, times[-1])


class Evaluations:
    """Counts evaluations of the model: all counts of the lab are kept by objects of this class.

    `times` are those at which each sample was evaluated, in order. `told` is called after each
    evaluation of a sample.
    """

    def __init__(self, samples: int = 1, told: Callable[[], None] = lambda: None) -> None:
        self._times: list[list[float]] = [[] for _ in range(samples)]
        self._told = told

    def note(self, t: float, rows: Iterable[int] = (0,)) -> None:
        """Count an evaluation of these samples at time t."""
        for row in rows:
            self._times[row].append(t)
            self._told()

    @property
    def times(self) -> tuple[tuple[float, ...], ...]:
        """Return for each sample the times at which it was evaluated, in order."""
        return tuple(map(tuple, self._times))

    @property
    def total(self) -> int:
        """Return how many evaluations there were, of all samples together."""
        return sum(map(len, self._times))


class Meter:
    """The velocity function of a problem, with a count of each sample's evaluations."""

    def __init__(self, problem: SamplingProblem) -> None:
        self._problem, self._evaluations = problem, Evaluations(problem.samples)

    def __call__(self, x: Tensor, t: float, rows: Sequence[int] | None = None) -> Tensor:
        """Return the velocity of all samples, or of these rows of the batch.

        X holds theirs only.
        """
        chosen = range(self._problem.samples) if rows is None else rows
        condition = {name: take(v, rows) for name, v in self._problem.condition.items()}
        self._evaluations.note(t, chosen)
        v = check_velocity(self._problem.velocity(x, t, **condition), x)
        return v.clone()  # the model may write its next velocity into the same memory

    def outcome(self, x: Tensor) -> Outcome:
        """Return samples with the times at which they were evaluated."""
        return Outcome(x, self._evaluations.times)


def take(values: Any, rows: Sequence[int] | None) -> Any:
    """Return the entries of these samples; all of them for None."""
    if rows is None:
        return values
    return values[list(rows)] if isinstance(values, Tensor) else [values[row] for row in rows]


@dataclass(frozen=True)
class RecordedProblem(SamplingProblem):
    """A problem with its full-step run: states x_0 ... x_N and velocities v_0 ... v_{N-1}.

    `aims` are the states that a result is to come near, where these are not the run's own: those of
    the flow. `most` says how many settings are tried of a rival that has more; None: all.
    """

    states: Sequence[Tensor] = ()
    velocities: Sequence[Tensor] = ()
    tried: Tried = lambda _, make: make()
    aims: Sequence[Tensor] = ()
    most: int | None = None

    @property
    def targets(self) -> Sequence[Tensor]:
        """Return the states that a result is compared with.

        Those of the flow, or of the full run.
        """
        return self.aims or self.states

    def first(self, samples: int) -> "RecordedProblem":
        """Return the same with its first samples only."""
        return self.of(range(min(samples, self.samples)))

    def of(self, rows: Sequence[int]) -> "RecordedProblem":
        """Return the same with these samples only."""
        return RecordedProblem(
            self.velocity,
            take(self.noise, rows),
            self.times,
            {name: take(values, rows) for name, values in self.condition.items()},
            self.grid,
            [take(x, rows) for x in self.states],
            [take(v, rows) for v in self.velocities],
            self.tried,
            [take(x, rows) for x in self.aims],
            self.most,
        )

    def error(self, x: Tensor) -> float:
        """Return the mean over samples of |x - y|^2 / |y|^2, y being where a sample should end.

        That is the end of full steps, or of the flow.
        """
        mean = float((relative_distance(x, self.targets[-1]) ** 2).mean())
        return mean if math.isfinite(mean) else math.inf


@torch.no_grad()
def record(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    condition: Condition | None = None,
    grid: Grid | None = None,
) -> RecordedProblem:
    """Return full-step Euler runs from `noise`, kept whole.

    Tune methods on a few samples at a time.
    """
    problem = SamplingProblem(velocity, noise, as_times(times), dict(condition or {}), grid)
    model, states, velocities = Meter(problem), [noise], []
    for t, t_next in pairwise(problem.times):
        velocities.append(model(states[-1], t))
        states.append(euler(states[-1], velocities[-1], t, t_next))
    return RecordedProblem(
        velocity, noise, problem.times, problem.condition, grid, tuple(states), tuple(velocities)
    )


class Described(ABC, Generic[Settings]):
    """What every rival says of itself.

    `published` holds its published settings by name, where they mean something without the model
    they were published for. `tuned` says that samples choose its settings; where they do not, the
    grid and the budget alone do. `needs` says why a budget may be too small.
    """

    name: str
    citation: str
    needs: str = "it takes at least one"
    tuned: bool = True
    published: Mapping[str, Settings] = MappingProxyType({})


class Baseline(Described[Settings]):
    """A rival at the velocity function: how it is tuned for a budget, and how it samples."""

    @abstractmethod
    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[Settings]:
        """Return settings that spend the budget or a little less; empty where none come so low."""

    @abstractmethod
    def sample(self, model: Meter, problem: SamplingProblem, settings: Settings) -> Tensor:
        """Return the samples; every evaluation goes through `model`."""

    @torch.no_grad()
    def fit(self, recording: RecordedProblem, evaluations: int) -> Settings:
        """Return its best settings for a budget.

        The candidate that ends nearest to the reference.
        """
        if not 1 <= evaluations <= recording.steps:
            raise PlanError(f"{evaluations} evaluations of {recording.steps} steps are impossible")
        candidates = spread(self.candidates(recording, evaluations), recording.most)
        if not candidates:
            raise unreachable(self.name, evaluations, recording.steps, self.needs)
        if len(candidates) == 1:
            return candidates[0]
        # only a condition tells a velocity function which samples it gets
        rows: Sequence[Sequence[int]] = [range(recording.samples)]
        if recording.condition:
            rows = [[row] for row in range(recording.samples)]
        parts = [recording.of(part_rows) for part_rows in rows]

        def error(settings: Settings, part: int) -> float:
            def measured() -> tuple[float]:
                return (parts[part].error(self.run(parts[part], settings).x),)

            return recording.tried(f"error of {part}: {named(settings)}", measured)[0]

        return least(candidates, error, len(parts))

    @torch.no_grad()
    def run(self, problem: SamplingProblem, settings: Settings) -> Outcome:
        """Sample with these settings, counting at the model."""
        model = Meter(problem)
        return model.outcome(self.sample(model, problem, settings))
