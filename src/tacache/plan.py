"""A plan: which steps to evaluate, and the numbers that rebuild the others."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from tacache.errors import PlanError, TACacheError
from tacache.grid import as_times, break_steps, budget_for, step_lengths
from tacache.profile import Profile, check_rates
from tacache.ssc import (
    MAX_SKIP,
    Schedule,
    interval_table,
    loses_to_even_steps,
    schedule_for,
    walk,
    warn_of_even_steps,
)
from tacache.storage.files import FileRecord, Frozen
from tacache.storage.origin import Origin
from tacache.tasu import PROFILE_RULES, RATES

MAX_HISTORY = 3  # numbers in a row of weights: of the velocity, of the memory, and its rate
MAX_LOG_GROWTH = 80.0  # of log |v| in a step: more is infinite in float32
MAX_WEIGHT = 1e4  # fitted ones add up to about 1, and are below 10 each
# A row multiplies equal velocities by its sum: those of shipped plans lie within 0.79 and 1.16, of
# fits with one anchor or a restarted parent within 0.12 and 1.69.
MIN_ROW_SUM, MAX_ROW_SUM = 0.05, 1.9
# What a certificate may say: equal pictures have 999 dB, and a drift of 1 is another picture.
MAX_PSNR, MAX_DRIFT, MAX_EQUIVALENT_STEPS = 999.0, 1e4, 1e9
MAX_SPECTRAL_DISTANCE = 1e3  # dB
Rule = Literal["tasu", "magnitude", "direction", "reuse", "damped", "fitted", "linear"]
LatentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
WEIGHTED = ("fitted", "linear")  # rules whose intervals are weighted sums of velocities


class Certificate(Frozen):
    """What a fitted plan was measured to do, on calibration samples that no weight was fitted to.

    Numbers are means over these samples, and the worst of them. Drift is the distance to the
    full-step result, divided by that result's norm. PSNR is of decoded pictures, in dB, if the host
    has a decoder; its 5th percentile lies between the two worst of few samples. A plan that was
    fitted to the flow also has its distance to the flow, and the number of Euler steps that are as
    near to it.
    """

    held_out: Annotated[int, Field(ge=1)]
    drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)]
    worst_drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)] | None = None
    fit_drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)]  # of the samples that were fitted
    psnr: Annotated[float, Field(ge=-MAX_PSNR, le=MAX_PSNR)] | None = None
    p5_psnr: Annotated[float, Field(ge=-MAX_PSNR, le=MAX_PSNR)] | None = None
    worst_psnr: Annotated[float, Field(ge=-MAX_PSNR, le=MAX_PSNR)] | None = None
    evaluations_spent: Annotated[int, Field(ge=1)]  # model evaluations, the full runs included
    date: str
    flow_drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)] | None = None
    equivalent_steps: Annotated[float, Field(gt=0, le=MAX_EQUIVALENT_STEPS)] | None = None

    def nearness(self, evaluations: int) -> str | None:
        """Return how near to the flow so many evaluations come, in a sentence, where measured."""
        if self.equivalent_steps is None:
            return None
        return near_as(evaluations, self.equivalent_steps)


def near_as(evaluations: int, steps: float) -> str:
    """Return the sentence that tells nearness to the flow in Euler steps."""
    return f"{evaluations} evaluations, as near to the flow as {steps:.0f} Euler steps"


class LatentCertificate(Frozen):
    """What a fitted plan was measured to do to this latent, on the samples of its certificate.

    The spectral distance is of decoded sound, in dB: how far its log spectrum is from that of the
    full run, in the mean over samples, and the farthest of them.
    """

    drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)]
    worst_drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)]
    fit_drift: Annotated[float, Field(ge=0, le=MAX_DRIFT)]
    spectral_distance: Annotated[float, Field(ge=0, le=MAX_SPECTRAL_DISTANCE)] | None = None
    worst_spectral_distance: Annotated[float, Field(ge=0, le=MAX_SPECTRAL_DISTANCE)] | None = None


class LatentPlan(Frozen):
    """What a plan holds of a latent that a joint model steps beside the first, as sound.

    All latents of a run have the same anchors, since one evaluation gives the velocity of each. The
    grid, the breaks and a row of weights for each interval are the latent's own.
    """

    times: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    breaks: tuple[float, ...] = ()
    latent_shape: tuple[int, ...] | None = None
    certificate: LatentCertificate | None = None


class Plan(FileRecord):
    """A plan says which steps are evaluated (the anchors) and how the others are rebuilt.

    A plan made from a profile carries its magnitude and direction, and the thresholds it was made
    with. A fitted plan carries its weights, one row (a, b, r) an interval: into interval i goes the
    memory m_i = v_{i-1} + r_i m_{i-1}, and its average velocity is a_i v_i + b_i m_i. A plan for
    the flow may have steps of its own: all of them are evaluated, and `grid` has the levels of the
    full run between which they lie.

    A plan for a joint model has further `latents` by name, such as "audio": they share the anchors,
    and times, breaks and weights are their own. All other fields are those of the first latent.
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
    origin: Origin = Origin()
    grid: tuple[float, ...] | None = None  # of the full run, where `times` are free
    certificate: Certificate | None = None
    latents: dict[LatentName, LatentPlan] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        as_times(self.times)
        self._check_latents()
        self._check_anchors()
        self._check_grid()
        self._check_rates()
        if self.rule in WEIGHTED:
            self._check_weights()
        else:
            self._check_no_weights()
        return self

    def _check_latents(self) -> None:
        if self.latents is None:
            return
        if not self.latents or self.rule not in WEIGHTED or self.grid is not None:
            raise PlanError(
                "'latents' are the further ones of a fitted or linear plan on the run's own steps, "
                "at least one: leave the field out where there is none"
            )
        for name, latent in self.latents.items():
            if len(latent.times) != len(self.times):
                raise PlanError(
                    f"the latent {name!r} has {len(latent.times) - 1} steps, but the plan "
                    f"{self.steps}: all latents of a run make the same steps"
                )
            self.of_latent(name)  # checks it as a plan by itself

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

    def _check_grid(self) -> None:
        if self.grid is None:
            return
        grid = as_times(self.grid)
        if self.rule not in WEIGHTED:
            raise PlanError(
                f"a plan with a 'grid' is fitted or linear, which has weights, not {self.rule!r}"
            )
        if self.evaluations != self.steps:
            raise PlanError("a plan with a 'grid' has steps of its own: it evaluates all of them")
        if (grid[0], grid[-1]) != (self.times[0], self.times[-1]):
            raise PlanError(
                f"times from {self.times[0]:g} to {self.times[-1]:g} leave the grid from "
                f"{grid[0]:g} to {grid[-1]:g}"
            )

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
            if k * dt > MAX_LOG_GROWTH:
                raise PlanError(
                    f"'magnitude' has {k:g} for a step of {dt:g}: a velocity cannot grow so much"
                )
        if self.direction is not None and min(self.direction) < 0:
            raise PlanError(f"'direction' has a negative number, {min(self.direction)}")

    def _check_weights(self) -> None:
        if self.weights is None or len(self.weights) != self.evaluations:
            rows = "none" if self.weights is None else f"{len(self.weights)} rows"
            raise PlanError(
                f"a {self.rule} plan needs one row of weights an interval, {self.evaluations}; "
                f"it has {rows}"
            )
        for i, row in enumerate(self.weights):
            if any(abs(weight) > MAX_WEIGHT for weight in row):
                raise PlanError(
                    f"row {i} of weights has {max(row, key=abs):g}: none is beyond "
                    f"{MAX_WEIGHT:g}, since a row adds up to about 1"
                )
            if not 1 <= len(row) <= i + 1:
                raise PlanError(
                    f"row {i} of weights has {len(row)} numbers; {i + 1} velocities are known there"
                )
            if len(row) > MAX_HISTORY:
                raise PlanError(
                    f"row {i} of weights has {len(row)} numbers; it has at most {MAX_HISTORY}, of "
                    "the velocity, of the memory, and the memory's rate"
                )
        for i, total in enumerate(row_sums(self.weights)):
            if not MIN_ROW_SUM <= total <= MAX_ROW_SUM:
                raise PlanError(
                    f"row {i} of weights adds up to {total:g}: it must be about 1, within "
                    f"{MIN_ROW_SUM:g} and {MAX_ROW_SUM:g}"
                )

    def _check_no_weights(self) -> None:
        if self.weights is not None:
            raise PlanError(
                f"only a fitted or linear plan has weights, this one has the rule {self.rule!r}"
            )

    @classmethod
    def full(cls, times: Iterable[float]) -> Self:
        """Return the plan that evaluates every step: the reference."""
        grid = as_times(times)
        return cls(rule="reuse", times=grid, anchors=tuple(range(len(grid) - 1)))

    def of_latent(self, name: str | None = None) -> "Plan":
        """Return the plan of one latent alone: of the first, or of a further one by its name.

        Raises:
            PlanError: The plan has no such latent.

        """
        if name is None:
            return self if self.latents is None else self.model_copy(update={"latents": None})
        latent = (self.latents or {}).get(name)
        if latent is None:
            known = ", ".join(self.latents or {}) or "none"
            raise PlanError(f"the plan has no latent {name!r} beside the first; it has {known}")
        return Plan(
            rule=self.rule,
            times=latent.times,
            anchors=self.anchors,
            weights=latent.weights,
            samples=self.samples,
            breaks=latent.breaks,
            origin=self.origin.model_copy(update={"latent_shape": latent.latent_shape}),
        )

    @property
    def steps(self) -> int:
        """Return the number of steps, N."""
        return len(self.times) - 1

    @property
    def evaluations(self) -> int:
        """Return how often the model is evaluated, K."""
        return len(self.anchors)

    @property
    def speedup(self) -> float:
        """Return steps per evaluation, N / K: the speedup where only evaluations take time."""
        return self.full_steps / self.evaluations

    @property
    def has_own_times(self) -> bool:
        """Return whether it is for the flow, with steps of its own between noise and data."""
        return self.grid is not None

    @property
    def full_times(self) -> tuple[float, ...]:
        """Return the noise levels of the full run that it stands for."""
        return self.times if self.grid is None else self.grid

    @property
    def full_steps(self) -> int:
        """Return how many steps that full run has."""
        return len(self.full_times) - 1

    @property
    def budget(self) -> str:
        """Return in words how often the model is evaluated."""
        if self.has_own_times:
            return f"{self.evaluations} at times of their own, for {self.full_steps} steps"
        return f"{self.evaluations} of {self.steps} steps"

    @property
    def is_full(self) -> bool:
        """Return whether it is the full run: every step is made with its own velocity."""
        return self.evaluations == self.steps and not self.has_own_times

    @property
    def break_steps(self) -> tuple[int, ...]:
        """Return the steps at which history starts anew."""
        return break_steps(self.times, self.breaks)

    @property
    def intervals(self) -> tuple[int, ...]:
        """Return the length of each anchor's interval."""
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


def check_one_latent(plan: Plan) -> None:
    """Refuse a plan for a joint model where one latent is followed."""
    if plan.latents is not None:
        raise PlanError(
            f"the plan is for a joint model, which steps {', '.join(plan.latents)} beside its "
            "first latent: follow plan.of_latent(name) for each of them"
        )


def as_plan(plan: "Plan | str | Path") -> Plan:
    """Return a plan given as it is, or by the path of its file."""
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

    Give exactly one of `evaluations`, `speedup` (the number of evaluations nearest to N / speedup),
    and `tau_k` with `tau_d`. For a budget the thresholds are found; `ratio` keeps
    tau_d = ratio * tau_k. The rules "magnitude", "direction" and "reuse" switch off one or both
    updates of "tasu". A warning is logged where the profile says that as many plain steps are
    expected to do better.

    Args:
        profile: What was measured.
        tau_k: The threshold of magnitude, with `tau_d`.
        tau_d: The threshold of direction, with `tau_k`.
        evaluations: The budget.
        speedup: The budget as steps for each evaluation.
        ratio: tau_d / tau_k, for a budget.
        max_skip: The longest interval, the paper's H_max.
        rule: How skipped steps are rebuilt.

    Returns:
        The plan, on the grid of the profile.

    Raises:
        PlanError: If the budget cannot be met, or not exactly one of the ways is given.

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
        origin=profile.origin,
    )


def step_variation(profile: Profile) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the sequences K and D that SSC adds up (before eq. 7): |k_n| dt_n and d_n."""
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
    chosen = [
        name
        for name, value in (
            ("tau_k and tau_d", tau_k),
            ("evaluations", evaluations),
            ("speedup", speedup),
        )
        if value is not None
    ]
    if len(chosen) != 1:
        raise PlanError(
            "give exactly one of tau_k and tau_d, evaluations, speedup: "
            + (f"{', '.join(chosen)} were given" if chosen else "none was given")
        )
    if ratio is not None and tau_k is not None:
        raise PlanError(
            "ratio goes with evaluations or speedup: tau_k and tau_d are given as they are"
        )


def row_sums(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return what each row makes of velocities that are all equal, in units of one of them.

    A row (a, b, r) gives a + b s, where s = 1 + r s' and s' is the memory's sum one row before.
    """
    sums, memory = [], 0.0
    for row in rows:
        a, b, r = (*row, 0.0, 0.0)[:3]
        memory = 1 + r * memory
        sums.append(a + b * memory)
    return sums
