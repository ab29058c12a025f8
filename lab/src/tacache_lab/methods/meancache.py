"""MeanCache (Gao et al., ICLR 2026, arXiv:2601.19961): average velocities and a shortest path.

At a skipped step from t to s the average velocity is v_t + (s - t) (z_t - z_r - (t - r) v_r) /
(t - r)^2, where r lies `span` steps back and v_t is the velocity of the step before; a span of one
is plain reuse. What every edge (from an anchor to the next, with a span) would cost is measured
offline as the deviation of its average velocity from the true one; anchors and spans are the
shortest path of K edges with the costs raised to gamma, which suppresses peaks.
"""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacache.tasu import working_dtype
from tacache.velocity import euler
from tacache_lab.methods.caching import MAX_SPAN, AnchoredRule, AnchorSettings, Now, Past, Rebuild
from tacache_lab.methods.online import mean_abs
from tacache_lab.methods.seam import RecordedProblem, Visit
from tacache_lab.methods.tuning import nearly

GAMMAS = (5.0, 3.0, 2.0, 1.0)  # published: 5
SPANS = range(1, MAX_SPAN + 1)

Floats = NDArray[np.float64]


class MeanCacheSettings(AnchorSettings):
    """Anchors, and for each how far back its interval's reconstruction looks."""

    spans: tuple[int, ...]
    gamma: float


def average_velocity(past: Past, now: Now, span: int) -> Tensor:
    """Return the average velocity from t to s, from the state `span` steps back."""
    latest, earlier = past.steps[0], past.steps[min(span, len(past.steps)) - 1]
    v = latest.v.to(working_dtype(latest.v))
    if earlier is latest:
        return v
    back = now.t - earlier.t
    bend = (now.x - earlier.x - back * earlier.v) / back**2
    return v + (now.t_next - now.t) * bend


def edge_costs(recording: RecordedProblem, span: int) -> Floats:
    """Return row n, column m: the deviation of the average velocity from anchor n to anchor m.

    Each edge starts on the full-step run, with its true history. Infinite where m <= n.
    """
    costs = np.full((recording.steps + 1, recording.steps + 1), np.inf)
    for n in range(recording.steps):
        past = Past()
        for i in range(max(0, n - MAX_SPAN + 1), n + 1):
            visit = Visit(i, recording.times[i], recording.states[i], recording.velocities[i])
            past = past.then(visit, evaluated=True)
        costs[n, n + 1] = 0.0
        x = recording.states[n + 1]
        for i, (t, t_next) in enumerate(pairwise(recording.times[n + 1 :]), start=n + 1):
            v = average_velocity(past, Now(i, t, t_next, x), span).to(x.dtype)
            past = past.then(Visit(i, t, x, v), evaluated=False)
            x = euler(x, v, t, t_next)
            deviation = float(mean_abs(x - recording.states[i + 1]).mean())
            costs[n, i + 1] = deviation / (recording.times[n] - t_next)
    return costs


def shortest_path(costs: Floats, edges: int) -> tuple[int, ...]:
    """Return the nodes that the cheapest path of so many edges leaves, from 0 to the last."""
    nodes = len(costs)
    best, came_from = np.full(nodes, np.inf), []
    best[0] = 0.0
    for _ in range(edges):
        through = best[:, None] + costs
        came_from.append(through.argmin(axis=0))
        best = through.min(axis=0)
    path = [nodes - 1]
    for previous in reversed(came_from):
        path.append(int(previous[path[-1]]))
    return tuple(path[:0:-1])


class MeanCache(AnchoredRule[MeanCacheSettings]):
    """MeanCache: a schedule for the budget by dynamic programming."""

    name = "meancache"
    citation = "Gao et al., MeanCache: From Instantaneous to Average Velocity, ICLR 2026"

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[MeanCacheSettings]:
        """Return the shortest paths of K edges, or a few fewer, for several gammas."""
        by_span = np.stack([edge_costs(recording, span) for span in SPANS])
        costs, spans = by_span.min(axis=0), by_span.argmin(axis=0) + 1
        scale = np.max(costs[np.isfinite(costs)]) or 1.0
        by_anchors: dict[tuple[int, ...], MeanCacheSettings] = {}
        for gamma, length in product(GAMMAS, nearly(evaluations)):
            anchors = shortest_path((costs / scale) ** gamma, length)
            edges = pairwise((*anchors, recording.steps))
            chosen = MeanCacheSettings(
                anchors=anchors, spans=tuple(int(spans[edge]) for edge in edges), gamma=gamma
            )
            by_anchors.setdefault(anchors, chosen)
        return list(by_anchors.values())

    def rebuild(self, settings: MeanCacheSettings) -> Rebuild:
        """Return the average velocity, with the span of the interval."""
        spans = dict(zip(settings.anchors, settings.spans, strict=True))

        def rebuild(past: Past, now: Now) -> Tensor:
            return average_velocity(past, now, spans[past.anchors[0].step])

        return rebuild
