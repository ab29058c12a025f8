"""A plan: which steps to evaluate, and the numbers that rebuild the others."""

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator
from typing_extensions import Self

from tacache.certificate import Certificate
from tacache.errors import PlanError, TACacheError
from tacache.grid import as_times, break_steps, step_lengths
from tacache.profile import Origin, Profile, check_rates
from tacache.rules import PROFILE_RULES, RATES
from tacache.schedule import (
    MAX_SKIP,
    Schedule,
    budget_for,
    interval_table,
    loses_to_even_steps,
    schedule_for,
    walk,
    warn_of_even_steps,
)
from tacache.storage.files import FileRecord

LONGEST = 3  # numbers in a row of weights with a carried memory
LARGEST_GROWTH = 80.0  # of log |v| in a step: more is infinite in float32
LARGEST_WEIGHT = 1e4  # fitted ones add up to about 1, and are below 10 each
Values = Annotated[tuple[JsonValue, ...], Field(min_length=1)]
Rule = Literal["tasu", "magnitude", "direction", "reuse", "damped", "fitted", "linear"]
WEIGHTED = ("fitted", "linear")  # rules whose intervals are weighted sums of velocities


class Plan(FileRecord):
    """A plan says which steps are evaluated (the anchors) and how the others are rebuilt.

    A plan made from a profile carries its magnitude and direction, and the thresholds it was made
    with. A fitted plan carries its weights: one row an interval, the newest anchor first. It also
    carries the values of arguments that varied between the runs it was fitted on. With a carried
    memory its rows are (a, b, r): m_i = v_{i-1} + r_i m_{i-1}, and the average velocity is
    a_i v_i + b_i m_i.
    """

    FORMAT: ClassVar[str] = "tacache-plan"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = PlanError
    REMEDY: ClassVar[str] = "Make the plan again, or restore the file from where it came from"
    OMITTED: ClassVar[tuple[str, ...]] = ("memory", "certificate", "varied")

    rule: Rule
    times: tuple[float, ...]
    anchors: tuple[int, ...]
    magnitude: tuple[float, ...] | None = None
    direction: tuple[float, ...] | None = None
    tau_k: Annotated[float, Field(ge=0)] | None = None
    tau_d: Annotated[float, Field(ge=0)] | None = None
    max_skip: Annotated[int, Field(ge=1)] | None = None
    weights: tuple[tuple[float, ...], ...] | None = None
    memory: Literal["carried"] | None = None
    samples: Annotated[int, Field(ge=1)] | None = None
    breaks: tuple[float, ...] = ()
    host: Origin = Origin()
    certificate: Certificate | None = None
    varied: dict[str, Values] | None = None  # `host.call` has the middle ones

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        as_times(self.times)
        self._check_anchors()
        self._check_rates()
        if self.rule in WEIGHTED:
            self._check_weights()
        else:
            self._check_not_fitted()
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
        needs = RATES.get(self.rule, (False, False))
        for name, needed in zip(("magnitude", "direction"), needs, strict=True):
            values = getattr(self, name)
            if values is None and needed:
                raise PlanError(f"the rule {self.rule!r} needs '{name}', one number a step")
            if values is not None and len(values) != self.steps:
                raise PlanError(
                    f"'{name}' has {len(values)} numbers, but times have {self.steps} steps"
                )
            if values is not None:
                check_rates(name, values, PlanError)
        for k, dt in zip(self.magnitude or (), step_lengths(self.times), strict=False):
            if k * dt > LARGEST_GROWTH:
                raise PlanError(
                    f"'magnitude' has {k:g} for a step of {dt:g}: a velocity cannot grow so much"
                )
        if self.direction is not None and min(self.direction) < 0:
            raise PlanError(f"'direction' has a negative number, {min(self.direction)}")

    def _check_weights(self) -> None:
        if self.weights is None or len(self.weights) != self.evaluations:
            found = "none" if self.weights is None else f"{len(self.weights)} rows"
            raise PlanError(
                f"a {self.rule} plan needs one row of weights an interval, {self.evaluations}; "
                f"it has {found}"
            )
        for i, row in enumerate(self.weights):
            if any(abs(weight) > LARGEST_WEIGHT for weight in row):
                raise PlanError(
                    f"row {i} of weights has {max(row, key=abs):g}: none is beyond "
                    f"{LARGEST_WEIGHT:g}, since a row adds up to about 1"
                )
            if not 1 <= len(row) <= i + 1:
                raise PlanError(
                    f"row {i} of weights has {len(row)} numbers; {i + 1} velocities are known there"
                )
            if self.memory and len(row) > LONGEST:
                raise PlanError(
                    f"row {i} of weights has {len(row)} numbers; with a carried memory it has at "
                    f"most {LONGEST}"
                )

    def _check_not_fitted(self) -> None:
        names = {"weights": "weights", "memory": "a memory", "varied": "varied settings"}
        for field, name in names.items():
            if getattr(self, field) is not None:
                raise PlanError(
                    f"only a fitted or linear plan has {name}, this one has the rule {self.rule!r}"
                )

    @classmethod
    def full(cls, times: Iterable[float]) -> Self:
        """Return the plan that evaluates every step: the reference."""
        grid = as_times(times)
        return cls(rule="reuse", times=grid, anchors=tuple(range(len(grid) - 1)))

    @property
    def steps(self) -> int:
        """The number of steps, N."""
        return len(self.times) - 1

    @property
    def evaluations(self) -> int:
        """How often the model is evaluated, K."""
        return len(self.anchors)

    @property
    def speedup(self) -> float:
        """Steps per evaluation, N / K. It is the speedup where only evaluations take time."""
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
        """Return exp(k dt) and d, which turn the velocity of `step` into the next one (eq. 13)."""
        magnitude, direction = RATES[self.rule]
        growth, turn = 1.0, 0.0
        if magnitude and self.magnitude is not None:
            growth = math.exp(self.magnitude[step] * (self.times[step] - self.times[step + 1]))
        if direction and self.direction is not None:
            turn = self.direction[step]
        return growth, turn


def check_plan(plan: object) -> None:
    """Refuse what is not a plan, with a hint how to get one."""
    if not isinstance(plan, Plan):
        raise PlanError(
            f"a plan is needed, not a {type(plan).__name__}: Plan.load reads one from a file, "
            "make_plan makes one of a profile"
        )


def as_plan(plan: "Plan | str | Path") -> Plan:
    """A plan given as it is, or by the path of its file."""
    if isinstance(plan, str | Path):
        return Plan.load(plan)
    check_plan(plan)
    return plan


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
    """Make a plan from a profile: by a budget, by a speedup, or by the paper's thresholds.

    Give exactly one of `evaluations`, `speedup` (floor(N / speedup) evaluations), and `tau_k` with
    `tau_d`. For a budget the thresholds are found; `ratio` keeps tau_d = ratio * tau_k. The rules
    "magnitude", "direction" and "reuse" switch off one or both updates of "tasu". A warning is
    logged where the profile says that as many plain steps are expected to do better.
    """
    if not isinstance(profile, Profile):
        raise PlanError(
            f"a profile is needed, not a {type(profile).__name__}: Profile.load reads one from a "
            "file, calibrate measures one"
        )
    if rule not in PROFILE_RULES:
        raise PlanError(
            f"unknown rule {rule!r} for a profile: choose from {', '.join(PROFILE_RULES)}"
        )
    _check_exactly_one(tau_k, tau_d, evaluations, speedup, ratio)
    variation = step_variation(profile)
    parts = break_steps(profile.times, profile.breaks)
    if tau_k is not None and tau_d is not None:
        table = interval_table(
            *variation, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip, breaks=parts
        )
        chosen = Schedule(tau_k, tau_d, walk(table))
    else:
        budget = evaluations if evaluations is not None else budget_for(profile.steps, speedup)
        chosen = schedule_for(
            *variation, evaluations=budget, max_skip=max_skip, ratio=ratio, breaks=parts
        )
    turned, lengths = PROFILE_RULES[rule][1], step_lengths(profile.times)
    share = profile.unresolved if turned else 0.0
    if loses_to_even_steps(profile.direction, lengths, chosen.anchors, share):
        warn_of_even_steps(rule, len(chosen.anchors), profile.steps)
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


def step_variation(profile: Profile) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The sequences K and D that SSC adds up (before eq. 7): |k_n| dt_n and d_n."""
    lengths = step_lengths(profile.times)
    magnitude = tuple(abs(k) * dt for k, dt in zip(profile.magnitude, lengths, strict=True))
    return magnitude, profile.direction


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
