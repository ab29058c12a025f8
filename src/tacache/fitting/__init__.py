"""Fitted plans: an interval's average velocity from that of its anchor and one carried memory.

The samples are run in full first (`samples`, `full_runs`, `reference`), and with more steps where
the flow is the target (`aiming`, `flow`). Weights are found in lock-step (`lockstep`). Anchors come
from a dynamic program (`anchors`) and from a local search on the final error (`search`); a last
step changes all weights at once (`refine`). Samples that no weight is fitted to judge the result.
"""

import logging
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from tacache.certificate import Certificate
from tacache.errors import PlanError
from tacache.fitting.aiming import FINER_RUNS, flow_cost
from tacache.fitting.anchors import best_anchors
from tacache.fitting.flow import Target, equivalent_steps, finest_of
from tacache.fitting.full_runs import beside, held_out_of
from tacache.fitting.lockstep import Fit, Problem, Reference, drift_of, lock_step
from tacache.fitting.reference import probe_cost, record
from tacache.fitting.refine import needed, refine, with_weights
from tacache.fitting.samples import FunctionRuns, Runs
from tacache.fitting.search import SearchedFits, best_power, search_anchors
from tacache.grid import break_steps
from tacache.plan import LONGEST, Plan
from tacache.profile import Origin
from tacache.velocity import Condition, Velocity
from tacache.work.progress import counting

logger = logging.getLogger("tacache.fitting")
TRIES = 4  # fits of all samples that come before a refinement
FAST = 1500  # evaluations in all, without a search
ENOUGH = 8  # samples: with fewer, single ones of others may be led elsewhere


@torch.no_grad()
def fit_plan(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    evaluations: int,
    target: Target = "run",
    reference_steps: int | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    condition: Condition | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Plan:
    """Fit a plan with this many evaluations to full-step runs from `noise`.

    The full run is itself an approximation of the flow. With `target="flow"` the plan is fitted to
    the flow: a second run by a better solver with `reference_steps` (twice as many, unless told)
    says where the flow leads.

    A quarter of the samples (at least one) is held out from every fit and judges the anchors. One
    evaluation is one velocity of one sample; at most `max_evaluations` are spent, the full runs
    included. `search=False` is quicker: it keeps the anchors that a dynamic program finds, and
    spends at most 1,500 evaluations. `history` says from what an interval is rebuilt: 1, the
    velocity of its anchor; 2, the last two; 3, a memory of all before. Without a condition
    `velocity` always gets the whole batch; `condition={}` says that a part may be evaluated alone.
    """
    runs = FunctionRuns(velocity, noise, times, condition, batch_size)
    return fit_runs(
        runs,
        [evaluations],
        target=target,
        reference_steps=reference_steps,
        history=history,
        max_evaluations=max_evaluations,
        search=search,
        progress=progress,
    )[0][0]


@torch.no_grad()
def fit_runs(
    runs: Runs,
    evaluations: Sequence[int],
    *,
    target: Target = "run",
    reference_steps: int | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    measured: bool = False,
    resume: Path | None = None,
    progress: bool = False,
) -> tuple[list[Plan], Reference]:
    """A plan for each budget, from full runs that are made once, and those full runs.

    With `measured`, a budget leaves aside what it takes to run the held-out samples once more under
    its plan. `resume` names a file that keeps the full runs; searches keep theirs beside it.
    """
    aside = held_out_of(runs.total) if measured else 0
    aiming = flow_cost(runs, target, reference_steps)
    if target == "flow" and isinstance(runs, FunctionRuns):  # a grid that cannot be divided
        runs.divided_into(finest_of(len(runs.times) - 1, reference_steps))
    for budget in evaluations:
        check_budget(runs, budget, history, max_evaluations, aside * budget + aiming)
    if runs.total < ENOUGH:
        logger.warning(
            "a fit on %d samples may lead single pictures elsewhere: give it %d or more",
            runs.total, ENOUGH,
        )  # fmt: skip
    if progress:
        full = runs.total * (len(runs.times) - 1) + probe_cost(runs)
        print(
            f"{runs.total} samples: full runs and probes take {full} evaluations"
            + (f", the flow at most {aiming} more" if aiming else "")
            + f"; one budget spends at most {max_evaluations} in all",
            file=sys.stderr,
        )
    reference = record(
        runs, target=target, reference_steps=reference_steps, resume=resume, progress=progress
    )
    plans = [
        fit_budget(
            runs,
            reference,
            budget,
            history=history,
            max_evaluations=max_evaluations,
            search=search,
            measuring=aside * budget,
            resume=resume,
            progress=progress,
        )
        for budget in evaluations
    ]
    return plans, reference


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
    needed = runs.total * (steps + evaluations) + probe_cost(runs) + measuring
    if max_evaluations < needed:
        raise PlanError(
            f"max_evaluations={max_evaluations} is too few: the full runs, the probes and the "
            f"final fit of {runs.total} samples take {needed}; allow that many"
            + (", or give fewer samples" if runs.total > 2 else "")
        )


def forget(resume: Path, budgets: Iterable[int]) -> None:
    """Delete what fits of these budgets have kept to go on from."""
    kept = (resume, *(beside(resume, what) for what in FINER_RUNS))
    for path in (*kept, *(_tries_file(resume, budget) for budget in budgets)):
        path.unlink(missing_ok=True)


def _tries_file(resume: Path, budget: int) -> Path:
    return resume.with_name(f"{resume.name}.search-{budget}")


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
    most = max_evaluations if search else min(max_evaluations, FAST)
    left = most - reference.spent - measuring
    with counting(left, f"fitting {evaluations} of {len(runs.times) - 1} steps", progress) as done:
        problem = Problem(runs, reference, history, list(range(runs.total)), done)
        if search:
            fit, spent = _searched(problem, evaluations, left, path)
        else:
            tries = SearchedFits(problem, left, path)
            fit, spent = _settled(tries, best_power(tries, evaluations), evaluations)
    return _as_plan(problem, fit, reference.spent + spent)


def _searched(problem: Problem, evaluations: int, left: int, path: Path | None) -> tuple[Fit, int]:
    """The best fit that so many evaluations find, refined with what is over, and those it took.

    A fit to the flow is not refined: that led single pictures elsewhere (docs/decisions.md).
    """
    if problem.reference.euler:
        tries = SearchedFits(problem, left, path)
        return _settled(tries, search_anchors(tries, evaluations), evaluations)
    once = len(problem.samples) * evaluations  # what one fit of all samples takes
    aside = needed(problem.reference.held_out, evaluations) + once
    tries = SearchedFits(problem, left - aside if left - aside >= TRIES * once else left, path)
    fit, spent = _settled(tries, search_anchors(tries, evaluations), evaluations)
    weights, more = refine(problem, fit, left - spent - once)
    if weights == fit.weights:
        return fit, spent + more
    return with_weights(problem, fit.anchors, weights), spent + more + once


def _settled(tries: SearchedFits, fit: Fit | None, evaluations: int) -> tuple[Fit, int]:
    """What the tries found with its states, or the program's anchors, and what that took."""
    if fit is not None:
        return tries.walked(fit), tries.budget - tries.left
    problem, reference = tries.problem, tries.problem.reference
    anchors = best_anchors(reference.errors, reference.growth, evaluations)
    return lock_step(problem, anchors), len(problem.samples) * evaluations


def _as_plan(problem: Problem, fit: Fit, spent: int) -> Plan:
    """The plan of a fit, with its certificate."""
    runs, reference = problem.runs, problem.reference
    to_run = drift_of(problem, fit.states[-1], reference.run_ends)
    judges, others = range(reference.held_out), range(reference.held_out, runs.total)
    to_flow = nearness = None
    if reference.euler:
        to_flow = max(fmean(fit.drift[i] for i in judges), reference.flow_floor)
        if min(to_flow, *reference.euler.values()) > 0:  # else all steps are exact
            nearness = equivalent_steps(to_flow, reference.euler)
    return Plan(
        rule="fitted",
        times=runs.times,
        anchors=fit.anchors,
        weights=fit.weights,
        memory="carried",
        samples=runs.total - reference.held_out,
        breaks=runs.breaks,
        host=Origin(
            latent_shape=tuple(runs.noise.shape[1:]),
            dtype=str(runs.noise.dtype).removeprefix("torch."),
        ),
        certificate=Certificate(
            held_out=reference.held_out,
            drift=fmean(to_run[i] for i in judges),
            fit_drift=fmean(fit.drift[i] for i in others),
            flow_drift=to_flow,
            equivalent_steps=nearness,
            evaluations_spent=spent,
            date=date.today().isoformat(),
        ),
    )
