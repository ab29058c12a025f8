"""Weights in lock-step: fit one interval over all samples, advance all with it, fit the next.

So each interval repairs the drift of those before it. Only inner products of each sample's
velocities are needed for a fit, so that several processes need to exchange those alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tacache.fitting.aiming import Aim
from tacache.fitting.anchors import Floats, as_columns
from tacache.fitting.integrators import Integrator
from tacache.fitting.latents import average, basis, distance, indices
from tacache.fitting.samples import FitSamples
from tacache.fitting.weights import choose_row
from tacache.grid import break_steps
from tacache.stepper import average_of
from tacache.tasu import relative_distance

Weights = tuple[tuple[float, ...], ...]


class Reference(NamedTuple):
    """Full-step runs of all samples, recorded once and fitted to at any budget.

    For a fit to the flow, `errors` and `growth` are those of the finer run's steps.
    """

    states: Tensor  # (steps + 1, samples of this process, ...), on the CPU: the run's or the flow's
    errors: Floats  # local errors, of all processes' samples
    growth: list[float]
    held_out: int  # the samples with the first numbers
    spent: int
    run_ends: Tensor  # where the full runs end
    aim: Aim | None = None  # of a fit to the flow


class Fit(NamedTuple):
    """A lock-step fit: what is needed to apply it, and to go on from any of its intervals."""

    anchors: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    states: tuple[Tensor, ...]  # at each anchor, and at the end
    velocities: tuple[Tensor, ...]  # at each anchor
    drift: dict[int, float]  # of each sample, by its number
    beside: tuple[Weights, ...] = ()  # the weights of a joint model's further latents

    @property
    def tables(self) -> tuple[Weights, ...]:
        """Return the weights of each latent."""
        return (self.weights, *self.beside)


class Problem(NamedTuple):
    """What anchors are fitted to: some of the runs, by their numbers."""

    runs: FitSamples
    reference: Reference
    history: int
    samples: list[int]
    done: Callable[[int], object] = int  # told of every evaluation that was made

    @property
    def mine(self) -> list[int]:
        """Return positions of these samples in this process."""
        return [k for k, i in enumerate(self.runs.numbers) if i in self.samples]

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the steps at which history starts anew."""
        return break_steps(self.runs.times, self.runs.breaks)

    def interval(self, anchors: Sequence[int], i: int) -> tuple[int, int]:
        """Return the steps at which the interval of anchor number i begins and ends."""
        return anchors[i], (*anchors, len(self.runs.times) - 1)[i + 1]


def lock_step(
    problem: Problem, anchors: tuple[int, ...], known: Fit | None = None, first: int = 0
) -> Fit:
    """Fit and walk interval after interval, all samples together.

    With a `known` fit whose anchors are the same up to number `first`, its intervals before are
    taken over, and so is the velocity at that anchor: only the end of its interval has moved.
    """
    runs, states_at, mine = problem.runs, problem.reference.states, problem.mine
    integrator = integrator_at(problem, known, first)
    latents = runs.latents
    tables: list[list[tuple[float, ...]]] = [
        list(known.tables[number][:first]) if known else []
        for number in range(len(indices(latents)))
    ]
    states = list(known.states[: first + 1]) if known else [runs.noise[mine]]
    velocities = list(known.velocities[: first + 1]) if known else []
    for i in range(first, len(anchors)):
        n, m = problem.interval(anchors, i)
        if i == len(velocities):
            velocities.append(evaluated(problem, states[i], n))
        known_velocities = basis(latents, velocities, tables, i)[: _reach(anchors, i, problem)]
        wanted = states_at[m][mine].to(states[i].device)
        columns, target = integrator.columns(states[i], known_velocities, wanted, n, m)
        products = runs.gathered(
            {
                runs.numbers[k]: [
                    as_columns([column[s][index] for column in columns], target[s][index])
                    for index in indices(latents)
                ]
                for s, k in enumerate(mine)
            }
        )
        fitted = [products[j] for j in sorted(products) if j >= problem.reference.held_out]
        for rows, own in zip(tables, zip(*fitted, strict=True), strict=True):
            rows.append(choose_row(np.stack(own)))
        states.append(integrator.move(states[i], average(latents, velocities, tables, i), n, m))
    drift = drift_of(problem, states[-1])
    weights, *beside = (tuple(rows) for rows in tables)
    return Fit(anchors, weights, tuple(states), tuple(velocities), drift, tuple(beside))


def integrator_at(problem: Problem, known: Fit | None, first: int) -> Integrator:
    """Return an integrator at anchor number `first` of a known fit, with its memory there."""
    integrator = problem.runs.integrator(problem.mine)
    if known is not None and integrator.remembers:
        for i in range(first):
            v = average_of(known.velocities, known.weights, i)
            integrator.move(known.states[i], v, *problem.interval(known.anchors, i))
    return integrator


def evaluated(problem: Problem, x: Tensor, step: int) -> Tensor:
    """Return the velocities of the problem's samples that are in this process, if any."""
    if not problem.mine:
        return x
    velocities = problem.runs.evaluate(x, step, problem.mine)
    problem.done(len(problem.mine))
    return velocities


def _reach(anchors: Sequence[int], i: int, problem: Problem) -> int:
    """Return how many velocities may be used at anchor number i: none from before its part."""
    first = max((part for part in problem.parts if part <= anchors[i]), default=0)
    return min(problem.history, sum(first <= n <= anchors[i] for n in anchors))


def drift_of(
    problem: Problem, x: Tensor, ends: Tensor | None = None, latent: int | None = None
) -> dict[int, float]:
    """Return the relative distance of each sample's result to its reference, or to these ends.

    It is that of one latent, or of all of them together.
    """
    latents = problem.runs.latents
    wanted = (problem.reference.states[-1] if ends is None else ends)[problem.mine].to(x.device)
    if latent is None:
        distances = distance(latents, x, wanted).flatten().tolist()
    else:
        index = indices(latents)[latent]
        distances = relative_distance(x[index], wanted[index]).flatten().tolist()
    numbers = [problem.runs.numbers[k] for k in problem.mine]
    return problem.runs.gathered(dict(zip(numbers, distances, strict=True)))


def log_drift(fit: Fit) -> list[float]:
    """Return the logarithm of each sample's drift, in the order of the samples' numbers."""
    return [math.log(max(fit.drift[i], 1e-12)) for i in sorted(fit.drift)]


def is_better(fit: Fit, best: Fit, held_out: int) -> bool:
    """Return whether the gain is larger than chance would give, and one on held-out samples."""
    gains = np.array(log_drift(best)) - np.array(log_drift(fit))
    judges = [gain for gain, i in zip(gains, sorted(fit.drift), strict=True) if i < held_out]
    chance = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > chance and np.mean(judges) > 0)
