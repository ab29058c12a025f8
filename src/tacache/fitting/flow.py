"""States of the flow itself: what a run of ever more steps would come to, at a run's noise levels.

A run of N Euler steps is off by about c / N, a second-order run by about c / N^2: with twice as
many steps it stands for the flow. Where Euler's error falls much slower, no solver is of second
order; there two Euler runs together tell what would be left without any error (Richardson, 1911).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from tacache.errors import PlanError
from tacache.fitting.samples import FitSamples
from tacache.grid import GRID_TOLERANCE
from tacache.tasu import relative_distance

EULER = 1.0  # the order of Euler's method: half the step, half the error
SLOW = 0.6  # an order below this is believed; with few steps, smooth flows have one above it
MIN_ORDER = 0.5  # no lower order is believed
FINER = 2  # times as many steps, unless told otherwise


def finest_of(steps: int, reference_steps: int | None) -> int:
    """Return the steps of the finer run; one that is no finer than the run is refused."""
    finest = FINER * steps if reference_steps is None else reference_steps
    if finest <= steps:
        raise PlanError(f"reference_steps is above the {steps} steps of the run, not {finest}")
    return finest


def check_same_run(runs: FitSamples, other: FitSamples, steps: int) -> None:
    """Refuse a run of so many steps that has another number, or begins or ends elsewhere."""
    ends = ((runs.times[0], other.times[0]), (runs.times[-1], other.times[-1]))
    same = all(math.isclose(a, b, abs_tol=10 * GRID_TOLERANCE) for a, b in ends)
    count = len(other.times) - 1
    if count != steps or not same or not torch.equal(runs.noise, other.noise):
        raise PlanError(
            f"a call of {steps} steps makes {count}, starts from other noise or ends elsewhere "
            f"than the run of {len(runs.times) - 1}, so that they do not tell the flow: fit to "
            "the run"
        )


def distances(runs: FitSamples, x: Tensor, reference: Tensor) -> list[float]:
    """Return the relative distances of held-out samples' ends, those of all processes."""
    mine = dict(zip(runs.numbers, _apart(x, reference), strict=False))  # held-out ones come first
    return list(runs.gathered(mine).values())


def mean_apart(runs: FitSamples, x: Tensor, reference: Tensor) -> float:
    """Return the mean relative distance of held-out samples' ends."""
    return fmean(distances(runs, x, reference))


def log_mean(values: Iterable[float]) -> float:
    """Return the mean by logarithms, as that of decibels is; 0 where one of the values is.

    Equivalent steps go by it. Of few samples one that ends as another picture would decide the
    ordinary mean, of Euler runs and of plans.
    """
    known = list(values)
    return math.exp(fmean(map(math.log, known))) if min(known) > 0 else 0.0


def _apart(x: Tensor, reference: Tensor) -> list[float]:
    """Return the relative distance of each sample; a process may have none of them."""
    apart: list[float] = relative_distance(x, reference).flatten().tolist()
    return apart


def slower_order(runs: FitSamples, ends: Mapping[int, Tensor]) -> float | None:
    """Return the order of Euler's error where it falls much slower than 1 / N, for all judges.

    None where it does not, or where there are no three runs to tell. A single sample may turn
    elsewhere between two counts; that says nothing of the order.
    """
    if len(ends) < 3:
        return None
    half, steps, finest = sorted(ends)
    falls = _apart(ends[half], ends[steps]), _apart(ends[steps], ends[finest])
    orders = [_order(*fall, steps / half, finest / steps) for fall in zip(*falls, strict=True)]
    # Held-out samples come first.
    all_orders = runs.gathered(dict(zip(runs.numbers, orders, strict=False)))
    fastest = max(all_orders.values())
    return fastest if fastest < SLOW else None


def _order(first: float, second: float, ratio: float, finer: float) -> float:
    """Return the order, at most Euler's, by which an error falls by one amount and then another.

    An error of c / N^p falls by c (r^p - 1) / N^p up to N steps, r times those before, and by
    c (1 - f^-p) / N^p from there to f times as many.
    """
    if min(first, second) <= 0:
        return EULER
    trials = [MIN_ORDER + 0.01 * n for n in range(round(100 * (EULER - MIN_ORDER)) + 1)]

    def missed(p: float) -> float:
        expected = (math.pow(ratio, p) - 1) / (1 - math.pow(finer, -p))
        return abs(math.log(first / second) - math.log(expected))

    return min(trials, key=missed)


def states_at(
    levels: Sequence[float],
    times: Sequence[float],
    states: Tensor,
    velocities: Tensor,
    breaks: Sequence[float] = (),
) -> Tensor:
    """Return the states of a run over `times` at other noise levels, by cubic Hermite polynomials.

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
    state: Tensor = first + share * leaving + share**2 * square + share**3 * cube
    return state


def extrapolated(coarse: Tensor, fine: Tensor, ratio: float, order: float = EULER) -> Tensor:
    """Return what states of two runs point to, the fine one with `ratio` times as many steps."""
    if ratio <= 1 or order <= 0:
        raise PlanError(f"a finer run has more steps than the coarse one, not {ratio:g} times")
    return fine + (fine - coarse) / (math.pow(ratio, order) - 1)


def equivalent_steps(distance: float, measured: Mapping[int, float]) -> float:
    """Return how many Euler steps are at this distance from the flow, by those measured.

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
    """Return the logarithms, none above the one before: more steps are never taken to be worse."""
    lowered: list[float] = []
    for log in logs:
        lowered.append(min(log, lowered[-1] - 1e-9) if lowered else log)
    return lowered
