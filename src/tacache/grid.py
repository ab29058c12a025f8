"""Time grids: t = 1 is noise, t = 0 is data, step n goes from t_n down to t_{n+1}."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from tacache.errors import PlanError, TACacheError

# Two grids are the same if no noise level differs by more; a change of shift moves them further.
GRID_TOLERANCE = 1e-4
MAX_STEPS = 10_000  # of a grid: fine references have hundreds, and every step costs memory


def time_grid(steps: int, shift: float = 1.0) -> list[float]:
    """Return the times of `steps` steps from 1 to 0: u = 1 - i/N, t = s u / (1 + (s - 1) u).

    Args:
        steps: How many steps the run has.
        shift: The time shift s; above 1 there are more steps near the noise.

    Returns:
        N + 1 numbers, from 1.0 (noise) to 0.0 (data).

    Raises:
        TACacheError: If there is no such grid.

    """
    if steps < 1:
        raise TACacheError(f"a grid needs at least one step, not {steps}")
    if not (math.isfinite(shift) and shift > 0):
        raise TACacheError(f"the shift of a grid is a positive number, not {shift}")
    fractions = (1 - i / steps for i in range(steps + 1))
    # 1 + (s - 1) u written so that u = 1 gives exactly 1
    return [shift * u / ((1 - u) + shift * u) for u in fractions]


def as_times(times: Iterable[float]) -> tuple[float, ...]:
    """Return `times` as floats; they must be finite, strictly decreasing and at least two."""
    grid = tuple(float(t) for t in times)
    if len(grid) < 2:
        raise TACacheError(f"times must hold at least two numbers (one step), not {len(grid)}")
    if len(grid) > MAX_STEPS + 1:
        raise TACacheError(f"times have {len(grid) - 1} steps, and {MAX_STEPS} are the most")
    for n, (t, t_next) in enumerate(pairwise(grid)):
        if not (math.isfinite(t) and math.isfinite(t_next)):
            raise TACacheError(f"times must be finite: step {n} goes from {t} to {t_next}")
        if t <= t_next:
            raise TACacheError(
                f"times must decrease, noise first: step {n} goes from {t} to {t_next}"
            )
    return grid


def same_grid(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two grids are the same, but for rounding."""
    return len(a) == len(b) and all(abs(x - y) <= GRID_TOLERANCE for x, y in zip(a, b, strict=True))


def step_lengths(times: Sequence[float]) -> tuple[float, ...]:
    """Return the length of each step, t_n - t_{n+1} > 0."""
    return tuple(t - t_next for t, t_next in pairwise(times))


def break_steps(times: Sequence[float], breaks: Iterable[float]) -> tuple[int, ...]:
    """Return the step of each break: the first that starts below it, unless that is step 0."""
    steps = {next((n for n, t in enumerate(times[:-1]) if t < b), 0) for b in breaks}
    return tuple(sorted(steps - {0}))


def interpolate(
    at: Sequence[float], nodes: Sequence[float], values: Sequence[float]
) -> tuple[float, ...]:
    """Interpolate `values` at decreasing `nodes` linearly; beyond the ends they are constant."""
    ascending = np.interp(at, np.asarray(nodes)[::-1], np.asarray(values)[::-1])
    return tuple(float(value) for value in ascending)


def divided(times: Sequence[float], parts: int) -> tuple[float, ...]:
    """Return the grid with every step divided into so many of equal length."""
    inner = (
        start + (end - start) * i / parts for start, end in pairwise(times) for i in range(parts)
    )
    return (*inner, times[-1])


def budget_for(steps: int, speedup: float | None) -> int:
    """Return the number of evaluations nearest to N / s, for s from 1 up; half is rounded up.

    A speedup of 4 is 13 evaluations of 50 steps, wherever the plan comes from.
    """
    if speedup is None or not 1 <= speedup < math.inf:
        raise PlanError(f"speedup is a number from 1 (no step skipped) up, not {speedup}")
    return max(1, math.floor(steps / speedup + 0.5))
