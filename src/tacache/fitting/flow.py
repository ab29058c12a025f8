"""States of the flow itself: what a run of ever more steps would come to, at a run's noise levels.

A run of N Euler steps is off by about c / N. A second run from the same noise with more steps has
less of that error, and the two together tell what would be left without any (Richardson, 1911).
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tacache.errors import PlanError
from tacache.grid import GRID_TOLERANCE

EULER = 1.0  # the order of Euler's method: half the step, half the error


def divided(times: Sequence[float], parts: int) -> tuple[float, ...]:
    """The grid with every step divided into so many of equal length."""
    inner = (
        start + (end - start) * i / parts
        for start, end in itertools.pairwise(times)
        for i in range(parts)
    )
    return (*inner, times[-1])


def states_at(
    levels: Sequence[float],
    times: Sequence[float],
    states: Tensor,
    velocities: Tensor,
    breaks: Sequence[float] = (),
) -> Tensor:
    """The states of a run over `times` at other noise levels, by cubic Hermite interpolation.

    `states` has one state a noise level and `velocities` one a step, along dim 0. Across a break,
    where the velocity jumps, the nearer end of the step is continued in a straight line instead.
    """
    return torch.stack([_state_at(t, times, states, velocities, breaks) for t in levels])


def _state_at(
    t: float, times: Sequence[float], states: Tensor, velocities: Tensor, breaks: Sequence[float]
) -> Tensor:
    rising = [-level for level in times]
    n = bisect_left(rising, -t - GRID_TOLERANCE)  # the first level that is not above t
    if n < len(times) and abs(times[n] - t) <= GRID_TOLERANCE:
        return states[n]
    if not 0 < n < len(times):
        raise PlanError(
            f"the level {t:g} is outside of the finer run, from {times[0]:g} to {times[-1]:g}"
        )
    start, end = times[n - 1], times[n]
    switch = next((b for b in breaks if end < b <= start), None)
    if switch is not None and n < len(velocities):
        near = n - 1 if t >= switch else n
        return states[near] + (t - times[near]) * velocities[near]
    share, length = (t - start) / (end - start), end - start
    first, last = states[n - 1], states[n]
    leaving = length * velocities[n - 1]
    if n == len(velocities):  # the last state has no velocity: a parabola through what is known
        return first + share * leaving + share**2 * (last - first - leaving)
    arriving = length * velocities[n]
    rest = last - first
    square, cube = 3 * rest - 2 * leaving - arriving, leaving + arriving - 2 * rest
    found: Tensor = first + share * leaving + share**2 * square + share**3 * cube
    return found


def extrapolated(coarse: Tensor, fine: Tensor, ratio: float, order: float = EULER) -> Tensor:
    """What states of two runs point to, the fine one with `ratio` times as many steps."""
    if ratio <= 1 or order <= 0:
        raise PlanError(f"a finer run has more steps than the coarse one, not {ratio:g} times")
    return fine + (fine - coarse) / (math.pow(ratio, order) - 1)


def measured_order(coarse: float, fine: float, ratio: float) -> float:
    """The order of a method, from two distances of runs whose numbers of steps rise by `ratio`.

    `coarse` is the distance between the first two runs and `fine` that between the last two.
    """
    if min(coarse, fine) <= 0:
        return EULER
    return math.log(coarse / fine) / math.log(ratio)


def equivalent_steps(distance: float, measured: Mapping[int, float]) -> float:
    """How many Euler steps are at this distance from the flow, by distances of measured counts.

    Between two counts the logarithm of the distance is a straight line over that of the count;
    outside of all, the line goes on with Euler's order.
    """
    if not measured or min(measured.values()) <= 0:
        raise PlanError("equivalent steps need the distances of Euler runs, none of them zero")
    if distance <= 0:
        return math.inf
    counts = sorted(measured)
    logs = [math.log(measured[count]) for count in counts]
    falling = [-log for log in _falling(logs)]
    n = bisect_right(falling, -math.log(distance))
    if n == 0 or n == len(counts):
        nearest = counts[0] if n == 0 else counts[-1]
        return nearest * math.pow(measured[nearest] / distance, 1 / EULER)
    share = (-math.log(distance) - falling[n - 1]) / (falling[n] - falling[n - 1])
    return counts[n - 1] * math.pow(counts[n] / counts[n - 1], share)


def _falling(logs: Sequence[float]) -> list[float]:
    """The logarithms, none above the one before: more steps are never taken to be worse."""
    found: list[float] = []
    for log in logs:
        found.append(min(log, found[-1] - 1e-9) if found else log)
    return found
