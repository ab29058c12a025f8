"""What can be benchmarked, by name: how it is made ready for a budget, and how it samples.

tasu              TACache; the ratio tau_d : tau_k is the best on the calibration samples
tasu-10           the same with a ratio of 10, the paper's; also magnitude, direction, reuse
tasu:0.06/0.6     with thresholds tau_k / tau_d as they are, and whatever budget they lead to
tasu:wan          with those of the paper for Wan; also tasu:flux, tasu:bagel
damped            tasu's plan with d cos(theta) in the place of d, measured on calibration samples
instant           TACache's plan that nothing is measured for
fitted            TACache's plans fitted to the full run
fitted-fast       the same without a search for better anchors, in half the evaluations
fitted-flow       the same, fitted to the flow
magcache, ...     every baseline, tuned for the budget
magcache:flux     the same at a published setting
euler:400         Euler's method with so many steps, more than the full run has or fewer

Caches inside the model, on FLUX and Wan (`model_caches`), tuned or, with :flux, as published:

dicache                                 DiCache, from its formula
diffusers-fbcache, diffusers-magcache   the caches of diffusers, as installed
diffusers-taylorseer                    the same; it predicts what attention gives
diffusers-taylorseer-lite               the same; it predicts what the model gives
diffusers-seacache                      the same, of diffusers 0.42; it sees latents by a filter
cache-dit                               DBCache of the package cache-dit (extra `peers`)
cache-dit-taylorseer, cache-dit-dmd     the same with one of its forecasts of what is skipped
cache-dit-foca                          the same with another
cache-dit-masks                         its step masks: what is evaluated is said before the run
cfg-late                                no cache: guidance in the first steps only, on fewer steps

Whichever it is:

tasu@30           made ready on the first 30 calibration prompts; tasu@FILE:30 on those of a file
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue
from torch import Tensor

from tacache.errors import TACacheError
from tacache.plan import Rule
from tacache.storage.files import Frozen
from tacache.tasu import PROFILE_RULES
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.model_caches import InsideMethod, inside_caches
from tacache_lab.bench.plan_methods import Damped, FittedPlan, Instant, Planned, Thresholds
from tacache_lab.bench.rivals import EulerRun, Rival
from tacache_lab.methods import BASELINES, SamplingProblem

PAPER_RATIO = 10.0
# tau_k and tau_d of BAGEL, FLUX.1-dev and Wan2.1-1.3B (appendix A)
THRESHOLDS = {"bagel": (0.06, 0.6), "flux": (0.04, 0.4), "wan": (0.03, 0.3)}
EULER = "euler"  # with a number of steps after a colon
# the prompts that ship for any model, as a source beside an embedded model's own
GENERAL, GENERAL_PROMPTS = "general", "calibration"


class Method(Protocol):
    """One way to sample. Settings are made once for each budget, and can live in a file."""

    @property
    def budgeted(self) -> bool:
        """Return whether it is made ready for a budget, or has its own."""

    @property
    def calibrated(self) -> bool:
        """Return whether it is made ready on calibration samples."""

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return its settings for a budget; PlanError where it has none."""

    def sample(self, problem: SamplingProblem, settings: Any) -> Tensor:
        """Return the samples of a problem; every evaluation goes through its velocity."""

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """Return what a record says of the settings."""


def _registry() -> dict[str, Method]:
    rules: dict[str, Rule] = {"tasu": "tasu", "magnitude": "magnitude", "direction": "direction"}
    with_ratio: dict[str, Rule] = {**rules, "reuse": "reuse"}
    return {
        **{name: Planned(rule) for name, rule in rules.items()},
        **{f"{name}-10": Planned(rule, PAPER_RATIO) for name, rule in with_ratio.items()},
        "damped": Damped(),
        "instant": Instant(),
        "fitted": FittedPlan(),
        "fitted-fast": FittedPlan(search=False),
        "fitted-flow": FittedPlan("flow"),
        **{name: Rival(baseline) for name, baseline in BASELINES.items() if name != "full"},
        **{name: InsideMethod(cache) for name, cache in inside_caches().items()},
    }


METHODS: dict[str, Method] = _registry()


class NamedMethod(NamedTuple):
    """A method as it was named, and the calibration prompts it is tuned on."""

    name: str
    method: Method
    source: str | None = None  # None: the benchmark's own calibration prompts
    samples: int | None = None  # None: all of them


def resolve(name: str) -> NamedMethod:
    """Find the method of a name."""
    base, _, tuned_on = name.partition("@")
    source, colon, number = tuned_on.rpartition(":")
    if not tuned_on:
        return NamedMethod(name, _method(base))
    if not number.isdigit() or int(number) < 1 or (colon and not source):
        raise TACacheError(f"{name!r}: after @ stands a number of prompts, or FILE:NUMBER")
    return NamedMethod(name, _method(base), source or None, int(number))


def published() -> list[str]:
    """Return names of all published settings, such as magcache:flux."""
    all_rivals: dict[str, Any] = {**BASELINES, **inside_caches()}
    rivals = [
        f"{name}:{variant}" for name, rival in all_rivals.items() for variant in rival.published
    ]
    return [*(f"tasu:{family}" for family in THRESHOLDS), *rivals]


def load_settings(kind: str, fields: dict[str, Any]) -> Frozen:
    """Return settings as a file holds them, by the name of their class."""
    kinds = {settings.__name__: settings for settings in _descendants(Frozen)}
    return kinds[kind].model_validate_json(json.dumps(fields), strict=True)


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


def thresholds(rule: str, variant: str) -> tuple[float, float]:
    """Read tau_k and tau_d from what follows a rule's colon: TAU_K/TAU_D, or a family."""
    if variant in THRESHOLDS:
        return THRESHOLDS[variant]
    try:
        tau_k, tau_d = (float(part) for part in variant.split("/"))
    except ValueError as error:
        raise TACacheError(
            f"{rule}:{variant}: thresholds are TAU_K/TAU_D, as in {rule}:0.06/0.6, or the paper's "
            f"for {', '.join(THRESHOLDS)}"
        ) from error
    return tau_k, tau_d


def _steps(variant: str) -> int:
    """Return the number of steps after `euler:`."""
    if not variant.isdigit() or int(variant) < 1:
        raise TACacheError(f"{EULER}:{variant}: a number of steps follows, as in {EULER}:100")
    return int(variant)


def _descendants(kind: type[Frozen]) -> Iterator[type[Frozen]]:
    """Yield every class of settings that was defined, here or by whoever added a rival."""
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)
