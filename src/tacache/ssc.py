"""SSC, the stable step calculator (eq. 6-8), and its inverse: thresholds for a budget.

Everything here works on the variation of each step: |k_n| dt_n for magnitude, d_n for direction.
"""

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacache.errors import PlanError, counted

logger = logging.getLogger("tacache.ssc")

# Candidate thresholds times steps: keeps the search below about a second for any grid. Up to a
# hundred steps every window sum is a candidate and the search is exhaustive.
SEARCH_SIZE = 120_000
MARGIN = 1e-12  # of the largest sum
# The longest interval, H_max in the paper's experiments.
MAX_SKIP = 12

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Schedule(NamedTuple):
    """A pair of thresholds and the anchors that they, and splits where needed, lead to."""

    tau_k: float
    tau_d: float
    anchors: tuple[int, ...]


def interval_table(
    magnitude: Sequence[float],
    direction: Sequence[float],
    *,
    tau_k: float,
    tau_d: float,
    max_skip: int = MAX_SKIP,
    breaks: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return h_n of every step (eq. 6-8): the longest interval that may start at n, at least 1.

    `breaks` are steps at which history starts anew, as at step 0: no interval crosses one, and its
    own has length one.
    """
    check_limits(tau_k=tau_k, tau_d=tau_d, max_skip=max_skip)
    limits = longest_intervals(len(direction), max_skip, breaks)
    by_magnitude = _longest(_window_sums(magnitude, limits), tau_k)
    by_direction = _longest(_window_sums(direction, limits), tau_d)
    return tuple(int(h) for h in np.minimum(by_magnitude, by_direction))


def walk(table: Sequence[int]) -> tuple[int, ...]:
    """Return the anchors Algorithm 1 visits; step 0 always has an interval of one."""
    anchors, n = [0], 1
    while n < len(table):
        anchors.append(n)
        n += table[n]
    return tuple(anchors)


def schedule_for(
    magnitude: Sequence[float],
    direction: Sequence[float],
    *,
    evaluations: int,
    max_skip: int = MAX_SKIP,
    ratio: float | None = None,
    breaks: Sequence[int] = (),
) -> Schedule:
    """Return thresholds and anchors with exactly this many evaluations.

    Of all pairs that land on the budget, the one whose intervals have the smallest sum of squared
    cumulative direction variation. Where none lands there, the best pair with the most anchors
    below it, its widest intervals split. `ratio` keeps tau_d = ratio * tau_k.
    """
    check_limits(max_skip=max_skip, ratio=ratio)
    steps = len(direction)
    limits = longest_intervals(steps, max_skip, breaks)
    fewest = len(walk(limits))
    if not fewest <= evaluations <= steps:
        raise PlanError(
            f"{counted(evaluations, 'evaluation')} cannot be made: {steps} steps with "
            f"max_skip={max_skip} take {fewest} to {steps}"
            + ("; a larger max_skip allows fewer" if evaluations in range(2, fewest) else "")
        )
    best = _best_pair(magnitude, direction, evaluations, limits, ratio)
    return best._replace(anchors=split_widest(best.anchors, direction, evaluations))


def longest_intervals(steps: int, max_skip: int, breaks: Sequence[int] = ()) -> list[int]:
    """Return the longest interval that any thresholds allow from each step, within parts."""
    ends = [min(b for b in (*breaks, steps) if b > n) for n in range(steps)]
    return [1 if n in breaks else min(max_skip, end - n) for n, end in enumerate(ends)]


def least_max_skip(steps: int, evaluations: int, breaks: Sequence[int] = ()) -> int:
    """Return the paper's longest interval or, where the budget needs longer, the shortest such.

    Where no interval is long enough for the budget, that is as many steps as there are.
    """
    enough = (
        longest
        for longest in range(MAX_SKIP, steps)
        if len(walk(longest_intervals(steps, longest, breaks))) <= evaluations
    )
    return next(enough, max(MAX_SKIP, steps))


def split_widest(
    anchors: Sequence[int], variation: Sequence[float], evaluations: int
) -> tuple[int, ...]:
    """Split the interval with the largest cumulative variation, in its middle, until the budget."""
    total = np.concatenate([[0.0], np.cumsum(variation)])
    placed, steps = sorted(anchors), len(variation)
    while len(placed) < evaluations:
        ends = [*placed[1:], steps]
        widest = max(
            ((n, end) for n, end in zip(placed, ends, strict=True) if end - n > 1),
            key=lambda interval: (
                total[interval[1]] - total[interval[0]],
                interval[1] - interval[0],
            ),
        )
        placed = sorted([*placed, _middle_of_variation(total, *widest)])
    return tuple(placed)


def loses_to_even_steps(
    direction: Sequence[float], lengths: Sequence[float], anchors: Sequence[int], share: float
) -> bool:
    """Return whether turned velocities here are predicted to err more than even Euler steps.

    `share` of d^2 is no turning that the steps resolve (`Profile.unresolved`).
    """
    if not share:
        return False
    even = [i * len(lengths) // len(anchors) for i in range(len(anchors))]
    by_rule = turning_error(direction, lengths, anchors, share, turned=True)
    return by_rule > turning_error(direction, lengths, even, share, turned=False)


@cache
def warn_of_even_steps(rule: str, evaluations: int, steps: int) -> None:
    """Say once that as many plain steps are expected to do better."""
    logger.warning(
        "the rule %r with %d of %d steps evaluated is expected to do worse than %d plain steps: by "
        "the profile's erratic direction the model seems to turn another way at each step; compare "
        "it with plain steps, with the rule 'reuse', and with a fitted plan",
        rule, evaluations, steps, evaluations,
    )  # fmt: skip


def turning_error(
    direction: Sequence[float],
    lengths: Sequence[float],
    anchors: Sequence[int],
    share: float,
    *,
    turned: bool,
) -> float:
    """Return the error of skipped velocities, in |v|, over time, where `share` is unresolved.

    The resolved part s = d sqrt(1 - share) adds up from step to step; the other, w, does not. A
    velocity that is reused misses both. A turned one goes by the sum of d along a direction that
    history shows with w in it, and so is wrong by what goes beyond the sum of s, and by w.
    """
    kept, total = math.sqrt(1 - share), 0.0
    for i, (start, end) in enumerate(zip(anchors, (*anchors[1:], len(lengths)), strict=True)):
        w = direction[start] * math.sqrt(share)
        seen = kept * sum(direction[anchors[i - 1] : start]) if i else 0.0
        turn = 0.0
        for n in range(start + 1, end):
            turn += direction[n - 1]
            went = turn if turned and i else 0.0  # the first anchor has no history to turn by
            aligned = went * kept * turn * seen / (math.hypot(seen, w) or 1.0)
            square = went**2 + (kept * turn) ** 2 - 2 * aligned + w**2
            total += lengths[n] * math.sqrt(max(0.0, square))
    return total


def check_limits(
    *,
    max_skip: int,
    tau_k: float | None = None,
    tau_d: float | None = None,
    ratio: float | None = None,
) -> None:
    """Refuse negative or infinite thresholds, a ratio that is not positive, max_skip below 1."""
    for name, value in (("tau_k", tau_k), ("tau_d", tau_d)):
        if value is not None and not 0 <= value < math.inf:
            raise PlanError(f"{name} is a finite number from 0 up, not {value}")
    if ratio is not None and not 0 < ratio < math.inf:
        raise PlanError(f"ratio (tau_d : tau_k) is a positive number, not {ratio}")
    if max_skip < 1:
        raise PlanError(f"max_skip is at least 1 (no step is skipped), not {max_skip}")


def _window_sums(variation: Sequence[float], limits: Sequence[int]) -> Floats:
    """Return in row n, column h - 1 the variation of h steps from n; infinite beyond its limit."""
    z, steps = np.asarray(variation, float), len(variation)
    sums = np.full((steps, max(limits)), np.inf)
    for n, limit in enumerate(limits):
        sums[n, :limit] = np.cumsum(z[n : n + limit])
    return sums


def _longest(sums: Floats, tolerance: float | Floats) -> Integers:
    """Return SSC(z, n, tau) of every n (eq. 6); for several tolerances, one row each."""
    rows = [np.searchsorted(row, tolerance, side="right") for row in sums]
    longest: Integers = np.maximum(1, np.stack(rows, axis=-1))
    return longest


def _candidates(values: Floats, limit: int) -> Floats:
    """Return one threshold for every set of windows that a threshold can admit, tightest first.

    Between two neighbouring sums all thresholds act alike; the middle is the one that still acts so
    when rates change a little, and the last lies a little above the largest sum, which is rounded
    differently where it is added up, or the ratio divided by. Beyond `limit`, evenly chosen ones.
    """
    sums = np.unique(np.concatenate([[0.0], values[np.isfinite(values)].ravel()]))
    thresholds: Floats = np.concatenate([(sums[:-1] + sums[1:]) / 2, sums[-1:] * (1 + MARGIN)])
    if len(thresholds) <= limit:
        return thresholds
    chosen = np.linspace(0, len(thresholds) - 1, limit).round().astype(int)
    few: Floats = thresholds[chosen]
    return few


def _best_pair(
    magnitude: Sequence[float],
    direction: Sequence[float],
    evaluations: int,
    limits: Sequence[int],
    ratio: float | None,
) -> Schedule:
    """Return the pair with most anchors up to the budget, then the least cost, then tightest."""
    k_sums, d_sums = _window_sums(magnitude, limits), _window_sums(direction, limits)
    limit = max(64, SEARCH_SIZE // len(direction))
    if ratio is None:  # each tau_k with every tau_d
        d_taus = _candidates(d_sums, limit)
        batches = list(_candidates(k_sums, limit)[:, None])
    else:
        d_taus = _candidates(np.concatenate([d_sums, ratio * k_sums]), limit)
        batches = [d_taus / ratio]
    d_tables = _longest(d_sums, d_taus)
    best, best_rank = None, (0, 0.0)
    for k_taus in batches:
        tables = np.minimum(_longest(k_sums, k_taus), d_tables)
        counts, costs = _walk_all(tables, direction, evaluations)
        within = np.flatnonzero(counts <= evaluations)
        if not len(within):
            continue
        i = within[np.lexsort([costs[within], -counts[within]])[0]]
        rank = (-int(counts[i]), float(costs[i]))
        if best is None or rank < best_rank:
            tau_k = float(np.broadcast_to(k_taus, d_taus.shape)[i])
            best, best_rank = Schedule(tau_k, float(d_taus[i]), walk(tables[i].tolist())), rank
    assert best is not None  # the loosest pair has the fewest anchors, and the budget allows those
    return best


def _walk_all(tables: Integers, direction: Sequence[float], most: int) -> tuple[Integers, Floats]:
    """Return anchors and cost of the walk through each table, cut short past `most` anchors."""
    rows, steps = np.arange(len(tables)), tables.shape[1]
    total = np.concatenate([[0.0], np.cumsum(direction)])
    lengths = np.pad(tables, ((0, 0), (0, 1)))  # a finished walk stays at the end
    position = np.ones(len(tables), int)
    counts, costs = np.ones(len(tables), int), np.full(len(tables), total[1] ** 2)
    for _ in range(most):
        end = position + lengths[rows, position]
        counts += position < steps
        costs += (total[end] - total[position]) ** 2
        position = end
    return counts, costs


def _middle_of_variation(total: Floats, start: int, end: int) -> int:
    """Return the step inside (start, end) that halves the variation best, nearest the middle."""
    return min(
        range(start + 1, end),
        key=lambda n: (
            abs((total[n] - total[start]) - (total[end] - total[n])),
            abs((n - start) - (end - n)),
        ),
    )
