"""States of the flow itself: what a run of ever more steps would come to, at a run's noise levels.

A run of N Euler steps is off by about c / N. A second run from the same noise with more steps has
less of that error, and the two together tell what would be left without any (Richardson, 1911).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tacache.decomposition import relative_distance
from tacache.errors import PlanError
from tacache.fitting.samples import Runs
from tacache.grid import GRID_TOLERANCE

Target = Literal["run", "flow"]  # what a fit's intervals lead to
EULER = 1.0  # the order of Euler's method: half the step, half the error
NEARLY = 0.15  # how far a measured order may be off and still be taken for Euler's
ORDERS = (0.5, 2.0)  # no other order is believed
FINER = 2  # times as many steps, unless told otherwise
UNSURE = 3  # an extrapolation is of second order: from half the steps on, its error falls by four


class Aim(NamedTuple):
    """What a fit to the flow leads to: its states, and the distances of Euler runs to its end."""

    states: Tensor
    euler: Mapping[int, float]
    floor: float  # how far the states themselves may be off the flow: no less can be measured


def finest_of(steps: int, reference_steps: int | None) -> int:
    """The steps of the finer run; one that is no finer than the run is refused."""
    finest = FINER * steps if reference_steps is None else reference_steps
    if finest <= steps:
        raise PlanError(f"reference_steps is above the {steps} steps of the run, not {finest}")
    return finest


def check_same_run(runs: Runs, finer: Runs) -> None:
    """Refuse a finer run that starts from another noise or between other levels."""
    ends = ((runs.times[0], finer.times[0]), (runs.times[-1], finer.times[-1]))
    same = all(math.isclose(a, b, abs_tol=10 * GRID_TOLERANCE) for a, b in ends)
    if not same or not torch.equal(runs.noise, finer.noise):
        raise PlanError(
            f"a run of {len(finer.times) - 1} steps starts from other noise or ends elsewhere than "
            f"one of {len(runs.times) - 1}, so that they do not tell the flow: fit to the run"
        )


def aim_of(
    runs: Runs, coarse: Tensor, fine: Tensor, finest: int, halves: Tensor | None, held_out: int
) -> Aim:
    """The flow's states from those of two Euler runs, and the distances of all to its end.

    `halves` are the ends of held-out samples' runs with half the steps, where there are any.
    """
    steps, dtype = len(runs.times) - 1, torch.promote_types(fine.dtype, torch.float32)
    judges = [k for k, i in enumerate(runs.numbers) if i < held_out]
    coarse, fine, order = coarse.to(dtype), fine.to(dtype), EULER
    ends = {steps: coarse[-1, judges], finest: fine[-1, judges]}
    if halves is not None:
        ends[steps // 2] = halves.to(dtype)
        order = _order(runs, ends, steps, finest)
    states = extrapolated(coarse, fine, finest / steps, order)
    end = states[-1, judges]
    euler = {count: mean_apart(runs, ends[count], end) for count in sorted(ends)}
    if halves is None:
        return Aim(states, euler, euler[finest] / UNSURE)
    before = extrapolated(ends[steps // 2], ends[steps], 2, order)
    return Aim(states, euler, mean_apart(runs, before, end) / UNSURE)


def mean_apart(runs: Runs, x: Tensor, reference: Tensor) -> float:
    """The mean relative distance of held-out samples' ends, those of all processes."""
    distances = relative_distance(x, reference).flatten().tolist()
    mine = dict(zip(runs.numbers, distances, strict=False))  # held-out samples have the first ones
    return fmean(runs.gathered(mine).values())


def _order(runs: Runs, ends: Mapping[int, Tensor], steps: int, finest: int) -> float:
    """Euler's order, unless the ends of three runs say that errors fall at another rate.

    An error of c / N^p falls by c (2^p - 1) / N^p from N / 2 to N steps, and by
    c (1 - (N / F)^p) / N^p from N to F.
    """
    first = mean_apart(runs, ends[steps // 2], ends[steps])
    second = mean_apart(runs, ends[steps], ends[finest])
    if min(first, second) <= 0:
        return EULER
    trials = [ORDERS[0] + 0.01 * n for n in range(round(100 * (ORDERS[1] - ORDERS[0])) + 1)]
    ratio = finest / steps

    def missed(p: float) -> float:
        expected = (math.pow(2, p) - 1) / (1 - math.pow(ratio, -p))
        return abs(math.log(first / second) - math.log(expected))

    order = min(trials, key=missed)
    return EULER if abs(order - EULER) <= NEARLY else order


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
