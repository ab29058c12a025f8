"""Weights in lock-step: fit one interval over all samples, advance all with it, fit the next.

Each interval so repairs the drift of those before it. Only inner products of each sample's
velocities are needed for a fit, so that several processes need to exchange those alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacache.decomposition import relative_distance
from tacache.errors import HostError
from tacache.fitting.anchors import Floats, as_columns
from tacache.fitting.walking import Walk, walk_of
from tacache.fitting.weights import choose_row
from tacache.grid import as_times, break_steps
from tacache.rules import average_of, basis_of
from tacache.velocity import Condition, Velocity, batches, check_velocity

Value = TypeVar("Value")
Weights = tuple[tuple[float, ...], ...]


class Runs(Protocol):
    """Samples a fit can evaluate: of a velocity function, or held calls of a pipeline.

    `noise` holds those of this process, (samples, ...); `numbers` are their numbers among all.
    Runs that also have a `walk` (`walking.HasSolver`) step with it, all others by Euler.
    """

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    noise: Tensor
    numbers: Sequence[int]
    total: int
    together: bool  # a part cannot be evaluated alone
    job: str  # what the runs depend on beside noise and times: kept files name it

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """The velocities of the chosen samples (positions in `noise`) at states x and a step."""

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Everyone's values by the samples' numbers."""


class FunctionRuns:
    """A velocity function's samples; without a condition it always gets the whole batch."""

    def __init__(
        self,
        velocity: Velocity,
        noise: Tensor,
        times: Iterable[float],
        condition: Condition | None = None,
        batch_size: int | None = None,
    ) -> None:
        next(batches(noise, condition, batch_size))  # refuse before any work
        self.velocity, self.noise, self.times = velocity, noise, as_times(times)
        self.condition, self.batch_size = condition, batch_size
        self.breaks: tuple[float, ...] = ()
        self.numbers: Sequence[int] = range(len(noise))
        self.total = len(noise)
        self.together, self.job = condition is None, ""

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One call of the function a batch."""
        picked = {name: _picked(values, chosen) for name, values in (self.condition or {}).items()}
        found = torch.cat(
            [
                check_velocity(
                    self.velocity(batch.noise, self.times[step], **batch.condition), batch.noise
                ).clone()
                for batch in batches(x, picked, self.batch_size)
            ]
        )
        for s, k in enumerate(chosen):
            check_finite(found[s], step, f"sample {k}")
        return found

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """All samples are here."""
        return dict(mine)


def check_finite(v: Tensor, step: int, sample: str) -> None:
    """A velocity that is no number ends the fit with the sample's name."""
    if not bool(torch.isfinite(v).all()):
        raise HostError(f"{sample}: the velocity at step {step} is infinite or not a number")


class Reference(NamedTuple):
    """Full-step runs of all samples, recorded once and fitted to at any budget."""

    states: Tensor  # (steps + 1, samples of this process, ...), on the CPU
    errors: Floats  # local errors, of all processes' samples
    growth: list[float]
    held_out: int  # the samples with the first numbers
    spent: int


class Fit(NamedTuple):
    """A lock-step fit: what is needed to apply it, and to go on from any of its intervals."""

    anchors: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    states: tuple[Tensor, ...]  # at each anchor, and at the end
    velocities: tuple[Tensor, ...]  # at each anchor
    drift: dict[int, float]  # of each sample, by its number


class Problem(NamedTuple):
    """What anchors are fitted to: some of the runs, by their numbers."""

    runs: Runs
    reference: Reference
    history: int
    samples: list[int]

    @property
    def mine(self) -> list[int]:
        """Positions of these samples in this process."""
        return [k for k, i in enumerate(self.runs.numbers) if i in self.samples]

    @property
    def parts(self) -> tuple[int, ...]:
        """The steps at which history starts anew."""
        return break_steps(self.runs.times, self.runs.breaks)

    def interval(self, anchors: Sequence[int], i: int) -> tuple[int, int]:
        """The steps between which anchor number i leads."""
        return anchors[i], (*anchors, len(self.runs.times) - 1)[i + 1]


def lock_step(
    problem: Problem, anchors: tuple[int, ...], known: Fit | None = None, first: int = 0
) -> Fit:
    """Fit and walk interval after interval, all samples together.

    With a `known` fit whose anchors are the same up to number `first`, its intervals before are
    taken over, and so is the velocity at that anchor: only the end of its interval has moved.
    """
    runs, states_at, mine = problem.runs, problem.reference.states, problem.mine
    walk = walk_again(problem, known, first)
    weights = list(known.weights[:first]) if known else []
    states = list(known.states[: first + 1]) if known else [runs.noise[mine]]
    velocities = list(known.velocities[: first + 1]) if known else []
    for i in range(first, len(anchors)):
        n, m = problem.interval(anchors, i)
        if i == len(velocities):
            velocities.append(evaluated(problem, states[i], n))
        basis = basis_of(velocities, weights, i)[: _reach(anchors, i, problem)]
        wanted = states_at[m][mine].to(states[i].device)
        columns, target = walk.columns(states[i], basis, wanted, n, m)
        products = runs.gathered(
            {
                runs.numbers[k]: as_columns([column[s] for column in columns], target[s])
                for s, k in enumerate(mine)
            }
        )
        fitted = [products[j] for j in sorted(products) if j >= problem.reference.held_out]
        weights.append(choose_row(np.stack(fitted)))
        states.append(walk.move(states[i], average_of(velocities, weights, i), n, m))
    drift = drift_of(problem, states[-1])
    return Fit(anchors, tuple(weights), tuple(states), tuple(velocities), drift)


def walk_again(problem: Problem, known: Fit | None, first: int) -> Walk:
    """A walk that stands at anchor number `first` of a known fit, with what it remembers there."""
    walk = walk_of(problem.runs, problem.runs.times, problem.mine)
    if known is not None and walk.remembers:
        for i in range(first):
            v = average_of(known.velocities, known.weights, i)
            walk.move(known.states[i], v, *problem.interval(known.anchors, i))
    return walk


def evaluated(problem: Problem, x: Tensor, step: int) -> Tensor:
    """The velocities of the problem's samples that are in this process, if any."""
    return problem.runs.evaluate(x, step, problem.mine) if problem.mine else x


def _reach(anchors: Sequence[int], i: int, problem: Problem) -> int:
    """How many velocities may be used at anchor number i: none from before its part."""
    first = max((part for part in problem.parts if part <= anchors[i]), default=0)
    return min(problem.history, sum(first <= n <= anchors[i] for n in anchors))


def drift_of(problem: Problem, x: Tensor) -> dict[int, float]:
    """Relative distance of each sample's result to its reference, by number."""
    wanted = problem.reference.states[-1][problem.mine].to(x.device)
    found = relative_distance(x, wanted).flatten().tolist()
    numbers = [problem.runs.numbers[k] for k in problem.mine]
    return problem.runs.gathered(dict(zip(numbers, found, strict=True)))


def log_drift(fit: Fit) -> list[float]:
    """Of each sample, by rising numbers."""
    return [math.log(max(fit.drift[i], 1e-12)) for i in sorted(fit.drift)]


def _picked(values: object, chosen: Sequence[int]) -> object:
    if isinstance(values, Tensor | np.ndarray):
        return values[list(chosen)]
    return [values[k] for k in chosen]  # type: ignore[index]


def is_better(fit: Fit, best: Fit, held_out: int) -> bool:
    """Whether the gain is larger than chance would give, and one on held-out samples."""
    gains = np.array(log_drift(best)) - np.array(log_drift(fit))
    judges = [gain for gain, i in zip(gains, sorted(fit.drift), strict=True) if i < held_out]
    chance = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > chance and np.mean(judges) > 0)
