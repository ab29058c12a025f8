"""The paper's thresholds as sliders: how far they go, and the plan that a pair leads to."""

import math
from typing import NamedTuple

from tacache.plan import Plan, make_plan, step_variation
from tacache.profile import Profile
from tacache.schedule import MAX_SKIP

NOTCHES = 200  # of a slider


class Range(NamedTuple):
    """How far a slider goes, its notch, and where it stands first."""

    highest: float
    notch: float
    first: float


def ranges(profile: Profile) -> tuple[Range, Range]:
    """The sliders of tau_k and tau_d: from nothing skipped to all that any threshold skips.

    They stand first where a quarter of the steps is evaluated.
    """
    start = make_plan(profile, evaluations=max(2, profile.steps // 4))
    pairs = zip(step_variation(profile), (start.tau_k, start.tau_d), strict=True)
    return tuple(_range(variation, first or 0.0) for variation, first in pairs)  # type: ignore[return-value]


def planned(profile: Profile, tau_k: float, tau_d: float) -> Plan:
    """The plan of a pair of thresholds."""
    return make_plan(profile, tau_k=tau_k, tau_d=tau_d)


def _range(variation: tuple[float, ...], first: float) -> Range:
    """Up to three times the usual, in round notches: beyond, hardly anything changes."""
    widest = max(
        sum(variation[n : n + MAX_SKIP]) for n in range(1, max(2, len(variation) - MAX_SKIP + 1))
    )
    reach = min(max(3 * first, 1e-6), max(widest, 1e-6) * 1.01)
    notch = 10.0 ** math.floor(math.log10(reach / NOTCHES))
    notch *= next(factor for factor in (1, 2, 5, 10) if notch * factor >= reach / NOTCHES)
    count = math.ceil(reach / notch)
    return Range(round(count * notch, 10), notch, round(round(first / notch) * notch, 10))
