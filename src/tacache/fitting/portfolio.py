"""Fits to the flow at free times: a portfolio of nodes, each fitted in lock-step to the flow.

A plan for the flow needs no step of a grid: K nodes anywhere between noise and data, all of them
evaluated, with weights between them. Which nodes are best depends on the model. So a dynamic
program over the flow's own states places some and smooth families others, and the nearest to the
flow wins, by the samples that it was fitted to (docs/decisions/0049-nodes-at-free-times.md).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from statistics import fmean

import numpy as np

from tacache.fitting.anchors import best_anchors
from tacache.fitting.flow import check_same_run
from tacache.fitting.lockstep import Fit, Problem, Reference, lock_step, log_drift
from tacache.fitting.samples import FitSamples
from tacache.fitting.search import SearchedFits
from tacache.grid import GRID_TOLERANCE
from tacache.instant import Spread, flow_nodes

Nodes = tuple[float, ...]  # the levels of a plan, that of data included

POWERS = (1.0, 0.5, 0.0, 1.5)  # of the growth of errors, by which programs weigh them
MIDDLE = Spread(0.7, 0.6)  # of the families: models have their best nodes near it
EARLY, LATE = (0.55, 0.7, 0.85, 1.0), (0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
FIRST_SAMPLES, FINALISTS = 3, 6  # of the first round; and how many then are fitted to all
DIGITS = 6  # of a node


def candidates(runs: FitSamples, reference: Reference, evaluations: int) -> list[Nodes]:
    """Return where the model may be evaluated, the likeliest first."""
    assert reference.aim is not None
    levels, _ = reference.aim.finer.coarser()
    spreads = sorted(
        (Spread(early, late) for early in EARLY for late in LATE),
        key=lambda spread: abs(spread.early - MIDDLE.early) + abs(spread.late - MIDDLE.late),
    )
    by_program = (
        best_anchors(reference.errors, np.power(reference.growth, power).tolist(), evaluations)
        for power in POWERS
    )
    turns = zip_longest(
        ((*(levels[n] for n in anchors), levels[-1]) for anchors in by_program),
        (flow_nodes(runs.times, evaluations, runs.breaks, spread) for spread in spreads),
    )
    every = (snapped(nodes, runs.times) for turn in turns for nodes in turn if nodes)
    return [nodes for nodes in dict.fromkeys(every) if _are_apart(nodes)]


def snapped(nodes: Sequence[float], times: Sequence[float]) -> Nodes:
    """Return the nodes between the run's own ends, rounded where they are no levels of the run."""
    inner = (t if t in times else round(t, DIGITS) for t in nodes[1:-1])
    return (times[0], *inner, times[-1])


def _are_apart(nodes: Nodes) -> bool:
    return all(t - t_next > GRID_TOLERANCE for t, t_next in pairwise(nodes))


@contextmanager
def free_problem(
    runs: FitSamples,
    reference: Reference,
    nodes: Sequence[Nodes],
    history: int,
    done: Callable[[int], object] = int,
) -> Iterator[Problem]:
    """Open the samples on the levels of all candidates, with the states of the flow there.

    A candidate is then a set of anchors among these levels.
    """
    assert reference.aim is not None
    levels = tuple(sorted(set(chain(*nodes)), reverse=True))
    with runs.on_levels(levels) as dense:
        check_same_run(runs, dense, len(levels) - 1)
        aimed = reference._replace(states=reference.aim.states_at(levels))
        yield Problem(dense, aimed, history, list(range(runs.total)), done)


def best_nodes(
    problem: Problem, nodes: Sequence[Nodes], budget: int, path: Path | None = None
) -> tuple[Fit, int]:
    """Return the fit that is nearest to the flow on the samples it was fitted to, and its cost.

    Held-out samples take no part, unless all are evaluated together. Where the budget is too small
    to fit all candidates to all samples, up to half of it ranks them on few; what one fit to all
    takes is left. One fit is always made.
    """
    levels, held_out = problem.runs.times, problem.reference.held_out
    ranked = [tuple(levels.index(t) for t in candidate[:-1]) for candidate in nodes]
    samples = [i for i in problem.samples if i >= held_out or problem.runs.together]
    once, left = len(samples) * len(ranked[0]), budget
    if once * len(ranked) > budget and FIRST_SAMPLES < len(samples) < problem.runs.total:
        few = problem._replace(samples=samples[:FIRST_SAMPLES])
        most = max(0, min(budget // 2, budget - once))
        first = SearchedFits(few, most, path and first_round_file(path))
        ranked = [fit.anchors for fit in _by_error(first, ranked)][:FINALISTS] or ranked
        left = budget - first.budget + first.left
    tries = SearchedFits(problem._replace(samples=samples), left, path)
    fits = _by_error(tries, ranked)
    if fits:
        return fits[0], budget - tries.left
    return lock_step(tries.problem, ranked[0]), budget - tries.left + once


def first_round_file(tries: Path) -> Path:
    """Return the file that keeps a first round, beside that of the tries on all samples."""
    return tries.with_name(f"{tries.name}-first")


def _by_error(tries: SearchedFits, ranked: Sequence[tuple[int, ...]]) -> list[Fit]:
    """Return the fits that the budget has room for, the nearest to the flow first."""
    fitted = [i for i in tries.problem.samples if i >= tries.problem.reference.held_out]

    def error(fit: Fit) -> float:
        return fmean(log_drift(fit._replace(drift={i: fit.drift[i] for i in fitted})))

    fits = (tries.fit(anchors) for anchors in ranked)
    return sorted((fit for fit in fits if fit is not None), key=error)
