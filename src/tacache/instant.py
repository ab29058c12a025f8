"""A plan at once: anchors that the grid alone decides, and linear extrapolation between them.

Nothing is measured, so such a plan works on a model that nobody has calibrated.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tacache.errors import PlanError
from tacache.grid import as_times, break_steps, step_lengths
from tacache.plan import Plan

# Anchors lie at the shares q = (1 - (1 - i / K)^(1 / LATE))^(1 / EARLY) of the steps: a little
# denser at both ends than in the middle.
EARLY, LATE = 0.85, 0.7


def instant_plan(
    times: Iterable[float], evaluations: int = 13, *, breaks: Sequence[float] = ()
) -> Plan:
    """Make a plan with this many evaluations on a grid; nothing is measured for it.

    Between anchors the velocity goes on in a straight line through the last two. `breaks` are noise
    levels below which another model or guidance takes over; an anchor there has no history.
    """
    grid, wanted = as_times(times), tuple(breaks)
    steps, parts = len(grid) - 1, break_steps(grid, wanted)
    if not 1 + len(parts) <= evaluations <= steps:
        raise PlanError(
            f"{evaluations} evaluations are impossible: {steps} steps take {1 + len(parts)} to "
            f"{steps}"
        )
    anchors = spread_anchors(steps, evaluations, parts)
    return Plan(
        rule="linear",
        times=grid,
        anchors=anchors,
        weights=linear_rows(grid, anchors, parts),
        memory="carried",
        breaks=wanted,
    )


def spread_anchors(steps: int, evaluations: int, parts: Sequence[int] = ()) -> tuple[int, ...]:
    """So many anchors over the steps, moved apart where two meet; each new part has one."""
    shares = (1 - (1 - i / evaluations) ** (1 / LATE) for i in range(1, evaluations))
    wanted = [round(steps * share ** (1 / EARLY)) for share in shares]
    for part in parts:  # the nearest anchor goes there
        wanted.remove(min(wanted, key=lambda n: abs(n - part)))
    anchors = {0, *parts}
    for step in wanted:
        free = (n for n in range(steps) if n not in anchors)
        anchors.add(min(free, key=lambda n: abs(n - step)))
    return tuple(sorted(anchors))


def linear_rows(
    times: Sequence[float], anchors: Sequence[int], parts: Sequence[int] = ()
) -> tuple[tuple[float, ...], ...]:
    """Weights of each interval's average velocity: that of its anchor and that of the one before.

    Along a line through both, v_n + (v_n - v_p) (t_n - t_j) / (t_p - t_n) at step j. An interval
    without an anchor before it in its part reuses its velocity.
    """
    lengths, ends = step_lengths(times), [*anchors[1:], len(times) - 1]
    rows: list[tuple[float, ...]] = [(1.0,)]
    for (p, n), m in zip(pairwise(anchors), ends[1:], strict=True):
        if n in parts:
            rows.append((1.0,))
            continue
        ahead = sum(lengths[j] * (times[n] - times[j]) for j in range(n, m)) / sum(lengths[n:m])
        slope = ahead / (times[p] - times[n])
        rows.append((1 + slope, -slope) if slope else (1.0,))
    return tuple(rows)
