"""Search anchors by the final error: first the weight of the growth, then single anchors.

The dynamic program's anchors depend on how errors are said to grow, and that is measured on a few
samples only. A line search over the power of that growth, on all samples, is a search in one number
and so finds hardly anything that holds for its own samples alone.
"""

import hashlib
import json
import math
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tacache.errors import PlanError
from tacache.fitting.anchors import best_anchors
from tacache.fitting.lockstep import Fit, Problem, is_better, lock_step, log_drift
from tacache.fitting.refine import with_weights
from tacache.storage.journal import Journal

FIRST, FINEST = 0.5, 0.125  # steps of the line search, in powers of two
MOVES = (1, -1, 2, -2)
ROUNDS = 20  # of moves, at most
MAX_SUBSETS = 70  # that are all tried: with 8 or 9 steps there are no more of any size


class SearchedFits:
    """Lock-step fits by their anchors, each made once and counted once.

    With a file, what was found before a stop is not run again. Only weights and errors are kept
    there; states are walked anew where a later fit goes on from them.
    """

    def __init__(self, problem: Problem, budget: int, path: Path | None = None) -> None:
        self.problem = problem
        self.budget = self.left = budget
        self.fits: dict[tuple[int, ...], Fit] = {}
        self._journal = Journal(path, {"job": _job(problem)}, "fits", "search", PlanError)
        self._kept = {fit.anchors: fit for fit in self._journal.read(_as_fit)}

    def fit(self, anchors: tuple[int, ...], known: Fit | None = None, first: int = 0) -> Fit | None:
        """Return the fit at these anchors; None where it would cost more than is left."""
        if anchors in self.fits:
            return self.fits[anchors]
        cost = len(self.problem.samples) * (len(anchors) - first - (known is not None))
        if cost > self.left:
            return None
        self.left -= cost
        fit = self._kept.get(anchors)
        if fit is None:
            fit = lock_step(self.problem, anchors, known and self.walked(known), first)
            self._keep(fit)
        self.fits[anchors] = fit
        return fit

    def walked(self, fit: Fit) -> Fit:
        """Return the fit with its states, also where only its weights were kept."""
        if not self.fits[fit.anchors].states:
            self.fits[fit.anchors] = with_weights(
                self.problem, fit.anchors, fit.weights, beside=fit.beside
            )
        return self.fits[fit.anchors]

    def _keep(self, fit: Fit) -> None:
        drift = list(fit.drift.items())
        more = {"beside": fit.beside} if fit.beside else {}
        row = {"anchors": fit.anchors, "weights": fit.weights, "drift": drift, **more}
        self._journal.append(row)


def search_anchors(tries: SearchedFits, evaluations: int) -> Fit | None:
    """Return the best fit found while the tries lasted; None where not even one could be made."""
    few = best_subset(tries, evaluations)
    if few is not None:
        return few
    best = best_power(tries, evaluations)
    return best and _moved_on(tries, best)


def best_subset(tries: SearchedFits, evaluations: int) -> Fit | None:
    """Return the best fit of all sets of anchors; None where there are too many to try them all."""
    problem, once = tries.problem, len(tries.problem.samples) * evaluations
    steps, fixed = len(problem.runs.times) - 1, {0, *problem.parts}
    count = subsets(steps, evaluations, len(fixed))
    if count > MAX_SUBSETS or count * once > tries.left:
        return None
    free = [n for n in range(steps) if n not in fixed]
    chosen = combinations(free, evaluations - len(fixed))
    fits = (tries.fit(tuple(sorted((*fixed, *others)))) for others in chosen)
    return min((fit for fit in fits if fit is not None), key=_score, default=None)


def subsets(steps: int, evaluations: int, fixed: int = 1) -> int:
    """Return how many sets of so many anchors there are, some of which are fixed."""
    return math.comb(steps - fixed, evaluations - fixed)


def best_power(tries: SearchedFits, evaluations: int) -> Fit | None:
    """Return the program's anchors for the power of the growth that serves best."""
    reference, fits = tries.problem.reference, dict[float, Fit]()

    def tried(octave: float) -> None:
        growth = np.power(reference.growth, 2.0**octave).tolist()
        fit = tries.fit(best_anchors(reference.errors, growth, evaluations))
        if fit is not None:
            fits[octave] = fit

    tried(0.0)
    best, step = 0.0, FIRST
    while fits and step >= FINEST:
        for octave in (best - step, best + step):
            tried(octave)
        before, best = best, min(fits, key=lambda octave: _score(fits[octave]))
        step = step if best != before else step / 2
    return fits.get(best)


def _moved_on(tries: SearchedFits, best: Fit) -> Fit:
    """Return moves of one anchor that help by more than their standard error, held out as well.

    What precedes the moved anchor is not run again; late anchors come first, since they cost least.
    """
    problem = tries.problem
    order, settled = list(range(len(best.anchors) - 1, 0, -1)), 0
    for number in range(ROUNDS * len(order)):
        j = order[number % len(order)]
        before = best
        for anchors in (_moved(best.anchors, j, by, problem) for by in MOVES):
            if anchors is None or anchors in tries.fits:
                continue
            fit = tries.fit(anchors, best, j - 1)
            if fit is not None and is_better(fit, best, problem.reference.held_out):
                best = fit
                break
        settled = 0 if best is not before else settled + 1
        if settled == len(order) or tries.left < len(problem.samples):
            break
    return best


def _moved(anchors: tuple[int, ...], j: int, by: int, problem: Problem) -> tuple[int, ...] | None:
    """Return the anchors with number j moved; None where it would meet another, or had to stay."""
    n, steps = anchors[j] + by, len(problem.runs.times) - 1
    if anchors[j] in problem.parts or not anchors[j - 1] < n < (*anchors, steps)[j + 1]:
        return None
    return (*anchors[:j], n, *anchors[j + 1 :])


def _score(fit: Fit) -> float:
    return fmean(log_drift(fit))


def _job(problem: Problem) -> str:
    """Return a hash of what the fits depend on: those of other work are not read."""
    runs = problem.runs
    kind = ["carried", problem.history]
    facts = json.dumps([runs.job, runs.times, runs.breaks, kind, problem.samples])
    ends = problem.reference.states[[0, -1]].float().numpy().tobytes()
    return hashlib.sha256(facts.encode() + ends).hexdigest()


def _as_fit(row: dict[str, Any]) -> Fit:
    """Return a kept fit, without its states."""
    weights, *beside = (
        tuple(tuple(float(weight) for weight in weights) for weights in table)
        for table in (row["weights"], *row.get("beside", ()))
    )
    drift = {int(number): float(value) for number, value in row["drift"]}
    return Fit(tuple(int(n) for n in row["anchors"]), weights, (), (), drift, tuple(beside))
