"""TaylorSeer (Liu et al., ICCV 2025, arXiv:2503.06923) and HiCache (Feng et al., 2025).

Both evaluate a few first steps, then every n-th, and extrapolate from the last anchors' finite
differences: sum_i D_i p_i(k) / i!, where D_{i+1} = (D_i - D_i of the anchor before) / gap and k is
the distance to the last anchor. TaylorSeer has p_i(k) = k^i; HiCache (arXiv:2508.16984) the scaled
Hermite polynomials s^i H_i(s k). Published in step index; `time="sigma"` measures k and gaps in t.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from tacache.stepper import weighted_sum
from tacache.storage.files import Frozen
from tacache_lab.methods.caching import CachingRule, Now, Past, Rebuild, intervals_for
from tacache_lab.methods.seam import RecordedProblem

Clock = Literal["step", "sigma"]
# p_1(k) and p_2(k)
Basis = Callable[[float], tuple[float, float]]
WARM_UPS = range(1, 11)
SCALES = (0.5, 0.4, 0.6, 0.7)  # published: .5; sqrt(1/2) is Taylor's first order


class PeriodSettings(Frozen):
    """One evaluation every `interval` steps after the first `warm_up`."""

    interval: int
    warm_up: int


class HermiteSettings(PeriodSettings):
    """The same with the scale of the Hermite polynomials."""

    scale: float


def periodic(steps: int, warm_up: int, interval: int) -> tuple[int, ...]:
    """Return the first `warm_up` steps, and every `interval`-th after the last of them."""
    return tuple(i for i in range(steps) if i < warm_up or (i - warm_up + 1) % interval == 0)


def taylor(k: float) -> tuple[float, float]:
    """Return TaylorSeer's monomials k and k^2."""
    return k, k * k


def hermite(scale: float) -> Basis:
    """Return HiCache's s^i H_i(s k), with H_1(y) = 2 y and H_2(y) = 4 y^2 - 2."""

    def basis(k: float) -> tuple[float, float]:
        y = scale * k
        return scale * 2 * y, scale**2 * (4 * y * y - 2)

    return basis


def extrapolation_weights(
    clock: Sequence[float], now: float, order: int, basis: Basis
) -> tuple[float, ...]:
    """Return weights of the anchors' velocities, newest first, by the times they were taken at."""
    order = min(order, len(clock) - 1)
    if order < 1:
        return (1.0,)
    first, second = basis(now - clock[0])
    gap = clock[0] - clock[1]
    if order == 1:
        return 1 + first / gap, -first / gap
    bend = second / 2 / gap
    before = bend / (clock[1] - clock[2])
    slope = first / gap + bend / gap
    return 1 + slope, -slope - before, before


class Periodic(CachingRule[PeriodSettings]):
    """What rules with a warm-up and a period share."""

    needs = "it evaluates at least its first step"
    citation: str
    order: int
    clock: Clock

    def periods(self, recording: RecordedProblem, evaluations: int) -> list[PeriodSettings]:
        """Return for each warm-up the intervals that meet the budget."""
        periods = []
        every_second = 2 * evaluations - recording.steps  # with more than half of the steps
        for warm_up in sorted({*WARM_UPS, every_second, evaluations - 1}):
            if 1 <= warm_up <= evaluations:
                for interval in intervals_for(
                    lambda n, w=warm_up: periodic(recording.steps, w, n),  # type: ignore[misc]
                    recording.steps,
                    evaluations,
                ):
                    periods.append(PeriodSettings(interval=interval, warm_up=warm_up))
        return self.meeting(periods, recording.times, evaluations)

    def anchors(self, settings: PeriodSettings, times: Sequence[float]) -> tuple[int, ...]:
        """Return a warm-up, then a period."""
        return periodic(len(times) - 1, settings.warm_up, settings.interval)

    def extrapolation(self, basis: Basis) -> Rebuild:
        """Return the weighted sum of the last anchors' velocities."""

        def rebuild(past: Past, now: Now) -> Tensor:
            of_step = self.clock == "step"
            clock = [float(visit.step) if of_step else visit.t for visit in past.anchors]
            at = float(now.step) if of_step else now.t
            weights = extrapolation_weights(clock, at, self.order, basis)
            return weighted_sum([visit.v for visit in past.anchors[: len(weights)]], weights)

        return rebuild


class TaylorSeer(Periodic):
    """TaylorSeer of order 1 or 2, in step index (as published) or in sigma."""

    citation = "Liu et al., From Reusing to Forecasting: TaylorSeers, ICCV 2025"
    published = MappingProxyType(
        {
            "flux": PeriodSettings(interval=6, warm_up=3),
            "wan": PeriodSettings(interval=5, warm_up=1),
        }
    )

    def __init__(self, order: int, clock: Clock = "step") -> None:
        self.order, self.clock = order, clock
        self.name = f"taylorseer-{order}" + ("-sigma" if clock == "sigma" else "")

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[PeriodSettings]:
        """Return warm-ups and intervals that meet the budget."""
        return self.periods(recording, evaluations)

    def rebuild(self, settings: PeriodSettings) -> Rebuild:
        """Return the Taylor sum."""
        return self.extrapolation(taylor)


class HiCache(Periodic):
    """HiCache of order 2, in step index."""

    name = "hicache"
    citation = (
        "Feng et al., HiCache: Hermite Polynomial-based Feature Caching, arXiv:2508.16984, 2025"
    )
    order = 2
    clock = "step"
    published = MappingProxyType({"flux": HermiteSettings(interval=7, warm_up=3, scale=0.5)})

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[HermiteSettings]:
        """Return warm-ups and intervals that meet the budget, with some scales."""
        periods = self.periods(recording, evaluations)
        return [
            HermiteSettings(**period.model_dump(), scale=scale)
            for period in periods
            for scale in SCALES
        ]

    def rebuild(self, settings: PeriodSettings) -> Rebuild:
        """Return the sum in scaled Hermite polynomials."""
        assert isinstance(settings, HermiteSettings)
        return self.extrapolation(hermite(settings.scale))
