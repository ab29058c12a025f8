"""What can be benchmarked, by name: how it is made ready for a budget, and how it samples.

tasu              TACache; the ratio tau_d : tau_k is the best on the calibration samples
tasu-10           the same with a ratio of 10, the paper's; also magnitude, direction, reuse
tasu:0.06/0.6     with thresholds tau_k / tau_d as they are, and whatever budget they lead to
tasu:wan          with those of the paper for Wan; also tasu:flux, tasu:bagel
damped            tasu's plan with d cos(theta) in the place of d, measured on calibration samples
fitted            TACache's fitted plans
magcache, ...     every baseline, tuned for the budget
magcache:flux     the same at a published setting

Caches inside the model, on FLUX and Wan (`model_caches`), tuned or, with :flux, as published:

dicache                                 DiCache, from its formula
diffusers-fbcache, diffusers-magcache   the caches of diffusers, as installed
diffusers-taylorseer                    the same; it predicts what attention gives
diffusers-taylorseer-lite               the same; it predicts what the model gives
cache-dit, cache-dit-taylorseer         DBCache of the package cache-dit (extra `peers`), without
                                        and with its TaylorSeer calibrator

Whichever it is:

tasu@30           made ready on the first 30 calibration prompts; tasu@FILE:30 on those of a file
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from pydantic import JsonValue
from torch import Tensor

from tacache.diagnostics import damp, diagnose
from tacache.errors import TACacheError
from tacache.lab.bench.calibration_sets import CalibrationSet
from tacache.lab.bench.model_caches import InsideMethod, inside_caches
from tacache.lab.bench.papers import THRESHOLDS, thresholds
from tacache.lab.bench.rivals import Rival
from tacache.lab.methods import BASELINES, Problem, Recording
from tacache.plan import LONGEST, Plan, Rule, make_plan
from tacache.rules import PROFILE_RULES
from tacache.stepper import sample
from tacache.storage.files import Frozen

RATIOS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
PAPER_RATIO = 10.0
HISTORY, MAX_EVALUATIONS = LONGEST, 3000  # of fits, as where they are made for users
DAMPED = 4  # calibration samples that cos(theta) is measured on
# the prompts that ship for any model, as a source beside an embedded model's own
GENERAL, GENERAL_PROMPTS = "general", "calibration"
# what a plan's record leaves out: it is the same for all plans of a calibration
RATES = {"times", "magnitude", "direction", "host", "certificate", "breaks"}


class Method(Protocol):
    """One way to sample. Settings are made once for each budget, and can live in a file."""

    @property
    def budgeted(self) -> bool:
        """Whether it is made ready for a budget, or has its own."""

    @property
    def calibrated(self) -> bool:
        """Whether it is made ready on calibration samples."""

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Its settings for a budget; PlanError where it has none."""

    def sample(self, problem: Problem, settings: Any) -> Tensor:
        """The samples of a problem; every evaluation goes through its velocity."""

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """What a record says of the settings."""


class Followed:
    """A plan of ours, whichever way it is made."""

    budgeted: bool = True
    calibrated: bool = True

    def sample(self, problem: Problem, settings: Any) -> Tensor:
        """Follow the plan."""
        return sample_by_plan(problem, settings)

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """The plan without the calibration's own numbers."""
        fields: dict[str, JsonValue] = settings.model_dump(
            mode="json", exclude=RATES, exclude_none=True
        )
        return fields


class Planned(Followed):
    """A plan from a profile, with a ratio of the thresholds that is given or the best there is."""

    def __init__(self, rule: Rule, ratio: float | None = None) -> None:
        self.rule, self.ratio = rule, ratio

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Plan:
        """The plan that ends nearest to full steps on the calibration samples."""
        found: dict[tuple[int, ...], Plan] = {}
        for ratio in (self.ratio,) if self.ratio else (None, *RATIOS):
            plan = make_plan(
                calibration_set.profile, evaluations=evaluations, ratio=ratio, rule=self.rule
            )
            found.setdefault(plan.anchors, plan)
        plans = list(found.values())
        if len(plans) == 1:
            return plans[0]
        with calibration_set.recording() as recording:
            return min(plans, key=lambda plan: recording.error(sample_by_plan(recording, plan)))


class Damped(Planned):
    """The best plan of `tasu`, damped by the alignment it has on calibration samples."""

    def __init__(self) -> None:
        super().__init__("tasu")

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Plan:
        """The same anchors with other strengths of the direction."""
        plan = super().prepare(calibration_set, evaluations)
        with calibration_set.recording() as recording:
            few = recording.first(DAMPED)
            found = diagnose(few.velocity, few.noise, plan, condition=few.condition)
        return damp(plan, [found])


class Thresholds(Followed):
    """A plan from a profile by the paper's thresholds."""

    budgeted = False

    def __init__(self, rule: Rule, tau_k: float, tau_d: float) -> None:
        self.rule, self.tau_k, self.tau_d = rule, tau_k, tau_d

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """The plan they lead to."""
        return make_plan(
            calibration_set.profile, tau_k=self.tau_k, tau_d=self.tau_d, rule=self.rule
        )


class FittedPlan(Followed):
    """TACache's fitted plans; what a fit starts from is kept for the set seen last."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """A fit on the calibration samples, with what is probed before it done once a set."""
        assert evaluations is not None
        with calibration_set.recording() as recording:
            return self.fit(recording, calibration_set, evaluations)

    def fit(self, recording: Recording, calibration_set: CalibrationSet, evaluations: int) -> Plan:
        """Fit a plan for a budget; no other place of the benchmark does."""
        from tacache import fitting
        from tacache.fitting import full_runs, samples

        runs = samples.FunctionRuns(
            recording.velocity, recording.noise, recording.times, recording.condition
        )
        runs.breaks = calibration_set.caller.breaks
        fitting.check_budget(runs, evaluations, HISTORY, MAX_EVALUATIONS)
        key = calibration_set.caller.key(calibration_set.prompts_sha256)
        if key not in self._known:
            self._known.clear()
            self._known[key] = full_runs.record(runs)
        return fitting.fit_budget(
            runs,
            self._known[key],
            evaluations,
            history=HISTORY,
            max_evaluations=MAX_EVALUATIONS,
        )


@torch.no_grad()
def sample_by_plan(problem: Problem, plan: Plan) -> Tensor:
    """The samples of a problem by a plan."""
    return sample(problem.velocity, problem.noise, plan, condition=problem.condition)


def _registry() -> dict[str, Method]:
    rules: dict[str, Rule] = {"tasu": "tasu", "magnitude": "magnitude", "direction": "direction"}
    with_ratio: dict[str, Rule] = {**rules, "reuse": "reuse"}
    return {
        **{name: Planned(rule) for name, rule in rules.items()},
        **{f"{name}-10": Planned(rule, PAPER_RATIO) for name, rule in with_ratio.items()},
        "damped": Damped(),
        "fitted": FittedPlan(),
        **{name: Rival(baseline) for name, baseline in BASELINES.items() if name != "full"},
        **{name: InsideMethod(cache) for name, cache in inside_caches().items()},
    }


METHODS: dict[str, Method] = _registry()
SETTINGS: dict[str, type[Frozen]] = {}


class Asked(NamedTuple):
    """A method as it was named, and the calibration prompts it is tuned on."""

    name: str
    method: Method
    source: str | None = None  # None: the benchmark's own calibration prompts
    samples: int | None = None  # None: all of them


def resolve(name: str) -> Asked:
    """Find the method of a name."""
    base, _, tuned_on = name.partition("@")
    source, colon, number = tuned_on.rpartition(":")
    if not tuned_on:
        return Asked(name, _method(base))
    if not number.isdigit() or int(number) < 1 or (colon and not source):
        raise TACacheError(f"{name!r}: after @ stands a number of prompts, or FILE:NUMBER")
    return Asked(name, _method(base), source or None, int(number))


def published() -> list[str]:
    """Names of all published settings, such as magcache:flux."""
    everyone: dict[str, Any] = {**BASELINES, **inside_caches()}
    rivals = [f"{name}:{variant}" for name, one in everyone.items() for variant in one.published]
    return [*(f"tasu:{family}" for family in THRESHOLDS), *rivals]


def load_settings(kind: str, fields: dict[str, Any]) -> Frozen:
    """Settings as a file holds them, by the name of their class."""
    if not SETTINGS:
        SETTINGS.update({one.__name__: one for one in _descendants(Frozen)})
    return SETTINGS[kind].model_validate_json(json.dumps(fields), strict=True)


def _method(base: str) -> Method:
    name, colon, variant = base.partition(":")
    if not colon and name in METHODS:
        return METHODS[name]
    if colon and name in PROFILE_RULES:
        tau_k, tau_d = thresholds(name, variant)
        return Thresholds(name, tau_k, tau_d)  # type: ignore[arg-type]  # a rule of a profile
    rival: Any = BASELINES.get(name) or inside_caches().get(name)
    if colon and rival is not None:
        if variant in rival.published:
            return (InsideMethod if name in inside_caches() else Rival)(rival, variant)
        there = ", ".join(rival.published) or "none"
        raise TACacheError(f"{name} has no published setting {variant!r}: there are {there}")
    without = "" if inside_caches() else " (those inside the model need tacache[diffusers])"
    words = "full, inside and published, and settings such as tasu:flux (docs/reference/bench.md)"
    raise TACacheError(
        f"unknown method {base!r}: choose from {', '.join(METHODS)}{without}, {words}"
    )


def _descendants(kind: type[Frozen]) -> Iterator[type[Frozen]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("tacache."):
            yield child
            yield from _descendants(child)
