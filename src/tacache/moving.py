"""The same plan for another grid, for a run with breaks, or for a stretch of its steps."""

import logging
from collections.abc import Iterable, Sequence

from tacache.errors import HostError, PlanError
from tacache.grid import as_times, break_steps, same_grid
from tacache.instant import instant_plan, linear_rows
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.rules import PROFILE_RULES, memory_rate, memory_sums
from tacache.schedule import longest_intervals, walk


def replan(plan: Plan, times: Iterable[float]) -> Plan:
    """The plan its stored rates and thresholds give on another grid.

    Where thresholds alone do not give its anchors (intervals were split to meet a budget), the same
    share of the new grid's steps is evaluated. A plan that evaluates every step does so on any
    grid, and one step is always evaluated.
    """
    grid = as_times(times)
    if plan.rule == "linear":
        return _instant_again(plan, grid)
    if len(grid) == 2 or (plan.evaluations == plan.steps and plan.weights is None):
        return Plan.full(grid).model_copy(update={"host": plan.host})
    measured = _profile_of(plan)
    limits = {"max_skip": plan.max_skip, "rule": plan.rule}
    thresholds = {"tau_k": plan.tau_k, "tau_d": plan.tau_d, **limits}
    if make_plan(measured, **thresholds).anchors == plan.anchors:  # type: ignore[arg-type]
        return make_plan(measured.resample(grid), **thresholds)  # type: ignore[arg-type]
    steps = len(grid) - 1
    budget = round(plan.evaluations * steps / plan.steps)
    moved = measured.resample(grid)
    parts = break_steps(grid, plan.breaks)
    fewest = len(walk(longest_intervals(steps, plan.max_skip or 1, parts)))
    evaluations = min(max(budget, fewest), steps)
    return make_plan(moved, evaluations=evaluations, **limits)  # type: ignore[arg-type]


def _instant_again(plan: Plan, grid: tuple[float, ...]) -> Plan:
    """The instant plan of another grid, which evaluates the same share of its steps."""
    steps, parts = len(grid) - 1, break_steps(grid, plan.breaks)
    budget = max(round(plan.evaluations * steps / plan.steps), 1 + len(parts))
    moved = instant_plan(grid, min(budget, steps), breaks=plan.breaks)
    return moved.model_copy(update={"host": plan.host})


def moved_to(
    plan: Plan,
    times: tuple[float, ...],
    log: logging.Logger,
    *,
    level: int = logging.WARNING,
    hint: str = "",
) -> Plan:
    """The plan on the grid of a run; the log says where that differs from the plan's own grid.

    A fitted plan moves to other noise levels of as many steps only; `hint` says what sets the grid.
    """
    if same_grid(plan.times, times):
        return plan
    if plan.rule != "fitted":
        moved = replan(plan, times)
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


def can_move(plan: Plan) -> bool:
    """Whether the plan holds what it was made from; a damped one is for its own anchors only."""
    kept = (plan.magnitude, plan.direction, plan.tau_k, plan.tau_d, plan.max_skip)
    return plan.rule in PROFILE_RULES and None not in kept


def _profile_of(plan: Plan) -> Profile:
    """The profile a plan was made from, as far as it kept it."""
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
        host=plan.host,
    )


def with_breaks(plan: Plan, breaks: Iterable[float]) -> Plan:
    """The plan with these breaks, and with two anchors where a new part starts."""
    wanted = tuple(breaks)
    if wanted == plan.breaks:
        return plan
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
    """The plan for the steps from `start` on, where no history is known yet."""
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


def until_step(plan: Plan, stop: int) -> Plan:
    """The plan for its first steps; an interval that is cut short reuses its velocity."""
    if stop == plan.steps:
        return plan
    anchors = tuple(n for n in plan.anchors if n < stop)
    weights = plan.weights and plan.weights[: len(anchors)]
    if plan.rule == "linear":
        parts = [n for n in plan.break_steps if n < stop]
        weights = linear_rows(plan.times[: stop + 1], anchors, parts)
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
    """The plan with the same steps at other noise levels, where its breaks may fall elsewhere."""
    moved = {**plan.model_dump(), "times": times}
    if break_steps(times, plan.breaks) == plan.break_steps:
        return Plan.model_validate(moved)
    return with_breaks(Plan.model_validate({**moved, "breaks": ()}), plan.breaks)


def _weights_for(
    plan: Plan, anchors: Sequence[int], starts: Sequence[int]
) -> tuple[tuple[float, ...], ...] | None:
    """Fitted weights for other anchors: a row is kept if it meets the velocities it was fitted on.

    Elsewhere, and where history was dropped at one of `starts`, the newest velocity is reused.
    """
    if plan.weights is None:
        return None
    if plan.rule == "linear":  # starts count from the plan's first step, as anchors do
        first = anchors[0]
        shifted = [n - first for n in anchors]
        return linear_rows(plan.times[first:], shifted, [n - first for n in starts if n > first])
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
    return _refilled(plan, anchors, rows) if plan.memory else rows


def _refilled(
    plan: Plan, anchors: Sequence[int], rows: tuple[tuple[float, ...], ...]
) -> tuple[tuple[float, ...], ...]:
    """Rows with rates that make up for a memory that begins later than where they were fitted."""
    sums = dict(zip(plan.anchors, memory_sums(plan.weights or ()), strict=True))

    def refilled(i: int) -> tuple[float, ...]:
        begins = memory_rate(rows[i]) and not memory_rate(rows[i - 1])
        return (*rows[i][:2], rows[i][2] * sums[anchors[i - 1]]) if begins else rows[i]

    return tuple(refilled(i) for i in range(len(rows)))
