"""Anchors by what they lead to: how strongly growth weighs, then single anchors, one at a time.

The dynamic program's anchors depend on how errors are said to grow, and that is measured on a few
samples only. A line search over the power of that growth, on all samples, is a search in one number
and so finds hardly anything that holds for its own samples alone.
"""

import hashlib
import json
from pathlib import Path
from statistics import fmean

import numpy as np

from tacache.errors import PlanError
from tacache.fitting.anchors import best_anchors
from tacache.fitting.lockstep import Fit, Problem, is_better, lock_step, log_drift
from tacache.fitting.refine import follow
from tacache.storage.atomic import write_atomically
from tacache.work.progress import track

FIRST, FINEST = 0.5, 0.125  # steps of the line search, in powers of two
MOVES = (1, -1, 2, -2)
ROUNDS = 20  # of moves, at most


class Tries:
    """Lock-step fits by their anchors, each made once and counted once.

    With a file, what was found before a stop is not run again. Only weights and errors are kept
    there; states are walked anew where a later try goes on from them.
    """

    def __init__(self, problem: Problem, budget: int, path: Path | None = None) -> None:
        self.problem, self.path = problem, path
        self.budget = self.left = budget
        self.fits: dict[tuple[int, ...], Fit] = {}
        self._kept = _read(path, _job(problem)) if path else {}

    def fit(self, anchors: tuple[int, ...], known: Fit | None = None, first: int = 0) -> Fit | None:
        """The fit at these anchors; None where it would cost more than is left."""
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
        """The fit with its states, also where only its weights were kept."""
        if not self.fits[fit.anchors].states:
            self.fits[fit.anchors] = follow(self.problem, fit.anchors, fit.weights)
        return self.fits[fit.anchors]

    def _keep(self, fit: Fit) -> None:
        if self.path is None:
            return
        if not self.path.exists():
            write_atomically(self.path, json.dumps({"job": _job(self.problem)}) + "\n")
        found = {"anchors": fit.anchors, "weights": fit.weights, "drift": list(fit.drift.items())}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")


def search_anchors(tries: Tries, evaluations: int, progress: bool = False) -> Fit | None:
    """The best fit that was found while the tries lasted; None where not even one could be made."""
    best = best_power(tries, evaluations)
    return best and _moved_on(tries, best, progress)


def best_power(tries: Tries, evaluations: int) -> Fit | None:
    """The program's anchors for the power of the growth that serves best, by a line search."""
    reference, found = tries.problem.reference, dict[float, Fit]()

    def tried(octave: float) -> None:
        growth = np.power(reference.growth, 2.0**octave).tolist()
        fit = tries.fit(best_anchors(reference.errors, growth, evaluations))
        if fit is not None:
            found[octave] = fit

    tried(0.0)
    best, step = 0.0, FIRST
    while found and step >= FINEST:
        for octave in (best - step, best + step):
            tried(octave)
        before, best = best, min(found, key=lambda octave: _score(found[octave]))
        step = step if best != before else step / 2
    return found.get(best)


def _moved_on(tries: Tries, best: Fit, progress: bool) -> Fit:
    """Moves of one anchor that help by more than their standard error, also held-out samples.

    What precedes the moved anchor is not run again; late anchors come first, since they cost least.
    """
    problem = tries.problem
    order, settled = list(range(len(best.anchors) - 1, 0, -1)), 0
    for number in track(range(ROUNDS * len(order)), "searching", progress, at_most=True):
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
    """The anchors with number j moved; None where it would meet another, or had to stay."""
    n, steps = anchors[j] + by, len(problem.runs.times) - 1
    if anchors[j] in problem.parts or not anchors[j - 1] < n < (*anchors, steps)[j + 1]:
        return None
    return (*anchors[:j], n, *anchors[j + 1 :])


def _score(fit: Fit) -> float:
    return fmean(log_drift(fit))


def _job(problem: Problem) -> str:
    """What the tries depend on: a file of others is not read."""
    runs = problem.runs
    kind = ["carried", problem.history]
    facts = json.dumps([runs.job, runs.times, runs.breaks, kind, problem.samples])
    ends = problem.reference.states[[0, -1]].float().numpy().tobytes()
    return hashlib.sha256(facts.encode() + ends).hexdigest()


def _read(path: Path, job: str) -> dict[tuple[int, ...], Fit]:
    """The fits a file holds, without states; a last line that was torn by a kill is left out."""
    if not path.exists() or not path.stat().st_size:
        path.unlink(missing_ok=True)
        return {}
    *lines, torn = path.read_text(encoding="utf-8").split("\n")
    try:
        head, *rows = (json.loads(line) for line in lines)
        if head["job"] != job:
            raise PlanError(f"{path} holds the tries of another fit: delete it, or name another")
        found = {tuple(row["anchors"]): _as_fit(row) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path} holds no tries of a fit: delete it, or name another") from error
    if torn:
        write_atomically(path, "".join(f"{line}\n" for line in lines))
    return found


def _as_fit(row: dict[str, list[list[float]]]) -> Fit:
    drift = {int(number): value for number, value in row["drift"]}
    weights = tuple(tuple(weights) for weights in row["weights"])
    return Fit(tuple(row["anchors"]), weights, (), (), drift)  # type: ignore[arg-type]
