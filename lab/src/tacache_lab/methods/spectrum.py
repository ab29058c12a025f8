"""Spectrum (Han et al., CVPR 2026, arXiv:2603.01623): a spectral forecast of features.

What was evaluated so far is a function of time, fitted by ridge regression on Chebyshev polynomials
and read off at the steps that are skipped. After a warm-up the distance from one evaluation to the
next grows by a constant at each.

Ours is a reading of the paper's abstract and of what public documentation says of its options, at
the velocity in the place of a block's features: time is t over the run's own range, and a share of
the forecast is linear extrapolation from the last two evaluations, as deployed versions blend it.
"""

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacache.stepper import weighted_sum
from tacache.storage.files import Frozen
from tacache_lab.methods.caching import CachingRule, Now, Past, Rebuild
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.taylorseer import extrapolation_weights, taylor
from tacache_lab.methods.tuning import spread

WARM_UPS = range(1, 9)
WINDOWS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
GROWTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
RIDGES = (0.1, 0.001)
BLENDS = (0.5, 1.0)
SCHEDULES = 24  # that are run, each with every ridge and blend

Floats = NDArray[np.float64]


class SpectrumSettings(Frozen):
    """Its schedule, and how it forecasts.

    The first `warm_up` steps are evaluated, then every `window`-th, and the window grows by
    `growth` at each. The forecast has Chebyshev polynomials up to `degree`, and `blend` of it is
    theirs.
    """

    warm_up: int
    window: float
    growth: float
    degree: int = 4
    ridge: float = 0.1
    blend: float = 0.5


def growing(steps: int, settings: SpectrumSettings) -> tuple[int, ...]:
    """Return the steps that are evaluated."""
    anchors, window = list(range(min(settings.warm_up, steps))), settings.window
    while (following := anchors[-1] + max(1, int(window))) < steps:
        anchors.append(following)
        window += settings.growth
    return tuple(anchors)


def chebyshev_weights(
    evaluated: Sequence[float], now: float, degree: int, ridge: float
) -> tuple[float, ...]:
    """Return weights of what was evaluated at these points of [-1, 1], for a forecast at another.

    The forecast is phi(now)' (Phi' Phi + ridge I)^-1 Phi' values, which is linear in the values.
    """
    degree = min(degree, len(evaluated) - 1)
    basis = _chebyshev(evaluated, degree)
    gram = basis.T @ basis + ridge * np.eye(degree + 1)
    row = _chebyshev([now], degree)[0]
    return tuple(float(w) for w in np.linalg.solve(gram, row) @ basis.T)


def _chebyshev(points: Sequence[float], degree: int) -> Floats:
    """Return T_0 to T_degree, a row for each point."""
    rows: Floats = np.polynomial.chebyshev.chebvander(np.asarray(points, dtype=float), degree)
    return rows


class Spectrum(CachingRule[SpectrumSettings]):
    """Spectrum on the velocity."""

    name = "spectrum"
    citation = "Han et al., Adaptive Spectral Feature Forecasting (Spectrum), CVPR 2026"
    needs = "it evaluates at least its first step"
    kept = None  # every evaluation counts
    # the setting with 14 evaluations of 50 that its authors show
    published = MappingProxyType({"flux": SpectrumSettings(warm_up=5, window=2.0, growth=0.75)})

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[SpectrumSettings]:
        """Return schedules that meet the budget, each with several ridges and blends."""
        ways = product(WARM_UPS, WINDOWS, GROWTHS)
        schedules = [SpectrumSettings(warm_up=w, window=n, growth=a) for w, n, a in ways]
        meeting = spread(self.meeting(schedules, recording.times, evaluations), SCHEDULES)
        return [
            settings.model_copy(update={"ridge": ridge, "blend": blend})
            for settings in meeting
            for ridge, blend in product(RIDGES, BLENDS)
        ]

    def anchors(self, settings: SpectrumSettings, times: Sequence[float]) -> tuple[int, ...]:
        """Return a warm-up, then ever longer intervals."""
        return growing(len(times) - 1, settings)

    def rebuild(self, settings: SpectrumSettings) -> Rebuild:
        """Return the forecast, with the run's range of t as [-1, 1]."""

        def rebuild(past: Past, now: Now) -> Tensor:
            first = past.anchors[-1].t  # the start of the run, which is always evaluated
            at = [1 - 2 * visit.t / first for visit in past.anchors]
            weights = np.array(
                chebyshev_weights(at, 1 - 2 * now.t / first, settings.degree, settings.ridge)
            )
            near = extrapolation_weights([v.t for v in past.anchors], now.t, 1, taylor)
            weights *= settings.blend
            weights[: len(near)] += (1 - settings.blend) * np.array(near)
            return weighted_sum([visit.v for visit in past.anchors], weights.tolist())

        return rebuild
