"""The same plan for another grid, for a run with breaks, or for a stretch of its steps."""

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from tacache.errors import HostError, PlanError
from tacache.grid import as_times, break_steps, same_grid
from tacache.instant import instant_plan, line_share, linear_rows
from tacache.plan import Plan, check_one_latent, make_plan
from tacache.profile import Profile
from tacache.ssc import longest_intervals, walk
from tacache.stepper import memory_rate, memory_sums
from tacache.tasu import PROFILE_RULES


def replan(plan: Plan, times: Iterable[float], evaluations: int | None = None) -> Plan:
    """Return the plan that its stored rates give on another grid, with as many evaluations.

    Its own thresholds are kept where they give that many. `evaluations` asks for another number. A
    grid that has fewer steps is evaluated in full, and so is any grid by a plan that evaluates
    every step. One step is always evaluated. A plan for the flow becomes an instant one.
    """
    check_one_latent(plan)
    grid = as_times(times)
    steps, parts = len(grid) - 1, break_steps(grid, plan.breaks)
    budget = plan.evaluations if evaluations is None else evaluations
    if plan.rule == "linear" or plan.has_own_times:
        fewest = 1 + len(parts)
        target: Literal["run", "flow"] = "flow" if plan.has_own_times else "run"
        moved = instant_plan(
            grid, min(max(budget, fewest), steps), breaks=plan.breaks, target=target
        )
        return moved.model_copy(update={"origin": plan.origin})
    if steps == 1 or (plan.evaluations == plan.steps and plan.weights is None):
        return Plan.full(grid).model_copy(update={"origin": plan.origin})
    measured = _profile_of(plan).resample(grid)
    limits = {"max_skip": plan.max_skip, "rule": plan.rule}
    same = make_plan(measured, tau_k=plan.tau_k, tau_d=plan.tau_d, **limits)  # type: ignore[arg-type]
    if same.evaluations == budget:
        return same
    fewest = len(walk(longest_intervals(steps, plan.max_skip or 1, parts)))
    ratio = plan.tau_d / plan.tau_k if plan.tau_k and plan.tau_d else None
    evaluations = min(max(budget, fewest), steps)
    return make_plan(measured, evaluations=evaluations, ratio=ratio, **limits)  # type: ignore[arg-type]


def moved_to(
    plan: Plan,
    times: tuple[float, ...],
    log: logging.Logger,
    *,
    level: int = logging.WARNING,
    hint: str = "",
    evaluations: int | None = None,
) -> Plan:
    """Return the plan on the grid of a run; the log says where that differs from its own.

    A fitted plan moves to other noise levels of as many steps only; `hint` says what sets the grid.
    One for the flow keeps its times on any grid with the same ends.
    """
    if plan.has_own_times:
        _check_same_ends(plan, times)
        return plan
    if same_grid(plan.times, times):
        return plan
    if plan.rule != "fitted":
        moved = replan(plan, times, evaluations)
        log.log(
            level,
            "the plan is for %d steps from %.4g, this run has %d from %.4g%s: planned again from "
            "its rates, %d evaluations",
            plan.steps, plan.times[0], moved.steps, moved.times[0], hint, moved.evaluations,
        )  # fmt: skip
        return moved
    if plan.steps != len(times) - 1:
        raise HostError(
            f"the fitted plan has {plan.steps} steps, this run has {len(times) - 1}{hint}: fit one "
            "with that many steps"
        )
    log.warning(
        "the fitted plan's noise levels differ from this run's by up to %.3g (another shift): "
        "expect a lower fidelity than its certificate says",
        max(abs(a - b) for a, b in zip(plan.times, times, strict=True)),
    )
    return at_levels(plan, times)


def _check_same_ends(plan: Plan, times: Sequence[float]) -> None:
    """Refuse a plan with times of its own for a run that starts or ends elsewhere."""
    ends = (plan.times[0], plan.times[-1]), (times[0], times[-1])
    if not same_grid(*ends):
        raise HostError(
            "the plan has times of its own, from {:g} to {:g}, and this run goes from {:g} to "
            "{:g}: make one for such runs".format(*ends[0], *ends[1])
        )


def can_move(plan: Plan) -> bool:
    """Return whether the plan holds what it was made from; a damped one has its anchors only."""
    kept = (plan.magnitude, plan.direction, plan.tau_k, plan.tau_d, plan.max_skip)
    return plan.rule in PROFILE_RULES and None not in kept


def _profile_of(plan: Plan) -> Profile:
    """Return the profile a plan was made from, as far as it kept it."""
    if not can_move(plan) or plan.magnitude is None or plan.direction is None:
        raise PlanError(
            f"a {plan.rule} plan without rates and thresholds of its own cannot move to another "
            "grid: make one for this grid"
        )
    unknown = (0.0,) * plan.steps
    return Profile(
        times=plan.times,
        samples=plan.samples or 1,
        magnitude=plan.magnitude,
        magnitude_std=unknown,
        direction=plan.direction,
        direction_std=unknown,
        breaks=plan.breaks,
        origin=plan.origin,
    )


def with_breaks(plan: Plan, breaks: Iterable[float]) -> Plan:
    """Return the plan with these breaks, and with two anchors where a new part starts."""
    wanted = tuple(breaks)
    if wanted == plan.breaks:
        return plan
    if plan.has_own_times and plan.rule == "fitted":
        raise HostError(
            f"the plan was fitted to the flow of runs that change their expert or guidance at "
            f"noise levels {plan.breaks}, and this one does at {wanted}: fit one for such runs"
        )
    if plan.has_own_times:
        return replan(plan.model_copy(update={"breaks": wanted}), plan.full_times)
    starts = break_steps(plan.times, wanted)
    extra = {n for start in starts for n in (start, start + 1) if n < plan.steps}
    anchors = tuple(sorted({*plan.anchors, *extra}))
    changed = {
        "breaks": wanted,
        "anchors": anchors,
        "weights": _weights_for(plan, anchors, starts),
    }
    return Plan.model_validate({**plan.model_dump(), **changed})


def from_step(plan: Plan, start: int) -> Plan:
    """Return the plan for the steps from `start` on, where no history is known yet."""
    if plan.has_own_times:
        return stretch_for_the_flow(plan, plan.full_times[start:])
    kept = sorted({start, start + 1} | {n for n in plan.anchors if n >= start})
    anchors = tuple(n for n in kept if n < plan.steps)
    changed = {
        "times": plan.times[start:],
        "anchors": tuple(n - start for n in anchors),
        "magnitude": plan.magnitude and plan.magnitude[start:],
        "direction": plan.direction and plan.direction[start:],
        "weights": _weights_for(plan, anchors, (start,)),
    }
    return Plan.model_validate({**plan.model_dump(), **changed})


def stretch_for_the_flow(plan: Plan, times: tuple[float, ...], whole: int | None = None) -> Plan:
    """Return an instant plan for the flow over a stretch of the run, with its share of evaluations.

    A fitted one is not cut: its weights are for the history that its first nodes have.
    """
    share = (len(times) - 1) / (whole or plan.full_steps)
    return replan(plan, times, max(1, round(plan.evaluations * share)))


def until_step(plan: Plan, stop: int) -> Plan:
    """Return the plan for its first steps; an interval that is cut short reuses its velocity."""
    if plan.has_own_times:
        return stretch_for_the_flow(plan, plan.full_times[: stop + 1])
    if stop == plan.steps:
        return plan
    anchors = tuple(n for n in plan.anchors if n < stop)
    weights = plan.weights and plan.weights[: len(anchors)]
    if plan.rule == "linear":
        parts = [n for n in plan.break_steps if n < stop]
        weights = _rows_between(plan, plan.times[: stop + 1], anchors, parts)
    elif weights and stop not in plan.anchors:
        weights = (*weights[:-1], (1.0,))
    changed = {
        "times": plan.times[: stop + 1],
        "anchors": anchors,
        "magnitude": plan.magnitude and plan.magnitude[:stop],
        "direction": plan.direction and plan.direction[:stop],
        "weights": weights,
    }
    return Plan.model_validate({**plan.model_dump(), **changed})


def at_levels(plan: Plan, times: tuple[float, ...]) -> Plan:
    """Return the plan with the same steps at other noise levels, where breaks may move."""
    moved = {**plan.model_dump(), "times": times}
    if break_steps(times, plan.breaks) == plan.break_steps:
        return Plan.model_validate(moved)
    return with_breaks(Plan.model_validate({**moved, "breaks": ()}), plan.breaks)


def _rows_between(
    plan: Plan, times: Sequence[float], anchors: Sequence[int], parts: Sequence[int]
) -> tuple[tuple[float, ...], ...]:
    """Return the weights of an instant plan at other anchors, with its share of straight lines."""
    share = line_share(plan.steps, plan.evaluations)
    return linear_rows(times, anchors, parts, share)


def _weights_for(
    plan: Plan, anchors: Sequence[int], starts: Sequence[int]
) -> tuple[tuple[float, ...], ...] | None:
    """Return fitted weights for other anchors: a row is kept if it meets the same velocities.

    Elsewhere, and where history was dropped at one of `starts`, the newest velocity is reused.
    """
    if plan.weights is None:
        return None
    if plan.rule == "linear":  # starts count from the plan's first step, as anchors do
        first = anchors[0]
        shifted = [n - first for n in anchors]
        return _rows_between(
            plan, plan.times[first:], shifted, [n - first for n in starts if n > first]
        )
    fitted = dict(zip(plan.anchors, plan.weights, strict=True))

    def row(i: int) -> tuple[float, ...]:
        stored = fitted.get(anchors[i], ())
        first = max((n for n in starts if n <= anchors[i]), default=0)
        reach = plan.anchors.index(anchors[i]) if stored else 0
        met = plan.anchors[max(0, reach - len(stored) + 1) : reach + 1]
        now = tuple(anchors[max(0, i - len(stored) + 1) : i + 1])
        same_interval = i + 1 == len(anchors) or (
            reach + 1 < plan.evaluations and anchors[i + 1] == plan.anchors[reach + 1]
        )
        kept = stored and met == now and met[0] >= first and same_interval
        return stored if kept else (1.0,)

    rows = tuple(row(i) for i in range(len(anchors)))
    return _refilled(plan, anchors, rows)


def _refilled(
    plan: Plan, anchors: Sequence[int], rows: tuple[tuple[float, ...], ...]
) -> tuple[tuple[float, ...], ...]:
    """Return rows with rates that make up for a memory that begins later than fitted."""
    sums = dict(zip(plan.anchors, memory_sums(plan.weights or ()), strict=True))

    def refilled(i: int) -> tuple[float, ...]:
        begins = memory_rate(rows[i]) and not memory_rate(rows[i - 1])
        return (*rows[i][:2], rows[i][2] * sums[anchors[i - 1]]) if begins else rows[i]

    return tuple(refilled(i) for i in range(len(rows)))
