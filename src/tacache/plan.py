"""A plan: which steps to evaluate, and the numbers that rebuild the others."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from tacache.errors import PlanError, TACacheError
from tacache.files import FileRecord
from tacache.grid import as_times, break_steps, step_lengths
from tacache.profile import Host, Profile
from tacache.rules import PROFILE_RULES
from tacache.schedule import (
    MAX_SKIP,
    Schedule,
    interval_table,
    longest_intervals,
    schedule_for,
    walk,
)

Rule = Literal["tasu", "magnitude", "direction", "reuse", "fitted"]


class Plan(FileRecord):
    """The anchors of a run, the rule between them and the rule's numbers.

    Plans made from a profile carry its magnitude and direction, and the thresholds they were made
    with; a fitted plan carries its weights, one row an interval, newest anchor first.
    """

    FORMAT: ClassVar[str] = "tacache-plan"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = PlanError
    REMEDY: ClassVar[str] = "Make the plan again, or restore the file from where it came from"

    rule: Rule
    times: tuple[float, ...]
    anchors: tuple[int, ...]
    magnitude: tuple[float, ...] | None = None
    direction: tuple[float, ...] | None = None
    tau_k: Annotated[float, Field(ge=0)] | None = None
    tau_d: Annotated[float, Field(ge=0)] | None = None
    max_skip: Annotated[int, Field(ge=1)] | None = None
    weights: tuple[tuple[float, ...], ...] | None = None
    samples: Annotated[int, Field(ge=1)] | None = None
    breaks: tuple[float, ...] = ()
    host: Host = Host()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        as_times(self.times)
        self._check_anchors()
        self._check_rates()
        if self.rule == "fitted":
            self._check_weights()
        elif self.weights is not None:
            raise PlanError(f"only a fitted plan has weights, this one has the rule {self.rule!r}")
        return self

    def _check_anchors(self) -> None:
        if not self.anchors or self.anchors[0] != 0:
            raise PlanError(f"anchors must begin with step 0, not {list(self.anchors[:3])}")
        increasing = all(a < b for a, b in pairwise(self.anchors))
        if not increasing or self.anchors[-1] >= self.steps:
            raise PlanError(
                f"anchors must increase and lie within the {self.steps} steps of times, "
                f"not {list(self.anchors)}"
            )
        if missing := set(self.break_steps) - set(self.anchors):
            raise PlanError(f"a new part starts at steps {sorted(missing)}: they must be anchors")

    def _check_rates(self) -> None:
        needs = PROFILE_RULES.get(self.rule, (False, False))
        for name, needed in zip(("magnitude", "direction"), needs, strict=True):
            values = getattr(self, name)
            if values is None and needed:
                raise PlanError(f"the rule {self.rule!r} needs '{name}', one number a step")
            if values is not None and len(values) != self.steps:
                raise PlanError(
                    f"'{name}' has {len(values)} numbers, but times have {self.steps} steps"
                )
        if self.direction is not None and min(self.direction) < 0:
            raise PlanError(f"'direction' has a negative number, {min(self.direction)}")

    def _check_weights(self) -> None:
        if self.weights is None or len(self.weights) != self.evaluations:
            found = "none" if self.weights is None else f"{len(self.weights)} rows"
            raise PlanError(
                f"a fitted plan needs one row of weights an interval, {self.evaluations}; "
                f"it has {found}"
            )
        for i, row in enumerate(self.weights):
            if not 1 <= len(row) <= i + 1:
                raise PlanError(
                    f"row {i} of weights has {len(row)} numbers; {i + 1} velocities are known there"
                )

    @classmethod
    def full(cls, times: Iterable[float]) -> Self:
        """The plan that evaluates every step: the reference."""
        grid = as_times(times)
        return cls(rule="reuse", times=grid, anchors=tuple(range(len(grid) - 1)))

    @property
    def steps(self) -> int:
        """N, the number of steps."""
        return len(self.times) - 1

    @property
    def evaluations(self) -> int:
        """K, how often the model is evaluated."""
        return len(self.anchors)

    @property
    def speedup(self) -> float:
        """Steps per evaluation, N / K: the speedup where only evaluations take time."""
        return self.steps / self.evaluations

    @property
    def break_steps(self) -> tuple[int, ...]:
        """The steps at which history starts anew."""
        return break_steps(self.times, self.breaks)

    @property
    def intervals(self) -> tuple[int, ...]:
        """The length of each anchor's interval."""
        ends = (*self.anchors[1:], self.steps)
        return tuple(end - n for n, end in zip(self.anchors, ends, strict=True))

    def update(self, step: int) -> tuple[float, float]:
        """exp(k dt) and d with which `step`'s velocity leads to the next one's (eq. 13)."""
        magnitude, direction = PROFILE_RULES[self.rule]
        growth, turn = 1.0, 0.0
        if magnitude and self.magnitude is not None:
            growth = math.exp(self.magnitude[step] * (self.times[step] - self.times[step + 1]))
        if direction and self.direction is not None:
            turn = self.direction[step]
        return growth, turn


def make_plan(
    profile: Profile,
    *,
    tau_k: float | None = None,
    tau_d: float | None = None,
    evaluations: int | None = None,
    speedup: float | None = None,
    ratio: float | None = None,
    max_skip: int = MAX_SKIP,
    rule: Rule = "tasu",
) -> Plan:
    """A plan from a profile: by the paper's thresholds, by a budget, or by a speedup.

    Give exactly one of `tau_k` with `tau_d`, `evaluations`, and `speedup` (floor(N / speedup)
    evaluations). For a budget the thresholds are found; `ratio` keeps tau_d = ratio * tau_k. The
    rules "magnitude", "direction" and "reuse" switch off one or both updates of "tasu".
    """
    if rule not in PROFILE_RULES:
        raise PlanError(
            f"unknown rule {rule!r} for a profile: choose from {', '.join(PROFILE_RULES)}"
        )
    _check_exactly_one(tau_k, tau_d, evaluations, speedup, ratio)
    variation = step_variation(profile)
    parts = _parts(profile)
    if tau_k is not None and tau_d is not None:
        table = interval_table(
            *variation, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip, breaks=parts
        )
        chosen = Schedule(tau_k, tau_d, walk(table))
    else:
        budget = evaluations if evaluations is not None else _budget(profile.steps, speedup)
        chosen = schedule_for(
            *variation, evaluations=budget, max_skip=max_skip, ratio=ratio, breaks=parts
        )
    return Plan(
        rule=rule,
        times=profile.times,
        anchors=chosen.anchors,
        magnitude=profile.magnitude,
        direction=profile.direction,
        tau_k=chosen.tau_k,
        tau_d=chosen.tau_d,
        max_skip=max_skip,
        samples=profile.samples,
        breaks=profile.breaks,
        host=profile.host,
    )


def replan(plan: Plan, times: Iterable[float]) -> Plan:
    """The plan its stored rates and thresholds give on another grid.

    Where thresholds alone do not give its anchors (intervals were split to meet a budget), the same
    share of the new grid's steps is evaluated. A plan that evaluates every step does so on any
    grid, and one step is always evaluated.
    """
    grid = as_times(times)
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
    fewest = len(walk(longest_intervals(steps, plan.max_skip or 1, _parts(moved))))
    return make_plan(moved, evaluations=min(max(budget, fewest), steps), **limits)  # type: ignore[arg-type]


def _profile_of(plan: Plan) -> Profile:
    """The profile a plan was made from, as far as it kept it."""
    limits = (plan.tau_k, plan.tau_d, plan.max_skip)
    if plan.magnitude is None or plan.direction is None or None in limits:
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
    """The plan with these breaks: where a new part starts, an anchor, and another to learn from."""
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


def _weights_for(
    plan: Plan, anchors: Sequence[int], starts: Sequence[int]
) -> tuple[tuple[float, ...], ...] | None:
    """Fitted weights for other anchors: a row is kept if it meets the velocities it was fitted on.

    Elsewhere, and where history was dropped at one of `starts`, the newest velocity is reused.
    """
    if plan.weights is None:
        return None
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

    return tuple(row(i) for i in range(len(anchors)))


def step_variation(profile: Profile) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The sequences K and D that SSC adds up (before eq. 7): |k_n| dt_n and d_n."""
    lengths = step_lengths(profile.times)
    magnitude = tuple(abs(k) * dt for k, dt in zip(profile.magnitude, lengths, strict=True))
    return magnitude, profile.direction


def _parts(profile: Profile) -> tuple[int, ...]:
    return break_steps(profile.times, profile.breaks)


def _check_exactly_one(
    tau_k: float | None,
    tau_d: float | None,
    evaluations: int | None,
    speedup: float | None,
    ratio: float | None,
) -> None:
    if (tau_k is None) != (tau_d is None):
        missing = "tau_k" if tau_k is None else "tau_d"
        raise PlanError(f"thresholds come as a pair: {missing} is missing")
    given = [
        name
        for name, value in (
            ("tau_k and tau_d", tau_k),
            ("evaluations", evaluations),
            ("speedup", speedup),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise PlanError(
            "give exactly one of tau_k and tau_d, evaluations, speedup: "
            + (f"{', '.join(given)} were given" if given else "none was given")
        )
    if ratio is not None and tau_k is not None:
        raise PlanError(
            "ratio goes with evaluations or speedup: tau_k and tau_d are given as they are"
        )


def _budget(steps: int, speedup: float | None) -> int:
    """K = floor(N / s), for s from 1 up."""
    if speedup is None or not 1 <= speedup < math.inf:
        raise PlanError(f"speedup is a number from 1 (no step skipped) up, not {speedup}")
    return math.floor(steps / speedup + 1e-9)
