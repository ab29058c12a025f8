"""One Gauss-Newton step for all weights of a fitted plan, which lowers the final error.

Lock-step fits every interval for itself. What an interval's error becomes at the end depends on all
that follow; changing each weight a little and running on says how.
"""

from statistics import fmean

import numpy as np
from torch import Tensor

from tacache.fitting.anchors import Floats, as_columns
from tacache.fitting.latents import average
from tacache.fitting.lockstep import (
    Fit,
    Problem,
    Weights,
    drift_of,
    evaluated,
    integrator_at,
    is_better,
    log_drift,
)
from tacache.fitting.weights import FLOOR, TINY, inverse_shares

CHANGE = 1e-2  # of a weight
DAMPINGS = (1.0, 0.1, 0.01)  # of the normal equations' diagonal
MIN_LEARNING_SAMPLES = 3  # samples to learn from
WEIGHTS_PER_INTERVAL = 2.5


def with_weights(
    problem: Problem,
    anchors: tuple[int, ...],
    weights: Weights,
    known: Fit | None = None,
    first: int = 0,
    beside: tuple[Weights, ...] = (),
) -> Fit:
    """Run the samples by a plan with these weights; with a known run, from interval `first` on."""
    latents, tables = problem.runs.latents, (weights, *beside)
    states = list(known.states[: first + 1]) if known else [problem.runs.noise[problem.mine]]
    velocities = list(known.velocities[: first + 1]) if known else []
    integrator = integrator_at(problem, known, first)
    for i in range(first, len(anchors)):
        n, m = problem.interval(anchors, i)
        if i == len(velocities):
            velocities.append(evaluated(problem, states[i], n))
        states.append(integrator.move(states[i], average(latents, velocities, tables, i), n, m))
    drift = drift_of(problem, states[-1])
    return Fit(anchors, weights, tuple(states), tuple(velocities), drift, beside)


def refine(problem: Problem, fit: Fit, budget: int) -> tuple[Weights, int]:
    """Return better weights for all intervals, where the budget and held-out samples allow it.

    One Gauss-Newton step for the mean log error, damped as serves best. The weights stay as they
    are unless the gain exceeds its standard error and holds on samples nothing is fitted to.
    """
    held_out, trial = problem.reference.held_out, len(DAMPINGS) * len(fit.anchors)
    slopes = sum(len(row) * (len(fit.anchors) - 1 - i) for i, row in enumerate(fit.weights))
    judges = [i for i in problem.samples if i < held_out]
    others = [i for i in problem.samples if i >= held_out]
    count = min(len(others), (budget - trial * len(judges)) // (slopes + trial))
    if count < min(MIN_LEARNING_SAMPLES, len(others)):
        return fit.weights, 0
    learned = problem._replace(samples=others[:count])
    tried = problem._replace(samples=[*judges, *others[:count]])
    if problem.runs.together:  # all of them, or none
        if budget < (slopes + trial) * len(problem.samples):
            return fit.weights, 0
        learned = tried = problem
    spent = len(learned.samples) * slopes + len(tried.samples) * trial
    products = _slopes(learned, _part(fit, problem, learned))
    fits = [with_weights(tried, fit.anchors, _stepped(fit.weights, products, d)) for d in DAMPINGS]
    best = min(fits, key=lambda candidate: fmean(log_drift(candidate)))
    now = fit._replace(drift={i: fit.drift[i] for i in tried.samples})
    return (best.weights if is_better(best, now, held_out) else fit.weights), spent


def needed(held_out: int, evaluations: int) -> int:
    """Return the evaluations that refining takes at least, with a few weights an interval."""
    slopes = round(WEIGHTS_PER_INTERVAL * evaluations * (evaluations - 1) / 2)
    trial = len(DAMPINGS) * evaluations
    return MIN_LEARNING_SAMPLES * (slopes + trial) + held_out * trial


def _part(fit: Fit, problem: Problem, wanted: Problem) -> Fit:
    """Return the fit's run of some of its samples."""
    rows = [problem.mine.index(k) for k in wanted.mine]
    states, velocities = (
        tuple(tensor[rows] for tensor in part) for part in (fit.states, fit.velocities)
    )
    return fit._replace(states=states, velocities=velocities)


def _slopes(problem: Problem, start: Fit) -> Floats:
    """Return for each sample, inner products of what each weight changes and of what is missing."""
    columns: list[Tensor] = []
    for i, row in enumerate(start.weights):
        for j in range(len(row)):
            changed = _changed(start.weights, i, j, CHANGE)
            end = with_weights(problem, start.anchors, changed, start, i).states[-1]
            columns.append((end.double() - start.states[-1].double()) / CHANGE)
    mine, runs = problem.mine, problem.runs
    wanted = problem.reference.states[-1][mine].to(start.states[-1].device)
    missing = wanted.double() - start.states[-1].double()
    products = runs.gathered(
        {
            runs.numbers[k]: as_columns([column[s] for column in columns], missing[s])
            for s, k in enumerate(mine)
        }
    )
    held_out = problem.reference.held_out
    return np.stack([products[i] for i in sorted(products) if i >= held_out])


def _stepped(weights: Weights, products: Floats, damping: float) -> Weights:
    """Return the weights after a damped step, samples weighted by their error before it."""
    error = products[:, -1, -1]
    share = inverse_shares(error + FLOOR * error.mean())
    matrix = np.einsum("s,sij->ij", share, products[:, :-1, :-1])
    vector = share @ products[:, :-1, -1]
    floor = max(1e-12 * float(np.diag(matrix).max()), TINY)
    change = np.linalg.solve(matrix + np.diag(damping * np.diag(matrix) + floor), vector)
    steps = iter(change.tolist())
    return tuple(tuple(w + next(steps) for w in row) for row in weights)


def _changed(weights: Weights, i: int, j: int, by: float) -> Weights:
    rows = [list(row) for row in weights]
    rows[i][j] += by
    return tuple(map(tuple, rows))
