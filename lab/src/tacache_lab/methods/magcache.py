"""MagCache (Ma et al., NeurIPS 2025, arXiv:2506.09045): skip by the residual's magnitude ratios.

Ratios g_i = |r_i| / |r_{i-1}| are measured once. Since the last evaluation P is their product and E
the sum of |1 - P|; steps are skipped while E < delta and at most `cap` follow each other. At the
velocity level r = v - x, with ratios of whole samples.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import MappingProxyType

from tacache.storage.files import Frozen
from tacache.tasu import norm
from tacache_lab.methods.caching import CachingRule, Rebuild, Reuse, between, reused, with_reuses
from tacache_lab.methods.seam import RecordedProblem

# fmt: off
FLUX_RATIOS = (
    1.0, 1.21094, 1.11719, 1.07812, 1.0625, 1.03906, 1.03125, 1.03906, 1.02344, 1.03125, 1.02344,
    0.98047, 1.01562, 1.00781, 1.0, 1.00781, 1.0, 1.00781, 1.0, 1.0, 0.99609, 0.99609, 0.98047,
    0.98828, 0.96484, 0.95703, 0.93359, 0.89062,
)
WAN_RATIOS = (
    1.0, 1.0124, 1.00166, 0.99791, 0.99682, 0.99634, 0.99567, 0.99416, 0.99578, 0.9957, 0.99511,
    0.99535, 0.99552, 0.99541, 0.9954, 0.99489, 0.99518, 0.99484, 0.99481, 0.99415, 0.99419,
    0.99396, 0.99388, 0.99349, 0.99309, 0.9927, 0.99228, 0.99171, 0.99137, 0.99068, 0.99005,
    0.98944, 0.98849, 0.98758, 0.98644, 0.98504, 0.9836, 0.98202, 0.97977, 0.97717, 0.9741,
    0.97003, 0.96538, 0.9593, 0.95086, 0.94013, 0.92402, 0.90241, 0.86821, 0.81838,
)
# fmt: on
RETENTIONS = (0.2, 0.1, 0.06, 0.02)  # published: .2 and .1; small budgets cannot afford them
CAPS = (2, 4, 5, 12)  # published: 2, 4 and 5


class MagCacheSettings(Frozen):
    """Ratios (on any number of steps) and the limits of skipping.

    The first `retention` part is always evaluated, and the step that stands for `forced` in the
    ratios' own count (FLUX's published script has one).
    """

    ratios: tuple[float, ...]
    delta: float
    cap: int
    retention: float
    forced: int | None = None
    reuse: Reuse = "residual"


def schedule(settings: MagCacheSettings, steps: int) -> tuple[int, ...]:
    """Return the steps MagCache evaluates."""
    nearest = [_nearest(i, steps, len(settings.ratios)) for i in range(steps)]
    retained = max(1, math.floor(settings.retention * steps + 0.5))
    anchors, product, error, skipped = list(range(min(retained, steps))), 1.0, 0.0, 0
    for i in range(retained, steps):
        product *= settings.ratios[nearest[i]]
        error += abs(1 - product)
        skipped += 1
        if error < settings.delta and skipped <= settings.cap and nearest[i] != settings.forced:
            continue
        anchors.append(i)
        product, error, skipped = 1.0, 0.0, 0
    return tuple(anchors)


def magnitude_ratios(recording: RecordedProblem) -> tuple[float, ...]:
    """Return g_i = |r_i| / |r_{i-1}| with r = v - x, means over samples; the first is 1."""
    sizes = [
        norm(v.double() - x)
        for v, x in zip(recording.velocities, recording.states[:-1], strict=True)
    ]
    ratios = [float((b / a).mean()) for a, b in pairwise(sizes)]
    return (1.0, *ratios)


class MagCache(CachingRule[MagCacheSettings]):
    """MagCache at the velocity level."""

    name = "magcache"
    citation = "Ma et al., MagCache: Fast Video Generation with Magnitude-Aware Cache, NeurIPS 2025"
    needs = "it cannot skip enough steps even with the loosest threshold"
    published = MappingProxyType(
        {
            "flux": MagCacheSettings(
                ratios=FLUX_RATIOS, delta=0.24, cap=5, retention=0.1, forced=11
            ),
            "wan-slow": MagCacheSettings(ratios=WAN_RATIOS, delta=0.12, cap=2, retention=0.2),
            "wan-fast": MagCacheSettings(ratios=WAN_RATIOS, delta=0.12, cap=4, retention=0.2),
        }
    )

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[MagCacheSettings]:
        """Return all schedules that retentions, caps and deltas make of the budget; both reuses."""
        sweep = self._sweep(magnitude_ratios(recording), recording.steps)
        return with_reuses(self.meeting(sweep, recording.times, evaluations))

    def _sweep(self, ratios: tuple[float, ...], steps: int) -> Iterator[MagCacheSettings]:
        """Yield every retention and cap with every delta, tightest first."""
        for retention in RETENTIONS:
            for cap in (*CAPS, steps):
                for delta in between(_sums(ratios, cap)):
                    yield MagCacheSettings(ratios=ratios, delta=delta, cap=cap, retention=retention)

    def anchors(self, settings: MagCacheSettings, times: Sequence[float]) -> tuple[int, ...]:
        """Return the schedule on this many steps."""
        return schedule(settings, len(times) - 1)

    def rebuild(self, settings: MagCacheSettings) -> Rebuild:
        """Return the residual x + r_j, or v_j."""
        return reused(settings.reuse)


def _nearest(i: int, steps: int, length: int) -> int:
    """Return the index that stands for step i in an array made for another number of steps."""
    return round(i * (length - 1) / (steps - 1)) if steps > 1 else 0


def _sums(ratios: Sequence[float], cap: int) -> Iterator[float]:
    """Yield E of every run of at most `cap` skips: between two neighbours all deltas act alike."""
    for start in range(1, len(ratios)):
        product, error = 1.0, 0.0
        for ratio in ratios[start : start + cap]:
            product *= ratio
            error += abs(1 - product)
            yield error
