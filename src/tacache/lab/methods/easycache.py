"""EasyCache (Zhou et al., 2025, arXiv:2507.02860): skip by the runtime's own change rate.

At an evaluation k = mean|v_i - v_j| / mean|x_i - x_j|. Since then E sums k mean|x_i - x_{i-1}| /
mean|v_j|; steps are skipped while E < tau, with x + (v_j - x_j) for a velocity (or v_j, where
tuning finds that better). The first steps and the last are always evaluated.
"""

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType

from torch import Tensor

from tacache.decomposition import divide
from tacache.lab.methods.caching import REUSES, Reuse
from tacache.lab.methods.online import Memory, OnlineRule, Watch, mean_abs
from tacache.lab.methods.seam import Recording
from tacache.lab.methods.tuning import LOOSEST, spread
from tacache.storage.files import Frozen

WARM_UPS = (10, 6, 4, 2)  # published: 10; small budgets cannot afford it; k needs 2


class EasyCacheSettings(Frozen):
    """The threshold, and how many first steps are evaluated whatever it says."""

    tau: float
    warm_up: int
    reuse: Reuse = "residual"


def predicted_change(memory: Memory, x: Tensor) -> Tensor:
    """The velocity's relative change in one step: k mean|x_i - x_{i-1}| / mean|v_j|."""
    return divide(memory.gain * mean_abs(x - memory.before), mean_abs(memory.v))


class EasyCache(OnlineRule[EasyCacheSettings]):
    """EasyCache as published; each sample decides for itself."""

    name = "easycache"
    citation = "Zhou et al., Less is Enough: Training-Free Video Diffusion Acceleration, 2025"
    needs = "its first two steps and the last are always evaluated"
    published = MappingProxyType({"wan": EasyCacheSettings(tau=0.05, warm_up=10)})

    def candidates(self, recording: Recording, evaluations: int) -> Sequence[EasyCacheSettings]:
        """For each warm-up and reuse the lowest taus whose means meet the budget or a bit less."""
        found: list[EasyCacheSettings] = []
        ways = [one for one in product(WARM_UPS, REUSES) if one[0] < evaluations]
        for warm_up, reuse in spread(ways, recording.most and max(1, recording.most // 2)):
            loosest = EasyCacheSettings(tau=LOOSEST, warm_up=warm_up, reuse=reuse)
            found += self.tightest(recording, loosest, "tau", evaluations)
        return found

    def watch(self, settings: EasyCacheSettings) -> Watch:
        """The predicted change, summed."""
        return Watch(settings.tau, settings.warm_up, settings.reuse, predicted_change)
