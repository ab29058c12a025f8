"""A plan at once: anchors that the grid alone decides, and straight lines or reuse between them.

Nothing is measured, so such a plan works on a model that nobody has calibrated. The numbers here
come from `benchmarks/results/instant.jsonl.gz`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacache.errors import PlanError, counted
from tacache.grid import as_times, break_steps, step_lengths
from tacache.plan import LatentPlan, Plan


class Spread(NamedTuple):
    """How anchors lie: at the shares q of the run where 1 - (1 - q^early)^late is (i - lead) / K.

    A smaller `early` has more of them at the beginning, and a smaller `late` more at the end.
    """

    early: float
    late: float
    lead: float = 0.0


FEW_STEPS = Spread(0.55, 0.65, 0.3)
FEW_ANCHORS, MANY_ANCHORS = Spread(0.85, 0.7), Spread(0.6, 0.7)
FLOW = Spread(0.85, 0.7)
MAX_SHORT_STEP = 0.5  # of the step before: a last step that is as short belongs to any grid
MAX_FEW_STEPS = 8  # of a run with the first spread
MAX_FEW_ANCHORS, MAX_FEW_SHARE = 10, 0.27  # of the second: so many, or this share of the steps
# Where velocities are reused between anchors: on runs of few steps, and by few evaluations of any.
MAX_REUSED_STEPS, MAX_REUSED_ANCHORS = 16, 11
MAX_REUSED, MAX_HALVED = 7, 9  # up to the second, half of a straight line is followed
# steps -> the fewest evaluations from which on tiny-flux's pictures and tiny-wan's clips both have
# 35 dB in the mean; those of 8 steps are of tiny-flux's student; in between what longer runs take
DEFAULT_EVALUATIONS = {
    5: 5, 8: 6, 10: 8, 12: 9, 16: 11, 20: 12, 24: 13, 28: 13, 40: 14, 50: 13, 100: 18,
}  # fmt: skip
# Euler steps -> the fewest evaluations from which on plans for the flow are as near to it, in the
# mean of tiny-flux's pictures, and of tiny-wan's clips
LIKE_STEPS = {
    8: 8, 10: 9, 12: 10, 16: 11, 20: 12, 24: 12, 28: 13, 32: 14, 40: 15, 50: 17, 64: 19, 80: 20,
    100: 23,
}  # fmt: skip
CLIP_LIKE_STEPS = {
    8: 9, 10: 11, 12: 12, 16: 14, 20: 16, 24: 18, 28: 20, 32: 21, 40: 24, 50: 26, 64: 29, 80: 32,
}  # fmt: skip
# steps -> evaluations with which as many plain steps come nearer to the full run than an instant
# plan, by 0.1 dB or more in the mean of tiny-wan's clips; with pictures that was never so
PLAIN_IS_NEARER = {
    4: (2,), 5: (4,), 6: (2, 5), 7: (5, 6), 8: (6, 7), 10: (2, 6), 12: (2, 7), 16: (2,),
    20: (2, 8, 9), 24: (2, 8, 10, 12), 28: (2,), 32: (2, 10, 11), 40: (2, 8, 10, 11, 12),
    50: (2, 11), 64: (2, 8, 14, 17), 80: (2,), 100: (2,),
}  # fmt: skip


def instant_plan(
    times: Iterable[float],
    evaluations: int = 13,
    *,
    breaks: Sequence[float] = (),
    target: Literal["run", "flow"] = "run",
    latents: Mapping[str, Iterable[float]] | None = None,
) -> Plan:
    """Make a plan with this many evaluations on a grid; nothing is measured for it.

    Towards the run, anchors are steps of the grid. Between them the velocity goes on in a straight
    line through the last two or, where these lie far apart, stays as it is. Towards the flow, the
    plan has steps of its own: as many as evaluations, at free times within the grid, by
    Adams-Bashforth's second order.

    Args:
        times: The noise levels of the full run, decreasing.
        evaluations: How often the model is evaluated.
        breaks: Noise levels below which another model or guidance takes over. An anchor there has
            no history.
        target: What the result shall be near to: the full run, or the flow that it approximates.
        latents: The grids of what a joint model steps beside its first latent, by name: "audio".

    Returns:
        A plan with the rule `linear`.

    Raises:
        PlanError: The grid has not so many steps, or fewer evaluations are asked for than parts.

    """
    grid, levels = as_times(times), tuple(breaks)
    steps, parts = len(grid) - 1, break_steps(grid, levels)
    _check_evaluations(evaluations, steps, len(parts))
    if target == "flow":
        check_for_the_run(latents)
        return _plan_for_the_flow(grid, evaluations, levels)
    anchors, share = spread_anchors(steps, evaluations, parts), line_share(steps, evaluations)
    further = {
        name: _latent_plan(as_times(own), anchors, parts, share)
        for name, own in (latents or {}).items()
    }
    return Plan(
        rule="linear",
        times=grid,
        anchors=anchors,
        weights=linear_rows(grid, anchors, parts, share),
        breaks=levels,
        latents=further or None,
    )


def _check_evaluations(evaluations: int, steps: int, breaks: int) -> None:
    """Refuse more evaluations than steps, or fewer than parts."""
    if not 1 + breaks <= evaluations <= steps:
        raise PlanError(
            f"{counted(evaluations, 'evaluation')} cannot be made: {steps} steps take "
            f"{1 + breaks} to {steps}"
        )


def check_for_the_run(latents: Iterable[str] | None) -> None:
    """Refuse a joint model where the flow is the target."""
    if latents:
        raise PlanError(
            f"a joint model, which steps {', '.join(latents)} beside its first latent, has plans "
            "for the full run only: leave target='flow' and like_steps out"
        )


def _latent_plan(
    times: tuple[float, ...], anchors: Sequence[int], parts: Sequence[int], share: float
) -> LatentPlan:
    """Return straight lines on a further latent's own grid, where the same steps begin parts."""
    if len(times) <= max(*anchors, *parts, 0):
        raise PlanError(f"a further latent has {len(times) - 1} steps, fewer than the first")
    breaks = tuple(times[step - 1] for step in parts)
    return LatentPlan(times=times, weights=linear_rows(times, anchors, parts, share), breaks=breaks)


def default_evaluations(steps: int) -> int:
    """Return how often a run of so many steps is evaluated where nobody asks for a number."""
    enough = (few for measured, few in DEFAULT_EVALUATIONS.items() if steps <= measured)
    return min(steps, next(enough, max(DEFAULT_EVALUATIONS.values())))


def like_evaluations(steps: int, *, clip: bool = False) -> int | None:
    """Return how many evaluations a plan for the flow takes to be as near as so many Euler steps.

    Clips take more than pictures. None where this was not measured: for more steps than those of
    the table.
    """
    table = CLIP_LIKE_STEPS if clip else LIKE_STEPS
    return next((few for measured, few in table.items() if steps <= measured), None)


def loses_to_plain_steps(steps: int, evaluations: int, *, clip: bool = False) -> bool:
    """Return whether as many plain steps were measured to come nearer to the full run."""
    return clip and evaluations in PLAIN_IS_NEARER.get(steps, ())


def plain_plan(times: Iterable[float], evaluations: int, *, breaks: Sequence[float] = ()) -> Plan:
    """Make a plan of so many plain steps, which lie evenly among the steps of a grid.

    Args:
        times: The noise levels of the full run, decreasing.
        evaluations: How many steps are made.
        breaks: Noise levels below which another model or guidance takes over.

    Returns:
        A plan of as many steps of its own as evaluations, each by its velocity.

    Raises:
        PlanError: The grid has not so many steps, or fewer are asked for than parts.

    """
    grid, levels = as_times(times), tuple(breaks)
    _check_evaluations(evaluations, len(grid) - 1, len(break_steps(grid, levels)))
    nodes = _on_breaks(even_nodes(grid, evaluations), grid, levels)
    anchors, rows = tuple(range(evaluations)), ((1.0,),) * evaluations
    return Plan(rule="linear", times=nodes, anchors=anchors, weights=rows, breaks=levels, grid=grid)


def even_nodes(times: Sequence[float], evaluations: int) -> list[float]:
    """Return the levels of so many steps, evenly among those of a grid.

    Where the grid ends in a short step, as schedulers with a fixed shift make it, so do they.
    """
    steps, lengths = len(times) - 1, step_lengths(times)
    ends_short = steps > 1 and lengths[-1] < MAX_SHORT_STEP * lengths[-2]
    if ends_short and evaluations > 1:
        at = np.append(np.linspace(0, steps - 1, evaluations), steps)
    else:
        at = np.linspace(0, steps, evaluations + 1)
    nodes: list[float] = np.interp(at, np.arange(steps + 1), np.asarray(times, float)).tolist()
    return nodes


def line_share(steps: int, evaluations: int) -> float:
    """Return how much of the straight line through two velocities is followed between anchors.

    Where these lie far apart, the line leads astray and the velocity is reused: the share is 0.
    """
    few_steps = steps <= MAX_FEW_STEPS
    few_steps |= steps <= MAX_REUSED_STEPS and evaluations <= MAX_REUSED_ANCHORS
    if few_steps or evaluations <= MAX_REUSED:
        return 0.0
    return 0.5 if evaluations <= MAX_HALVED and steps > MAX_REUSED_STEPS else 1.0


def spread_of(steps: int, evaluations: int) -> Spread:
    """Return how the anchors of so many evaluations of so many steps lie."""
    if steps <= MAX_FEW_STEPS:
        return FEW_STEPS
    few = evaluations <= max(MAX_FEW_ANCHORS, MAX_FEW_SHARE * steps)
    return FEW_ANCHORS if few and line_share(steps, evaluations) == 1 else MANY_ANCHORS


def spread_anchors(
    steps: int, evaluations: int, parts: Sequence[int] = (), spread: Spread | None = None
) -> tuple[int, ...]:
    """Return so many anchors over the steps; each new part has one.

    No step holds more than one anchor: what a spread has too much of goes to the other steps, in
    proportion. So the steps that are skipped lie where the spread is thinnest, never at the start.
    """
    early, late, lead = spread or spread_of(steps, evaluations)
    ends = 1 - (1 - np.linspace(0, 1, steps + 1) ** early) ** late
    density = _at_most_one(np.diff(ends), evaluations)
    middles = np.cumsum(density) - density / 2
    numbers = np.arange(1, evaluations)
    chosen = np.searchsorted(middles, numbers - lead - 1e-9).tolist() if evaluations > 1 else []
    for part in parts:  # the nearest anchor goes there
        chosen.remove(min(chosen, key=lambda n: abs(n - part)))
    anchors = {0, *parts}
    for step in chosen:
        free = (n for n in range(steps) if n not in anchors)
        anchors.add(min(free, key=lambda n: abs(n - step)))
    return tuple(sorted(anchors))


def _at_most_one(density: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Scale a density to a total, where no entry is more than one."""
    low, high = 0.0, total / float(density.min())
    for _ in range(100):
        scale = (low + high) / 2
        low, high = (low, scale) if np.minimum(1, scale * density).sum() > total else (scale, high)
    return np.minimum(1, high * density)


def linear_rows(
    times: Sequence[float],
    anchors: Sequence[int],
    parts: Sequence[int] = (),
    share: float = 1.0,
) -> tuple[tuple[float, ...], ...]:
    """Return weights of each interval's average velocity: of its anchor and of the one before.

    Along a line through both, v_n + (v_n - v_p) (t_n - t_j) / (t_p - t_n) at step j, or a share of
    its slope. An interval without an anchor before it in its part reuses its velocity.
    """
    lengths, ends = step_lengths(times), [*anchors[1:], len(times) - 1]
    rows: list[tuple[float, ...]] = [(1.0,)]
    for (p, n), m in zip(pairwise(anchors), ends[1:], strict=True):
        if n in parts:
            rows.append((1.0,))
            continue
        ahead = sum(lengths[j] * (times[n] - times[j]) for j in range(n, m)) / sum(lengths[n:m])
        slope = share * ahead / (times[p] - times[n])
        rows.append((1 + slope, -slope) if slope else (1.0,))
    return tuple(rows)


def _plan_for_the_flow(
    grid: tuple[float, ...], evaluations: int, breaks: tuple[float, ...]
) -> Plan:
    """Return a plan at free times, each of them evaluated."""
    nodes = flow_nodes(grid, evaluations, breaks)
    rows = multistep_rows(nodes, break_steps(nodes, breaks))
    anchors = tuple(range(evaluations))
    return Plan(rule="linear", times=nodes, anchors=anchors, weights=rows, breaks=breaks, grid=grid)


def flow_nodes(
    times: Sequence[float],
    evaluations: int,
    breaks: Sequence[float] = (),
    spread: Spread = FLOW,
) -> tuple[float, ...]:
    """Return so many steps of free lengths, as levels: t(q_i), q = (1 - (1 - i/K)^(1/b))^(1/a).

    t(q) is the model's own noise level at the share q of its steps, in a straight line between two
    of them. Where another part begins, the nearest node lies on the first of its levels; no two
    parts begin at one node.
    """
    shares = (1 - (1 - np.arange(evaluations + 1) / evaluations) ** (1 / spread.late)) ** (
        1 / spread.early
    )
    at = (len(times) - 1) * shares
    nodes = np.interp(at, np.arange(len(times)), np.asarray(times, float)).tolist()
    return _on_breaks(nodes, times, breaks)


def _on_breaks(
    nodes: list[float], times: Sequence[float], breaks: Sequence[float]
) -> tuple[float, ...]:
    """Return the nodes, of which the nearest to each break lies on the first level behind it."""
    nodes, parts, first = list(nodes), break_steps(times, breaks), 1
    for left, step in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        free = range(first, len(nodes) - 1 - left)  # each later part has a node after this one
        nearest = min(free, key=lambda i: abs(nodes[i] - times[step]))
        nodes[nearest], first = times[step], nearest + 1
    return tuple(nodes)


def multistep_rows(
    nodes: Sequence[float], parts: Sequence[int] = ()
) -> tuple[tuple[float, ...], ...]:
    """Return weights of Adams-Bashforth's second order with variable steps.

    They integrate the line through the last two velocities exactly. The first step of each part is
    Euler's.
    """
    ratios = [h / before for before, h in pairwise(step_lengths(nodes))]
    rows = [(1 + ratio / 2, -ratio / 2) for ratio in ratios]
    return ((1.0,), *((1.0,) if n in parts else row for n, row in enumerate(rows, start=1)))
