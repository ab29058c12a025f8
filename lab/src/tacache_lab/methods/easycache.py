"""EasyCache (Zhou et al., 2025, arXiv:2507.02860): skip by the runtime's own change rate.

At an evaluation k = mean|v_i - v_j| / mean|x_i - x_j|. Since then E sums k mean|x_i - x_{i-1}| /
mean|v_j|; steps are skipped while E < tau, with x + (v_j - x_j) for a velocity (or v_j, where
tuning finds that better). The first steps and the last are always evaluated.
"""

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType

from torch import Tensor

from tacache.storage.files import Frozen
from tacache.tasu import divide
from tacache_lab.methods.caching import REUSES, Reuse
from tacache_lab.methods.online import Memory, OnlineRule, SkipCriterion, mean_abs
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.tuning import MAX_THRESHOLD, spread

WARM_UPS = (10, 6, 4, 2)  # published: 10; small budgets cannot afford it; k needs 2


class EasyCacheSettings(Frozen):
    """The threshold, and how many first steps are evaluated whatever it says."""

    tau: float
    warm_up: int
    reuse: Reuse = "residual"


def predicted_change(memory: Memory, x: Tensor) -> Tensor:
    """Return the velocity's relative change in one step: k mean|x_i - x_{i-1}| / mean|v_j|."""
    return divide(memory.gain * mean_abs(x - memory.before), mean_abs(memory.v))


class EasyCache(OnlineRule[EasyCacheSettings]):
    """EasyCache as published; each sample decides for itself."""

    name = "easycache"
    citation = "Zhou et al., Less is Enough: Training-Free Video Diffusion Acceleration, 2025"
    needs = "its first two steps and the last are always evaluated"
    published = MappingProxyType({"wan": EasyCacheSettings(tau=0.05, warm_up=10)})

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[EasyCacheSettings]:
        """Return the lowest taus that meet the budget or a bit less, by warm-up and reuse."""
        settings: list[EasyCacheSettings] = []
        ways = [way for way in product(WARM_UPS, REUSES) if way[0] < evaluations]
        for warm_up, reuse in spread(ways, recording.most and max(1, recording.most // 2)):
            loosest = EasyCacheSettings(tau=MAX_THRESHOLD, warm_up=warm_up, reuse=reuse)
            settings += self.tightest(recording, loosest, "tau", evaluations)
        return settings

    def watch(self, settings: EasyCacheSettings) -> SkipCriterion:
        """Return the predicted change, summed."""
        return SkipCriterion(settings.tau, settings.warm_up, settings.reuse, predicted_change)
