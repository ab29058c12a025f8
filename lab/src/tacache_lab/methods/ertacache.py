"""ERTACache (Peng et al., ICLR 2026, arXiv:2508.21091): cached residuals, mended in closed form.

Offline, on recorded runs: a step is skipped while the relative errors mean|r_j - r_i| / mean|r_i|
of the cached residual, summed since the last evaluation, stay below a threshold. Each skipped step
has a correction of two numbers, the least squares of its true residual over the cached one and a
constant: r_i = K_i r_j + B_i. The paper also stretches the time steps; of a linear correction on a
fixed grid that is a factor more, which K has already.

Ours is a reading of the abstract, at the velocity: the residual is v - x, as in EasyCache, or v.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from tacache.tasu import working_dtype
from tacache_lab.methods.caching import (
    REUSES,
    AnchoredRule,
    AnchorSettings,
    Now,
    Past,
    Rebuild,
    Reuse,
)
from tacache_lab.methods.online import relative_change
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.tuning import spread

RETENTIONS = (1, 2, 4)  # first steps that are always evaluated
THRESHOLDS = np.geomspace(1e-3, 1e2, 161)
SCHEDULES = 12  # that are run, each with and without a correction

Residuals = Sequence[Tensor]


class ERTASettings(AnchorSettings):
    """The steps that are evaluated, what is kept, and (K, B) of every step; none: as cached."""

    reuse: Reuse
    threshold: float
    corrections: tuple[tuple[float, float], ...] = ()


def residuals_of(recording: RecordedProblem, reuse: Reuse) -> Residuals:
    """Return the residual of every step of the recorded runs."""
    if reuse == "velocity":
        return recording.velocities
    pairs = zip(recording.velocities, recording.states, strict=False)  # one state more
    return [v.to(working_dtype(v)) - x for v, x in pairs]


class CacheErrors:
    """Relative errors of cached residuals, each worked out once."""

    def __init__(self, residuals: Residuals) -> None:
        self._residuals = residuals
        self._known: dict[tuple[int, int], float] = {}

    def of(self, kept: int, step: int) -> float:
        """Return the mean over samples at a step whose residual is that of another."""
        if (kept, step) not in self._known:
            error = relative_change(self._residuals[kept], self._residuals[step])
            self._known[kept, step] = float(error.mean())
        return self._known[kept, step]


def profiled(errors: CacheErrors, steps: int, retention: int, threshold: float) -> tuple[int, ...]:
    """Return the steps at which the summed error has come to the threshold."""
    anchors, total = list(range(retention)), 0.0
    for n in range(retention, steps):
        total += errors.of(anchors[-1], n)
        if total >= threshold:
            anchors.append(n)
            total = 0.0
    return tuple(anchors)


def corrections(residuals: Residuals, anchors: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield (K, B) of every step, over all samples; (1, 0) where it is evaluated."""
    kept = 0
    for n, residual in enumerate(residuals):
        if n in anchors:
            kept = n
            yield 1.0, 0.0
        else:
            yield line(residuals[kept], residual)


def line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the slope and the offset of the least squares of y over x."""
    x, y = x.double().flatten(), y.double().flatten()
    spread_x = float(torch.mean((x - x.mean()) ** 2))
    slope = float(torch.mean((x - x.mean()) * (y - y.mean()))) / spread_x if spread_x else 1.0
    return slope, float(y.mean()) - slope * float(x.mean())


class ERTACache(AnchoredRule[ERTASettings]):
    """ERTACache on the velocity's residual."""

    name = "ertacache"
    citation = "Peng et al., ERTACache: Error Rectification and Timesteps Adjustment, ICLR 2026"
    needs = "it evaluates at least its first step"

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[ERTASettings]:
        """Return the profiled schedules that meet the budget, with their corrections."""
        settings: list[ERTASettings] = []
        for reuse in REUSES:
            residuals = residuals_of(recording, reuse)
            errors = CacheErrors(residuals)
            ways = product(RETENTIONS, map(float, THRESHOLDS))
            schedules = [
                ERTASettings(
                    anchors=profiled(errors, recording.steps, retention, threshold),
                    reuse=reuse,
                    threshold=threshold,
                )
                for retention, threshold in ways
                if retention <= recording.steps
            ]
            for plain in spread(self.meeting(schedules, recording.times, evaluations), SCHEDULES):
                fitted = tuple(corrections(residuals, plain.anchors))
                settings += [plain.model_copy(update={"corrections": fitted}), plain]
        return settings

    def rebuild(self, settings: ERTASettings) -> Rebuild:
        """Return K r_j + B, and the state where the residual is v - x."""

        def rebuild(past: Past, now: Now) -> Tensor:
            last, (slope, offset) = past.anchors[0], (1.0, 0.0)
            if settings.corrections:
                slope, offset = settings.corrections[now.step]
            v = last.v.to(working_dtype(last.v))
            if settings.reuse == "velocity":
                return slope * v + offset
            return now.x + slope * (v - last.x) + offset

        return rebuild
