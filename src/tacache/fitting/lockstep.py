"""Weights in lock-step: fit one interval over all samples, advance all with it, fit the next.

So each interval repairs the drift of those before it. Only inner products of each sample's
velocities are needed for a fit, so that several processes need to exchange those alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tacache.decomposition import relative_distance
from tacache.fitting.anchors import Floats, as_columns
from tacache.fitting.samples import Runs
from tacache.fitting.walking import Walk, walk_of
from tacache.fitting.weights import choose_row
from tacache.grid import break_steps
from tacache.rules import average_of, basis_of

Weights = tuple[tuple[float, ...], ...]


class Reference(NamedTuple):
    """Full-step runs of all samples, recorded once and fitted to at any budget."""

    states: Tensor  # (steps + 1, samples of this process, ...), on the CPU: the run's or the flow's
    errors: Floats  # local errors, of all processes' samples
    growth: list[float]
    held_out: int  # the samples with the first numbers
    spent: int
    run_ends: Tensor  # where the full runs end
    euler: Mapping[int, float] = {}  # steps -> distance of Euler runs to the flow, held-out samples
    flow_floor: float = 0.0  # the least distance to the flow that can be told


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
    done: Callable[[int], object] = int  # told of every evaluation that was made

    @property
    def mine(self) -> list[int]:
        """Positions of these samples in this process."""
        return [k for k, i in enumerate(self.runs.numbers) if i in self.samples]

    @property
    def parts(self) -> tuple[int, ...]:
        """The steps at which history starts anew."""
        return break_steps(self.runs.times, self.runs.breaks)

    def interval(self, anchors: Sequence[int], i: int) -> tuple[int, int]:
        """The steps at which the interval of anchor number i begins and ends."""
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
    if not problem.mine:
        return x
    velocities = problem.runs.evaluate(x, step, problem.mine)
    problem.done(len(problem.mine))
    return velocities


def _reach(anchors: Sequence[int], i: int, problem: Problem) -> int:
    """How many velocities may be used at anchor number i: none from before its part."""
    first = max((part for part in problem.parts if part <= anchors[i]), default=0)
    return min(problem.history, sum(first <= n <= anchors[i] for n in anchors))


def drift_of(problem: Problem, x: Tensor, ends: Tensor | None = None) -> dict[int, float]:
    """Relative distance of each sample's result to its reference, or to these ends, by number."""
    wanted = (problem.reference.states[-1] if ends is None else ends)[problem.mine].to(x.device)
    found = relative_distance(x, wanted).flatten().tolist()
    numbers = [problem.runs.numbers[k] for k in problem.mine]
    return problem.runs.gathered(dict(zip(numbers, found, strict=True)))


def log_drift(fit: Fit) -> list[float]:
    """The logarithm of each sample's drift, in the order of the samples' numbers."""
    return [math.log(max(fit.drift[i], 1e-12)) for i in sorted(fit.drift)]


def is_better(fit: Fit, best: Fit, held_out: int) -> bool:
    """Whether the gain is larger than chance would give, and one on held-out samples."""
    gains = np.array(log_drift(best)) - np.array(log_drift(fit))
    judges = [gain for gain, i in zip(gains, sorted(fit.drift), strict=True) if i < held_out]
    chance = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > chance and np.mean(judges) > 0)
