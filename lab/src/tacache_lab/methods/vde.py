"""VDE (Tan et al., CVPR 2026, arXiv:2605.23381): velocity decomposition and estimation.

v = a x + b |x| u, where u is the unit vector of v's part orthogonal to x. Both numbers are linear
in t through the last two anchors, u is the last anchor's. Steps up to `stable`, every `interval`-th
after it and the last are evaluated.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from tacache.storage.files import Frozen
from tacache.tasu import divide, norm, share, working_dtype
from tacache_lab.methods.caching import CachingRule, Now, Past, Rebuild, intervals_for
from tacache_lab.methods.seam import RecordedProblem, Visit

STABLE_STEPS = (*range(9), *range(9, 36, 3))  # published: 6


class VDESettings(Frozen):
    """The last of the first steps that are all evaluated, and the interval after it."""

    stable: int
    interval: int


class Decomposition(NamedTuple):
    """a and b of each sample, and the unit direction u."""

    a: Tensor
    b: Tensor
    u: Tensor


def decompose(x: Tensor, v: Tensor) -> Decomposition:
    """Split v into a x + b |x| u, where a = <v, x> / |x|^2."""
    wide = v.to(working_dtype(v))
    a = share(wide, along=x)
    orthogonal = wide - a * x
    size = norm(orthogonal)
    return Decomposition(a, divide(size, norm(x)), orthogonal * divide(1.0 + 0 * size, size))


def estimate(past: Past, now: Now) -> Tensor:
    """Return the velocity a x + b |x| u at the skipped step."""
    last = past.anchors[0]
    latest = decompose(last.x, last.v)
    a, b = latest.a, latest.b
    if len(past.anchors) > 1:
        before: Visit = past.anchors[1]
        earlier = decompose(before.x, before.v)
        ahead = (now.t - last.t) / (last.t - before.t)
        a, b = a + ahead * (a - earlier.a), b + ahead * (b - earlier.b)
    return a * now.x + b * norm(now.x) * latest.u


def schedule(steps: int, stable: int, interval: int) -> tuple[int, ...]:
    """Return the steps evaluated: i <= s, the last, or (i - s) % n == 0."""
    return tuple(
        i for i in range(steps) if i <= stable or i == steps - 1 or (i - stable) % interval == 0
    )


class VDE(CachingRule[VDESettings]):
    """VDE as published."""

    name = "vde"
    citation = "Tan et al., VDE: Velocity Decomposition and Estimation, CVPR 2026"
    needs = "the first and the last step are always evaluated"
    published = MappingProxyType(
        {f"flux-{n}": VDESettings(stable=6, interval=n) for n in (3, 4, 5)}
    )

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[VDESettings]:
        """Return the shortest and the longest interval that meet the budget, by `stable`."""
        candidates = []
        for stable in STABLE_STEPS:
            for interval in intervals_for(
                lambda n, s=stable: schedule(recording.steps, s, n),  # type: ignore[misc]
                recording.steps,
                evaluations,
            ):
                candidates.append(VDESettings(stable=stable, interval=interval))
        return self.meeting(candidates, recording.times, evaluations)

    def anchors(self, settings: VDESettings, times: Sequence[float]) -> tuple[int, ...]:
        """Return stable steps, then a period."""
        return schedule(len(times) - 1, settings.stable, settings.interval)

    def rebuild(self, settings: VDESettings) -> Rebuild:
        """Return the estimate from the last two anchors."""
        return estimate
