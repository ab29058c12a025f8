"""Fitted plans: an interval's average velocity from that of its anchor and one carried memory.

Weights are found in lock-step (`lockstep`). Anchors come from a dynamic program (`placement`) and a
local search on the final error; a last step changes all weights at once (`refinement`). Samples
that no weight is fitted to judge all of it.
"""

import math
import os
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

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
    lock_step,
)
from tacache.placement import (
    best_anchors,
    growth_between,
    inner_products,
    local_errors,
    pooled,
)
from tacache.plan import LONGEST, Certificate, Plan
from tacache.profile import Host
from tacache.progress import track
from tacache.refinement import follow, needed, refine
from tacache.searching import Tries, best_power, search_anchors
from tacache.velocity import Condition, Velocity
from tacache.walking import Walk, walk_of
from tacache.weighing import mean

PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 4  # where, and on how many samples, growth is measured
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long
KEEP_EVERY = 10  # steps
TRIES = 4  # fits of all samples that come before a refinement
FAST = 1500  # evaluations in all, without a search


@torch.no_grad()
def fit_plan(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    evaluations: int,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    condition: Condition | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Plan:
    """A plan with this many evaluations, fitted on full-step runs from `noise`.

    A quarter of the samples (at least one) is held out from every fit and judges the anchors. One
    evaluation is one velocity of one sample; at most `max_evaluations` are spent, the full runs
    included. `search=False` moves none of the dynamic program's anchors and tries other weightings
    of growth only as far as 1,500 evaluations go. `history` says what an interval may use: 1, the
    velocity of its anchor; 2, the last two; 3, a memory of all before. Without a condition
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
        max_evaluations=max_evaluations,
        search=search,
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
    if not 1 <= history <= LONGEST:
        raise PlanError(
            f"history is 1 (the newest velocity), 2 (the last two) or {LONGEST} (a memory of all "
            f"before the newest), not {history}"
        )
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
    x, walk = states[-1].to(runs.noise.device), _retraced(runs, everyone, states, velocities)
    for n in track(range(len(velocities), steps), "full steps", progress):
        v = runs.evaluate(x, n, everyone)
        x = walk.move(x, v, n, n + 1)
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
        growth=_growth(runs, recorded, walked, progress),
        held_out=held_out,
        spent=runs.total * steps + _probe_cost(runs),
    )


def forget(resume: Path, budgets: Iterable[int]) -> None:
    """Delete what fits of these budgets have kept to go on from."""
    for path in (resume, *(_tries_file(resume, budget) for budget in budgets)):
        path.unlink(missing_ok=True)


def _tries_file(resume: Path, budget: int) -> Path:
    return resume.with_name(f"{resume.name}.search-{budget}")


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
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    measuring: int = 0,
    resume: Path | None = None,
    progress: bool = False,
) -> Plan:
    """A plan for one budget; with too few evaluations left to search, the program's anchors.

    Without a search only the power of the growth is chosen, as far as `FAST` evaluations go;
    `measuring` are those the caller spends on the plan afterwards. `resume` is the file that keeps
    the full runs; the search keeps what it finds beside it.
    """
    path = resume and _tries_file(resume, evaluations)
    problem = Problem(runs, reference, history, list(range(runs.total)))
    most = max_evaluations if search else min(max_evaluations, FAST)
    left = most - reference.spent - measuring
    if search:
        fit, spent = _searched(problem, evaluations, left, path, progress)
    else:
        tries = Tries(problem, left, path)
        fit, spent = _settled(tries, best_power(tries, evaluations), evaluations)
    return _as_plan(problem, fit, reference.spent + spent)


def _searched(
    problem: Problem, evaluations: int, left: int, path: Path | None, progress: bool
) -> tuple[Fit, int]:
    """The best fit that so many evaluations find, refined with what is over, and those it took."""
    once = len(problem.samples) * evaluations  # what one fit of all samples takes
    aside = needed(problem.reference.held_out, evaluations) + once
    tries = Tries(problem, left - aside if left - aside >= TRIES * once else left, path)
    fit, spent = _settled(tries, search_anchors(tries, evaluations, progress), evaluations)
    weights, more = refine(problem, fit, left - spent - once)
    if weights == fit.weights:
        return fit, spent + more
    return follow(problem, fit.anchors, weights), spent + more + once


def _settled(tries: Tries, fit: Fit | None, evaluations: int) -> tuple[Fit, int]:
    """What the tries found with its states, or the program's anchors, and what that took."""
    if fit is not None:
        return tries.walked(fit), tries.budget - tries.left
    problem, reference = tries.problem, tries.problem.reference
    anchors = best_anchors(reference.errors, reference.growth, evaluations)
    return lock_step(problem, anchors), len(problem.samples) * evaluations


def _as_plan(problem: Problem, fit: Fit, spent: int) -> Plan:
    """The plan of a fit, with its certificate."""
    runs, reference = problem.runs, problem.reference
    judged = [fit.drift[i] for i in range(reference.held_out)]
    fitted = [fit.drift[i] for i in range(reference.held_out, runs.total)]
    return Plan(
        rule="fitted",
        times=runs.times,
        anchors=fit.anchors,
        weights=fit.weights,
        memory="carried",
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
            evaluations_spent=spent,
            date=date.today().isoformat(),
        ),
    )


def _growth(runs: Runs, states: Tensor, velocities: Tensor, progress: bool) -> list[float]:
    """How errors grow: at a few steps, make the one that reuse makes, run on, and compare."""
    steps, found = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            walk = _retraced(runs, chosen, states, velocities[: _probed_from(steps, n)])
            on_device = states[:, chosen].to(runs.noise.device)
            error, result = _probe(runs, walk, on_device, n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        found.append(math.exp(mean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), found)


def _probe(
    runs: Runs, walk: Walk, states: Tensor, n: int, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = _probed_from(len(times) - 1, n)
    v = (states[before] - states[before + 1]) / (times[before] - times[before + 1])
    if before == n - 1:  # one step makes no error: go a little too far
        v = 1.1 * v
    x = walk.move(states[before], v, before, n)
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = walk.move(x, runs.evaluate(x, i, chosen), i, i + 1)
    return error, norm(x - states[-1]) + tiny


def _retraced(
    runs: Runs,
    chosen: Sequence[int],
    states: Sequence[Tensor] | Tensor,
    velocities: Sequence[Tensor] | Tensor,
) -> Walk:
    """A walk of the chosen samples that stands where their full steps so far have led."""
    walk, device, rows = walk_of(runs, runs.times, chosen), runs.noise.device, list(chosen)
    for n in range(len(velocities) if walk.remembers else 0):
        walk.move(states[n][rows].to(device), velocities[n][rows].to(device), n, n + 1)
    return walk


def _probed_from(steps: int, n: int) -> int:
    """The step whose velocity is reused up to step n."""
    return max(0, n - max(1, round(PROBE_SKIP * steps)))


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def _probe_cost(runs: Runs) -> int:
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))
