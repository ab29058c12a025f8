"""A dynamic program that places anchors by local errors, weighted by how errors grow.

Local errors follow from the inner products of a full run's velocities: the move from one step to
another is a sum of them, and so is what a weighted sum of two anchors' velocities can say of it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.grid import step_lengths

Floats = NDArray[np.float64]


def inner_products(velocities: Tensor) -> Floats:
    """Return <v_i, v_j> of one sample's steps (steps, ...), in float64."""
    rows = velocities.reshape(len(velocities), -1).double()
    gram: Floats = (rows @ rows.T).cpu().numpy()
    return gram


def pooled(grams: Sequence[Floats]) -> Floats:
    """Make one Euler step (eq. 1) across all steps between.

    Without that, the few samples that turn sharply would decide for all.
    """
    total = np.zeros_like(grams[0])
    for gram in grams:
        steps = np.diag(gram)
        changes = float((steps[1:] + steps[:-1] - 2 * np.diag(gram, 1)).sum())
        total += gram / max(changes, 1e-12 * float(steps.sum()), 1e-300)
    return total


def local_errors(gram: Floats, times: Sequence[float], parts: Sequence[int] = ()) -> Floats:
    """Return squared error [p, n, m] of the move from n to m by the best weights of v_n and v_p.

    [n, n, m] is that of v_n alone, and so is [p, n, m] where a new part starts between p and n.
    What cannot be (p > n, n >= m, a part that starts between n and m) is infinite.
    """
    steps, lengths = len(gram), np.array(step_lengths(times))
    sums = np.concatenate([np.zeros((1, steps)), np.cumsum(lengths[:, None] * gram, axis=0)])
    moves = np.concatenate([np.zeros((steps + 1, 1)), np.cumsum(sums * lengths, axis=1)], axis=1)
    errors = np.full((steps, steps, steps + 1), np.inf)
    for n in range(steps):
        last = min((part for part in parts if part > n), default=steps)
        first = max((part for part in parts if part <= n), default=0)
        ends = np.arange(n + 1, last + 1)
        whole = moves[ends, ends] - 2 * moves[n, ends] + moves[n, n]
        along = sums[ends, n] - sums[n, n]
        alone = np.maximum(whole - along**2 / gram[n, n], 0) if gram[n, n] > 0 else whole
        errors[: n + 1, n, ends] = alone
        for p in range(first, n if gram[n, n] > 0 else 0):
            across = gram[p, p] - gram[n, p] ** 2 / gram[n, n]
            other = (sums[ends, p] - sums[n, p]) - along * gram[n, p] / gram[n, n]
            gain = other**2 / across if across > 1e-12 * gram[p, p] else 0.0
            errors[p, n, ends] = np.maximum(alone - gain, 0)
    return errors


def best_anchors(errors: Floats, growth: Sequence[float], evaluations: int) -> tuple[int, ...]:
    """Return the anchors with the least sum of local errors, each times its squared growth.

    A walk over pairs (previous anchor, anchor), since an interval's error depends on both.
    """
    steps = len(errors)
    costs = errors * np.square(np.asarray(growth))[None, None, :]
    # reached[p, n]: least cost up to anchor n whose previous one is p; anchor 0 has none
    reached = np.full((steps, steps), np.inf)
    reached[0, 0] = 0.0
    came_from: list[NDArray[np.int64]] = []
    for _ in range(evaluations - 1):
        through = reached[:, :, None] + costs[:, :, :steps]  # p, n -> m
        came_from.append(through.argmin(axis=0))
        reached = through.min(axis=0)
    last = reached + costs[:, :, steps]
    p, n = (int(i) for i in np.unravel_index(np.argmin(last), last.shape))
    anchors = [n]
    for previous in reversed(came_from):
        anchors.append(p)
        p, n = int(previous[p, n]), p
    return tuple(reversed(anchors))


def growth_between(steps: int, probed: Sequence[int], grown: Sequence[float]) -> list[float]:
    """Return how many times an error made at each step has grown at the end, by probed steps.

    The logarithm is interpolated; an error made in the last step does not grow.
    """
    logs = np.interp(np.arange(steps + 1), [*probed, steps], [*np.log(grown), 0.0])
    return [float(value) for value in np.exp(logs)]


def as_columns(basis: Sequence[Tensor], target: Tensor) -> Floats:
    """Return inner products of one sample's basis velocities and its target, the target last."""
    columns = torch.stack([part.flatten() for part in (*basis, target)]).double()
    gram: Floats = (columns @ columns.T).cpu().numpy()
    return gram
