"""TeaCache (Liu et al., CVPR 2025, arXiv:2411.19108): skip by an estimate of the output's change.

A sum of poly(rel(m_i, m_{i-1})) runs since the last evaluation, where rel(a, b) = mean|a - b| /
mean|b| and poly is fitted so that it estimates rel(v_i, v_{i-1}); steps are skipped while it is
below delta, never the first or the last. m lies inside the model; here it is a sinusoidal embedding
of the time, as for Wan (the schedule is then the same for all samples), or the state x.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from tacache.storage.files import Frozen
from tacache_lab.methods.caching import (
    REUSES,
    CachingRule,
    Rebuild,
    Reuse,
    between,
    reused,
    with_reuses,
)
from tacache_lab.methods.online import OnlineRule, SkipCriterion, relative_change
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.tuning import MAX_THRESHOLD

DEGREE = 4
WIDTH = 256  # of the time embedding, as in DiT


class TeaCacheSettings(Frozen):
    """The polynomial, highest power first, where it was fitted, and the threshold."""

    coefficients: tuple[float, ...]
    domain: tuple[float, float]
    delta: float
    reuse: Reuse = "residual"


class FittedPolynomial(NamedTuple):
    """A polynomial with the range of arguments it was fitted on."""

    coefficients: tuple[float, ...]
    domain: tuple[float, float]


def time_embedding(t: float) -> Tensor:
    """Return the sinusoidal embedding of 1000 t: cosines, then sines, of geometric frequencies."""
    half = WIDTH // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, dtype=torch.float64) / half)
    angles = 1000 * t * frequencies
    return torch.cat([angles.cos(), angles.sin()])[None]


@lru_cache(maxsize=8)
def embedding_changes(times: tuple[float, ...]) -> tuple[float, ...]:
    """Return the rel of the time embedding from step i - 1 to step i, for i = 1 ... N - 1."""
    embeddings = [time_embedding(t) for t in times[:-1]]
    return tuple(float(relative_change(b, a)) for a, b in pairwise(embeddings))


def fit_polynomial(changes: Sequence[float], outputs: Sequence[float]) -> FittedPolynomial:
    """Return least squares of degree 4, or less where there are too few points."""
    degree = min(DEGREE, len(set(changes)) - 1)
    domain = (min(changes), max(changes))
    if degree < 1:
        return FittedPolynomial((float(np.mean(outputs)),), domain)
    fitted = Polynomial.fit(changes, outputs, degree).convert()
    return FittedPolynomial(tuple(float(c) for c in fitted.coef[::-1]), domain)


def estimate(settings: TeaCacheSettings | FittedPolynomial, change: Tensor) -> Tensor:
    """Return poly(change), not negative, and constant beyond the range it was fitted on."""
    inside = change.double().clamp(*settings.domain)
    value = torch.zeros_like(inside)
    for coefficient in settings.coefficients:
        value = value * inside + coefficient
    return value.clamp(min=0)


def schedule(increments: Sequence[float], delta: float) -> tuple[int, ...]:
    """Return the steps evaluated where step i adds increments[i - 1].

    The first and last always are.
    """
    anchors, total, last = [0], 0.0, len(increments)
    for i, increment in enumerate(increments, start=1):
        total += increment
        if i == last or total >= delta:
            anchors.append(i)
            total = 0.0
    return tuple(anchors)


class TeaCacheTime(CachingRule[TeaCacheSettings]):
    """TeaCache on the time embedding: one schedule for all samples."""

    name = "teacache"
    citation = "Liu et al., Timestep Embedding Tells: It's Time to Cache, CVPR 2025 (on time)"
    needs = "the first and the last step are always evaluated"

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[TeaCacheSettings]:
        """Return the deltas that meet the budget, with both reuses."""
        changes = embedding_changes(tuple(recording.times))
        if not changes:
            return []
        outputs = [float(rows.mean()) for rows in _output_changes(recording)]
        fit = fit_polynomial(changes, outputs)
        increments = estimate(fit, torch.tensor(changes, dtype=torch.float64)).tolist()
        deltas = between(total for i in range(len(changes)) for total in accumulate(increments[i:]))
        every = (TeaCacheSettings(**fit._asdict(), delta=delta) for delta in deltas)
        return with_reuses(self.meeting(every, recording.times, evaluations))

    def anchors(self, settings: TeaCacheSettings, times: Sequence[float]) -> tuple[int, ...]:
        """Return the schedule on this grid."""
        changes = torch.tensor(embedding_changes(tuple(times)), dtype=torch.float64)
        return schedule(estimate(settings, changes).tolist(), settings.delta)

    def rebuild(self, settings: TeaCacheSettings) -> Rebuild:
        """Return the residual x + r_j, or v_j."""
        return reused(settings.reuse)


class TeaCacheState(OnlineRule[TeaCacheSettings]):
    """TeaCache on the state x: each sample decides for itself."""

    name = "teacache-x"
    citation = "Liu et al., Timestep Embedding Tells: It's Time to Cache, CVPR 2025 (on x)"
    needs = "the first and the last step are always evaluated"

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[TeaCacheSettings]:
        """Return the tightest deltas that meet the budget and a little less, for each reuse."""
        if recording.steps < 2:
            return []
        inputs = [relative_change(b, a) for a, b in pairwise(recording.states[:-1])]
        outputs = torch.cat(list(_output_changes(recording)))
        fit = fit_polynomial(torch.cat(inputs).tolist(), outputs.tolist())
        candidates = []
        for reuse in REUSES:
            loosest = TeaCacheSettings(**fit._asdict(), delta=MAX_THRESHOLD, reuse=reuse)
            candidates += self.tightest(recording, loosest, "delta", evaluations)
        return candidates

    def watch(self, settings: TeaCacheSettings) -> SkipCriterion:
        """Return the polynomial of how far the state moved in one step."""
        return SkipCriterion(
            threshold=settings.delta,
            warm_up=1,
            reuse=settings.reuse,
            estimate=lambda memory, x: estimate(settings, relative_change(x, memory.before)),
        )


def _output_changes(recording: RecordedProblem) -> Iterator[Tensor]:
    """Return rel(v_i, v_{i-1}) of each sample, for i = 1 ... N - 1."""
    return (relative_change(b, a).double() for a, b in pairwise(recording.velocities))
