"""Fitted plans: every interval's average velocity as a weighted sum of the last few evaluated ones.

Weights are found in lock-step (`lockstep`). Anchors come from a dynamic program (`placement`) and a
local search on the final error; a last step changes all weights at once (`refinement`). Samples
that no weight is fitted to judge all of it.
"""

import math
import os
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacache.decomposition import norm
from tacache.errors import PlanError
from tacache.grid import break_steps
from tacache.lockstep import (
    Fit,
    FunctionRuns,
    Problem,
    Reference,
    Runs,
    is_better,
    lock_step,
    log_drift,
    mean,
)
from tacache.placement import (
    best_anchors,
    growth_between,
    inner_products,
    local_errors,
    pooled,
)
from tacache.plan import Certificate, Plan
from tacache.profile import Host
from tacache.progress import track
from tacache.refinement import follow, needed, refine
from tacache.velocity import Condition, Velocity, euler

PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 2  # where, and on how many samples, growth is measured
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long
POWERS = (1.0, 0.5, 1.5, 2.5)  # of the measured growth, each a start of the search
KEEP_EVERY = 10  # steps
SEARCHED = 8  # samples that are run while searching
STEPS = (1, -1, 2, -2)


@torch.no_grad()
def fit_plan(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    evaluations: int,
    history: int = 4,
    max_evaluations: int = 3000,
    search: bool = True,
    condition: Condition | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Plan:
    """A plan with this many evaluations, fitted on full-step runs from `noise`.

    A quarter of the samples (at least one) is held out from every fit and judges the anchors. One
    evaluation is one velocity of one sample; at most `max_evaluations` are spent, the full runs
    included. `search=False` takes the dynamic program's anchors as they are. Without a condition
    `velocity` always gets the whole batch; `condition={}` says that a part may be evaluated alone.
    """
    runs = FunctionRuns(velocity, noise, times, condition, batch_size)
    check_budget(runs, evaluations, history, max_evaluations)
    reference = record(runs, progress=progress)
    return fit_budget(
        runs,
        reference,
        evaluations,
        history=history,
        max_evaluations=max_evaluations if search else 0,
        progress=progress,
    )


def check_budget(
    runs: Runs, evaluations: int, history: int, max_evaluations: int, measuring: int = 0
) -> None:
    """Refuse before the first full run what cannot be fitted, and measured for so many more."""
    steps, parts = len(runs.times) - 1, len(break_steps(runs.times, runs.breaks))
    if runs.total < 2:
        raise PlanError("a fit needs at least two samples: one of them is held out to judge it")
    if not 1 + parts <= evaluations <= steps:
        raise PlanError(
            f"{evaluations} evaluations are impossible: {steps} steps take {1 + parts} to {steps}"
        )
    if history < 1:
        raise PlanError(f"history is at least 1 velocity, not {history}")
    needed = runs.total * (steps + evaluations) + _probe_cost(runs) + measuring
    if max_evaluations < needed:
        raise PlanError(
            f"max_evaluations={max_evaluations} is too few: the full runs, the probes and the "
            f"final fit of {runs.total} samples take {needed}; give fewer samples"
        )


def record(runs: Runs, *, resume: Path | None = None, progress: bool = False) -> Reference:
    """Run all samples with full steps, and measure how errors made on the way grow.

    `resume` names a file that keeps the runs as far as they are, every few steps.
    """
    steps, everyone = len(runs.times) - 1, range(len(runs.noise))
    states, velocities = _kept(resume, runs)
    x = states[-1].to(runs.noise.device)
    for n in track(range(len(velocities), steps), "full steps", progress):
        v = runs.evaluate(x, n, everyone)
        x = euler(x, v, runs.times[n], runs.times[n + 1])
        velocities.append(v.cpu())
        states.append(x.cpu())
        if resume and (len(velocities) % KEEP_EVERY == 0 or len(velocities) == steps):
            _keep(resume, runs, states, velocities)
    walked, recorded = torch.stack(velocities), torch.stack(states)
    grams = runs.gathered({i: inner_products(walked[:, k]) for k, i in enumerate(runs.numbers)})
    held_out = held_out_of(runs.total)
    kept = [grams[i] for i in sorted(grams) if i >= held_out]
    parts = break_steps(runs.times, runs.breaks)
    return Reference(
        states=recorded,
        errors=local_errors(pooled(kept), runs.times, parts),
        growth=_growth(runs, recorded, progress),
        held_out=held_out,
        spent=runs.total * steps + _probe_cost(runs),
    )


def held_out_of(total: int) -> int:
    """How many samples judge a fit: a quarter, at least one."""
    return max(1, total // 4)


def _kept(path: Path | None, runs: Runs) -> tuple[list[Tensor], list[Tensor]]:
    """States and velocities of a run that was stopped; those of other samples are an error."""
    start = runs.noise.cpu()
    if path is None or not path.exists():
        return [start], []
    found = torch.load(path, weights_only=True)
    same_job = found["times"] == list(runs.times) and found["job"] == runs.job
    if not same_job or not torch.equal(found["states"][0], start):
        raise PlanError(f"{path} holds the runs of another fit: delete it, or name another file")
    return list(found["states"]), list(found["velocities"])


def _keep(path: Path, runs: Runs, states: Sequence[Tensor], velocities: Sequence[Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    walked = {"states": torch.stack(list(states)), "velocities": torch.stack(list(velocities))}
    torch.save({"job": runs.job, "times": list(runs.times), **walked}, draft)
    draft.replace(path)


def fit_budget(
    runs: Runs,
    reference: Reference,
    evaluations: int,
    *,
    history: int = 4,
    max_evaluations: int = 3000,
    progress: bool = False,
) -> Plan:
    """A plan for one budget; with too few evaluations left to search, the program's anchors."""
    left = max_evaluations - reference.spent - runs.total * evaluations
    anchors, spent = best_anchors(reference.errors, reference.growth, evaluations), 0
    problem = Problem(runs, reference, history, list(range(runs.total)))
    few = problem if runs.together else problem.of_first(SEARCHED)
    if left >= len(few.samples) * evaluations:  # of one start
        aside = needed(runs.total, reference.held_out, evaluations)
        share = max(left - aside, left // 4, len(few.samples) * evaluations)
        anchors, spent = search_anchors(few, evaluations, share, progress)
    fit = lock_step(problem, anchors)
    again = runs.total * evaluations  # for a look at all samples under other weights
    weights, more = refine(problem, fit, left - spent - again)
    spent += more
    if weights != fit.weights:
        fit, spent = follow(problem, anchors, weights), spent + again
    judged = [fit.drift[i] for i in range(reference.held_out)]
    fitted = [fit.drift[i] for i in range(reference.held_out, runs.total)]
    return Plan(
        rule="fitted",
        times=runs.times,
        anchors=anchors,
        weights=fit.weights,
        samples=runs.total - reference.held_out,
        breaks=runs.breaks,
        host=Host(
            latent_shape=tuple(runs.noise.shape[1:]),
            dtype=str(runs.noise.dtype).removeprefix("torch."),
        ),
        certificate=Certificate(
            held_out=reference.held_out,
            drift=mean(judged),
            fit_drift=mean(fitted),
            evaluations_spent=reference.spent + spent + runs.total * evaluations,
            date=date.today().isoformat(),
        ),
    )


def search_anchors(
    problem: Problem, evaluations: int, budget: int, progress: bool
) -> tuple[tuple[int, ...], int]:
    """The best of several starts, then moves of one anchor that help, while the budget lasts.

    A move is kept if it lowers the log error by more than its standard error over the samples, and
    that of the held-out ones as well. What precedes the moved anchor is not run again.
    """
    best, spent = _best_start(problem, evaluations, budget)
    tried, settled = {best.anchors}, 0
    order = list(range(evaluations - 1, 0, -1))  # late anchors first: they cost least
    for number in track(range(20 * len(order)), "searching", progress):
        j = order[number % len(order)]
        moved = [_moved(best.anchors, j, by, problem) for by in STEPS]
        before, cost = best, len(problem.samples) * (evaluations - j)
        for anchors in moved:
            if anchors is None or anchors in tried or spent + cost > budget:
                continue
            tried.add(anchors)
            spent += cost
            fit = lock_step(problem, anchors, best, j - 1)
            if is_better(fit, best, problem.reference.held_out):
                best = fit
                break
        settled = 0 if best is not before else settled + 1
        if settled == len(order) or spent + len(problem.samples) > budget:
            break
    return best.anchors, spent


def _best_start(problem: Problem, evaluations: int, budget: int) -> tuple[Fit, int]:
    """The best of the dynamic program's anchors for several powers of the measured growth."""
    reference, cost = problem.reference, len(problem.samples) * evaluations
    starts = dict.fromkeys(
        best_anchors(reference.errors, np.power(reference.growth, power).tolist(), evaluations)
        for power in POWERS
    )
    fits: list[Fit] = []
    for anchors in starts:
        if not fits or (len(fits) + 1) * cost <= budget:
            fits.append(lock_step(problem, anchors))
    return min(fits, key=lambda fit: mean(log_drift(fit))), cost * len(fits)


def _moved(anchors: tuple[int, ...], j: int, by: int, problem: Problem) -> tuple[int, ...] | None:
    """The anchors with number j moved; None where it would meet another, or had to stay."""
    n, steps = anchors[j] + by, len(problem.runs.times) - 1
    if anchors[j] in problem.parts or not anchors[j - 1] < n < (*anchors, steps)[j + 1]:
        return None
    return (*anchors[:j], n, *anchors[j + 1 :])


def _growth(runs: Runs, states: Tensor, progress: bool) -> list[float]:
    """How errors grow: at a few steps, make the one that reuse makes, run on, and compare."""
    steps, found = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            error, result = _probe(runs, states[:, chosen].to(runs.noise.device), n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        found.append(math.exp(mean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), found)


def _probe(runs: Runs, states: Tensor, n: int, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = max(0, n - max(1, round(PROBE_SKIP * (len(times) - 1))))
    slope = (states[before + 1] - states[before]) / (times[before] - times[before + 1])
    x = states[before] + slope * (times[before] - times[n])
    if before == n - 1:  # one step makes no error: go a little too far
        x = x + 0.1 * (states[n] - states[before])
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = euler(x, runs.evaluate(x, i, chosen), times[i], times[i + 1])
    return error, norm(x - states[-1]) + tiny


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def _probe_cost(runs: Runs) -> int:
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))
