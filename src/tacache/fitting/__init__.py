"""Fitted plans: an interval's average velocity from that of its anchor and one carried memory.

The samples are run in full first (`samples`, `full_runs`, `reference`), and with more steps where
the flow is the target (`aiming`, `flow`). Weights are found in lock-step (`lockstep`). Anchors come
from a dynamic program (`anchors`) and from a local search on the final error (`search`); a last
step changes all weights at once (`refine`). Samples that no weight is fitted to judge the result.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacache.errors import PlanError, counted
from tacache.fidelity import capped, psnr
from tacache.fitting.aiming import FINER_RUNS
from tacache.fitting.anchors import best_anchors
from tacache.fitting.budget_search import guess_for, most_tries, tried_plans
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.flow import equivalent_steps, finest_of, log_mean
from tacache.fitting.full_runs import beside, held_out_of
from tacache.fitting.lockstep import (
    Fit,
    Problem,
    Reference,
    drift_of,
    lock_step,
    log_drift,
)
from tacache.fitting.portfolio import (
    best_nodes,
    candidates,
    first_round_file,
    free_problem,
    snapped,
)
from tacache.fitting.reference import record, reference_cost
from tacache.fitting.refine import needed, refine, with_weights
from tacache.fitting.samples import FitSamples, FunctionSamples
from tacache.fitting.search import SearchedFits, best_power, best_subset, search_anchors
from tacache.grid import break_steps
from tacache.instant import check_for_the_run, flow_nodes, instant_plan, multistep_rows
from tacache.plan import Certificate, LatentCertificate, LatentPlan, Plan
from tacache.storage.origin import Origin
from tacache.velocity import Condition, Velocity
from tacache.work.progress import counting

logger = logging.getLogger("tacache.fitting")
MIN_TRIES = 4  # fits of all samples that come before a refinement
MIN_SAMPLES = 8  # samples: with fewer, single ones of others may be led elsewhere

# Returns a plan with the PSNR of held-out pictures in its certificate.
Measuring = Callable[[Plan, Reference], Plan]


@torch.no_grad()
def fit_plan(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    evaluations: int | None = None,
    condition: Condition | None = None,
    batch_size: int | None = None,
    decode: Callable[[Tensor], Tensor] | None = None,
    **options: Any,
) -> Plan:
    """Fit a plan to full-step runs from `noise`: with so many evaluations, or as near as is asked.

    The full run is itself an approximation of the flow. With `target="flow"` the plan is fitted to
    the flow: a second run by a better solver with `reference_steps` (twice as many, unless told)
    says where the flow leads.

    In the place of evaluations, `like_steps=50` asks for the fewest that are as near to the flow as
    50 Euler steps, and `min_psnr=35` for the fewest whose pictures have this PSNR to the full run:
    several budgets are then tried, from one set of full runs.

    A quarter of the samples (at least one) is held out from every fit and judges the anchors. One
    evaluation is one velocity of one sample; at most `max_evaluations` are spent on one budget, the
    full runs included.

    Args:
        velocity: The guided velocity, `velocity(x, t, **condition)`.
        noise: The states that the samples start from, along dim 0.
        times: The noise levels of the full run, N + 1 numbers.
        evaluations: How often the plan evaluates the model.
        condition: What belongs to each sample, by the names of `velocity`'s arguments. Without one
            `velocity` always gets the whole batch; `{}` says that a part may be evaluated alone.
        batch_size: How many samples one call of `velocity` gets at most.
        decode: What turns results into pictures with values from 0 to 1, for `min_psnr`; the
            certificate then has their PSNR.
        **options: The fields of `tacache.fitting.fit_options.FitOptions`: like_steps, min_psnr,
            psnr_of, target, reference_steps, history, max_evaluations, search, resume and progress.

    Returns:
        The plan, with a certificate of what it does on the samples that were held out.

    Raises:
        PlanError: If such a plan cannot be fitted, or not with so few evaluations in all, or if no
            number of evaluations below the full run's reaches what is asked for.
        HostError: If a velocity is not finite, or not of its state's shape.

    """
    samples = FunctionSamples(velocity, noise, times, condition, batch_size)
    chosen, unknown = FitOptions.split({**options, "evaluations": evaluations})
    if unknown:
        raise TypeError(f"fit_plan has no option {', '.join(unknown)}")
    if chosen.min_psnr is not None and decode is None:
        raise PlanError(
            "min_psnr is the PSNR of pictures: give decode, which makes them of results, with "
            "values from 0 to 1; or ask for like_steps"
        )
    measure = None if decode is None else _measuring(samples, decode)
    return chosen_plan(fit_runs(samples, chosen, measure), chosen)


def chosen_plan(plans: Sequence[Plan], options: FitOptions) -> Plan:
    """Return the plan that was asked for, of those that were fitted.

    Where a quality was asked for that none of them promises, that is a PlanError.
    """
    goal = options.goal
    if goal is None:
        return plans[0]
    plan = goal.fewest(plans, lambda plan: plan)
    if plan is None:
        raise PlanError(
            f"up to {plans[-1].evaluations} evaluations do not reach what is asked for, "
            f"{goal.words}: {goal.best_of(plans)}. Ask for less, or make the full run"
        )
    return plan


def _measuring(samples: FunctionSamples, decode: Callable[[Tensor], Tensor]) -> Measuring:
    """Return what measures a plan on pictures of held-out samples."""

    def measure(plan: Plan, reference: Reference) -> Plan:
        full = decode(reference.run_ends[: reference.held_out].to(samples.noise.device))
        ends = samples.ends_by(plan, range(reference.held_out))
        spent = plan.evaluations * (samples.total if samples.together else reference.held_out)
        return with_psnr(plan, psnr(full, decode(ends)).tolist(), spent)

    return measure


def with_psnr(plan: Plan, values: Sequence[float], spent: int) -> Plan:
    """Return the plan with the PSNR of held-out pictures, which took so many evaluations."""
    assert plan.certificate is not None  # a fit has made one
    each = [capped(value) for value in values]
    changed = {
        "psnr": capped(fmean(values)) if values else None,
        "p5_psnr": float(np.quantile(each, 0.05)) if values else None,
        "worst_psnr": min(each, default=None),
        "evaluations_spent": plan.certificate.evaluations_spent + spent,
    }
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=changed)})


@torch.no_grad()
def fit_runs(runs: FitSamples, options: FitOptions, measure: Measuring | None = None) -> list[Plan]:
    """Return a plan for each budget, from full runs that are made once.

    Where a quality is asked for, they are the plans of all budgets that were tried. Each plan is
    measured by `measure`, for which a budget leaves aside what it takes to run the held-out samples
    once more; all fits are done by then, unless a PSNR is asked for. Searches keep what they found
    beside `options.resume`.
    """
    if options.target == "flow":
        check_for_the_run([latent.name for latent in runs.latents if latent.name is not None])
    aside = 0 if measure is None else held_out_of(runs.total)
    if options.target == "flow" and isinstance(runs, FunctionSamples):  # a grid not to be divided
        runs.divided_into(finest_of(len(runs.times) - 1, options.reference_steps))
    goal = options.goal
    if goal is None and not options.evaluations:
        raise PlanError("say how often the model is evaluated: evaluations, like_steps or min_psnr")
    least, most = _bounds(runs, options, aside)
    for budget in options.evaluations if goal is None else (most,):
        check_budget(runs, budget, options, aside * budget)
    if runs.total < MIN_SAMPLES:
        logger.warning(
            "a fit on %d samples may lead single pictures elsewhere: give it %d or more",
            runs.total, MIN_SAMPLES,
        )  # fmt: skip
    guess = most if goal is None else guess_for(goal, len(runs.times) - 1, least, most)
    if options.progress:
        beside = "probes take" if options.target == "run" else "what leads to the flow take at most"
        print(
            f"{runs.total} samples: full runs and {beside} {reference_cost(runs, options)} "
            "evaluations"
            f"; one budget spends at most {options.limit} in all"
            + ("" if goal is None else f", and at most {most_tries(least, most, guess)} are tried"),
            file=sys.stderr,
        )
    reference = record(runs, options)

    def fit(budget: int) -> Plan:
        return fit_budget(runs, reference, budget, options, measuring=aside * budget)

    def measured(plan: Plan) -> Plan:
        return plan if measure is None else measure(plan, reference)

    if options.min_psnr is not None and goal is not None:  # which says whether to go on
        return tried_plans(lambda budget: measured(fit(budget)), goal, least, most, guess)
    if goal is not None:
        plans = tried_plans(fit, goal, least, most, guess)
    else:
        plans = [fit(budget) for budget in options.evaluations]
    return [measured(plan) for plan in plans]


def _bounds(runs: FitSamples, options: FitOptions, aside: int) -> tuple[int, int]:
    """Return the fewest and the most evaluations that a fit with these options can have.

    The most skip a step at least, and are as many as may be spent.
    """
    steps, least = len(runs.times) - 1, 1 + len(break_steps(runs.times, runs.breaks))
    for budget in range(steps - 1, least, -1):
        try:
            check_budget(runs, budget, options, aside * budget)
        except PlanError:
            continue
        return least, budget
    return least, least


def check_budget(
    runs: FitSamples, evaluations: int, options: FitOptions, measuring: int = 0
) -> None:
    """Refuse before the first full run what cannot be fitted, and measured for so many more."""
    steps, parts = len(runs.times) - 1, len(break_steps(runs.times, runs.breaks))
    if runs.total < 2:
        raise PlanError("a fit needs at least two samples: one of them is held out to judge it")
    if not 1 + parts <= evaluations <= steps:
        raise PlanError(
            f"{counted(evaluations, 'evaluation')} cannot be made: {steps} steps take {1 + parts} "
            f"to {steps}"
        )
    needed = runs.total * evaluations + reference_cost(runs, options) + measuring
    if options.max_evaluations < needed:
        raise PlanError(
            f"max_evaluations={options.max_evaluations} is too few: the full runs, what is "
            f"measured beside them and one fit of {runs.total} samples take {needed}; allow that "
            "many" + (", or give fewer samples" if runs.total > 2 else "")
        )


def forget(resume: Path, budgets: Iterable[int]) -> None:
    """Delete what fits of these budgets have kept to go on from."""
    kept = (resume, *(beside(resume, what) for what in FINER_RUNS))
    tries = [_tries_file(resume, budget) for budget in budgets]
    for path in (*kept, *tries, *map(first_round_file, tries)):
        path.unlink(missing_ok=True)


def _tries_file(resume: Path, budget: int) -> Path:
    return resume.with_name(f"{resume.name}.search-{budget}")


def fit_budget(
    runs: FitSamples,
    reference: Reference,
    evaluations: int,
    options: FitOptions = FitOptions(),  # noqa: B008
    *,
    measuring: int = 0,
) -> Plan:
    """Return the plan of one budget; with too few evaluations left to search, by the program.

    Without a search only the power of the growth is chosen, and to the flow there is none: the best
    of a portfolio is taken. `measuring` are the evaluations that the caller spends on the plan
    afterwards.
    """
    path = options.resume and _tries_file(options.resume, evaluations)
    left = options.limit - reference.spent - measuring
    title = f"fitting {evaluations} of {len(runs.times) - 1} steps"
    with counting(max(left, 0), title, options.progress) as done:
        if reference.aim is not None:
            return _to_flow(runs, reference, evaluations, options, left, path, done)
        problem = Problem(runs, reference, options.history, list(range(runs.total)), done)
        if options.search:
            fit, spent = _searched(problem, evaluations, left, path)
        else:
            tries = SearchedFits(problem, left, path)
            best = best_subset(tries, evaluations) or best_power(tries, evaluations)
            fit, spent = _settled(tries, best, evaluations)
        if options.keep_better:
            return _better(problem, fit, reference.spent + spent)
    return _as_plan(problem, fit, reference.spent + spent)


def _better(problem: Problem, fit: Fit, spent: int) -> Plan:
    """Return the fitted plan, or that of the instant weights where held-out samples agree better.

    It stays a fitted plan, which was measured on these samples and is for their grid.
    """
    runs = problem.runs
    grids = {latent.name: latent.times for latent in runs.latents if latent.name is not None}
    instant = instant_plan(runs.times, len(fit.anchors), breaks=runs.breaks, latents=grids)
    beside = tuple(latent.weights for latent in (instant.latents or {}).values())
    known = with_weights(problem, instant.anchors, instant.weights or (), beside=beside)
    spent += len(problem.samples) * len(fit.anchors)
    judges = range(problem.reference.held_out)
    if _error(fit, judges) <= _error(known, judges):
        return _as_plan(problem, fit, spent)
    _tell_kept(len(judges))
    return _as_plan(problem, known, spent)


def _error(fit: Fit, samples: Iterable[int]) -> float:
    return fmean(log_drift(fit._replace(drift={i: fit.drift[i] for i in samples})))


def _tell_kept(judges: int) -> None:
    logger.warning(
        "an instant plan does better on %d held-out samples than the plan that was fitted: it is "
        "kept", judges,
    )  # fmt: skip


def _to_flow(
    runs: FitSamples,
    reference: Reference,
    evaluations: int,
    options: FitOptions,
    left: int,
    path: Path | None,
    done: Callable[[int], object],
) -> Plan:
    """Return a plan at free times, by the best nodes of a portfolio, judged on held-out samples."""
    judges, nodes = list(range(reference.held_out)), candidates(runs, reference, evaluations)
    instant = snapped(flow_nodes(runs.times, evaluations, runs.breaks), runs.times)
    judging = 0 if runs.together else len(judges) * evaluations
    aside = judging + runs.total * evaluations * options.keep_better
    with free_problem(runs, reference, [*nodes, instant], options.history, done) as problem:
        judged = problem if runs.together else problem._replace(samples=judges)
        fit, spent = best_nodes(problem, nodes, left - aside, path)
        if not (fit.states and runs.together):
            known = with_weights(judged, fit.anchors, fit.weights)
            fit, spent = known._replace(drift=fit.drift | known.drift), spent + judging
        if options.keep_better:
            fit, more = _nearer(problem, judged, fit, instant)
            spent += more
        return _as_plan(judged, fit, reference.spent + spent, runs.times)


def _nearer(problem: Problem, judged: Problem, fit: Fit, nodes: Sequence[float]) -> tuple[Fit, int]:
    """Return the fit, or an instant plan by which held-out samples end nearer; and what that took.

    The fitted samples follow it only then, since the certificate says where they end as well.
    """
    anchors = tuple(problem.runs.times.index(t) for t in nodes[:-1])
    rows = multistep_rows(nodes, break_steps(nodes, problem.runs.breaks))
    known, judges = with_weights(judged, anchors, rows), range(problem.reference.held_out)
    if _error(fit, judges) <= _error(known, judges):
        return fit, len(judged.samples) * len(anchors)
    _tell_kept(len(judges))
    rest = problem._replace(samples=[i for i in problem.samples if i not in judged.samples])
    drift = known.drift | with_weights(rest, anchors, rows).drift
    return known._replace(drift=drift), len(problem.samples) * len(anchors)


def _searched(problem: Problem, evaluations: int, left: int, path: Path | None) -> tuple[Fit, int]:
    """Return the best fit that so many evaluations find, refined with those left, and those spent.

    Held-out samples say whether the refinement is kept (docs/decisions/0015-gauss-newton-step.md).
    A fit of several latents is not refined.
    """
    if problem.runs.latents:
        tries = SearchedFits(problem, left, path)
        return _settled(tries, search_anchors(tries, evaluations), evaluations)
    once = len(problem.samples) * evaluations  # what one fit of all samples takes
    aside = needed(problem.reference.held_out, evaluations) + once
    tries = SearchedFits(problem, left - aside if left - aside >= MIN_TRIES * once else left, path)
    fit, spent = _settled(tries, search_anchors(tries, evaluations), evaluations)
    weights, more = refine(problem, fit, left - spent - once)
    if weights == fit.weights:
        return fit, spent + more
    return with_weights(problem, fit.anchors, weights), spent + more + once


def _settled(tries: SearchedFits, fit: Fit | None, evaluations: int) -> tuple[Fit, int]:
    """Return what the tries found with its states, or the program's anchors, and what that took."""
    if fit is not None:
        return tries.walked(fit), tries.budget - tries.left
    problem, reference = tries.problem, tries.problem.reference
    anchors = best_anchors(reference.errors, reference.growth, evaluations)
    return lock_step(problem, anchors), len(problem.samples) * evaluations


def _as_plan(problem: Problem, fit: Fit, spent: int, grid: tuple[float, ...] | None = None) -> Plan:
    """Return the plan of a fit, with its certificate; `grid` is the run's where times are free."""
    runs, reference = problem.runs, problem.reference
    first = runs.latents[0] if runs.latents else None
    number = None if first is None else 0
    to_run = drift_of(problem, fit.states[-1], reference.run_ends, number)
    to_aim = fit.drift if first is None else drift_of(problem, fit.states[-1], latent=0)
    judges, others = range(reference.held_out), range(reference.held_out, runs.total)
    to_flow = nearness = None
    if reference.aim is not None:
        euler = reference.aim.euler
        floor, ends = reference.aim.floor, [fit.drift[i] for i in judges]
        to_flow, typical = max(fmean(ends), floor), max(log_mean(ends), floor)
        if min(typical, *euler.values()) > 0:  # else all steps are exact
            nearness = equivalent_steps(typical, euler)
    nodes = (*(runs.times[n] for n in fit.anchors), runs.times[-1])
    return Plan(
        rule="fitted",
        times=runs.times if grid is None else nodes,
        anchors=fit.anchors if grid is None else tuple(range(len(fit.anchors))),
        weights=fit.weights,
        samples=runs.total - reference.held_out,
        breaks=runs.breaks,
        grid=grid,
        origin=Origin(
            latent_shape=tuple(runs.noise.shape[1:]) if first is None else first.shape,
            dtype=str(runs.noise.dtype).removeprefix("torch."),
        ),
        certificate=Certificate(
            held_out=reference.held_out,
            drift=fmean(to_run[i] for i in judges),
            worst_drift=max(to_run[i] for i in judges),
            fit_drift=fmean(to_aim[i] for i in others),
            flow_drift=to_flow,
            equivalent_steps=nearness,
            evaluations_spent=spent,
            date=date.today().isoformat(),
        ),
        latents=_further_latents(problem, fit) or None,
    )


def _further_latents(problem: Problem, fit: Fit) -> dict[str, LatentPlan]:
    """Return what a plan holds of a joint model's further latents, with their certificates."""
    judges = range(problem.reference.held_out)
    others, latents = range(len(judges), problem.runs.total), {}
    for number, weights in enumerate(fit.beside, start=1):
        latent = problem.runs.latents[number]
        drift = drift_of(problem, fit.states[-1], latent=number)
        assert latent.name is not None  # only the first has none
        latents[latent.name] = LatentPlan(
            times=latent.times,
            weights=weights,
            breaks=latent.breaks,
            latent_shape=latent.shape,
            certificate=LatentCertificate(
                drift=fmean(drift[i] for i in judges),
                worst_drift=max(drift[i] for i in judges),
                fit_drift=fmean(drift[i] for i in others),
            ),
        )
    return latents
