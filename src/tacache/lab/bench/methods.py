"""What can be benchmarked, by name: how it is made ready for a budget, and how it samples.

tasu              TACache; the ratio tau_d : tau_k is the best on the calibration samples
tasu-10           the same with a ratio of 10, the paper's; also magnitude, direction, reuse
tasu:0.06/0.6     with thresholds tau_k / tau_d as they are, and whatever budget they lead to
tasu:wan          with those of the paper for Wan; also tasu:flux, tasu:bagel
damped            tasu's plan with d cos(theta) in the place of d, measured on calibration samples
instant           TACache's plan that nothing is measured for
fitted            TACache's plans fitted to the full run
fitted-flow       the same, fitted to the flow
magcache, ...     every baseline, tuned for the budget
magcache:flux     the same at a published setting
euler:400         Euler's method with so many steps, more than the full run has or fewer

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

from pydantic import JsonValue
from torch import Tensor

from tacache.errors import TACacheError
from tacache.lab.bench.calibration_sets import CalibrationSet
from tacache.lab.bench.model_caches import InsideMethod, inside_caches
from tacache.lab.bench.papers import THRESHOLDS, thresholds
from tacache.lab.bench.plans import Damped, FittedPlan, Instant, Planned, Thresholds
from tacache.lab.bench.rivals import EulerRun, Rival
from tacache.lab.methods import BASELINES, Problem
from tacache.plan import Rule
from tacache.rules import PROFILE_RULES
from tacache.storage.files import Frozen

PAPER_RATIO = 10.0
EULER = "euler"  # with a number of steps after a colon
# the prompts that ship for any model, as a source beside an embedded model's own
GENERAL, GENERAL_PROMPTS = "general", "calibration"


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


def _registry() -> dict[str, Method]:
    rules: dict[str, Rule] = {"tasu": "tasu", "magnitude": "magnitude", "direction": "direction"}
    with_ratio: dict[str, Rule] = {**rules, "reuse": "reuse"}
    return {
        **{name: Planned(rule) for name, rule in rules.items()},
        **{f"{name}-10": Planned(rule, PAPER_RATIO) for name, rule in with_ratio.items()},
        "damped": Damped(),
        "instant": Instant(),
        "fitted": FittedPlan(),
        "fitted-flow": FittedPlan("flow"),
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
    if colon and name == EULER:
        return EulerRun(_steps(variant))
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


def _steps(variant: str) -> int:
    """The number of steps after `euler:`."""
    if not variant.isdigit() or int(variant) < 1:
        raise TACacheError(f"{EULER}:{variant}: a number of steps follows, as in {EULER}:100")
    return int(variant)


def _descendants(kind: type[Frozen]) -> Iterator[type[Frozen]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("tacache."):
            yield child
            yield from _descendants(child)
