"""What a fit to the flow aims at: states of the flow, from runs with more than the full steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tacache.decomposition import working_dtype
from tacache.fitting.flow import (
    EULER,
    Target,
    check_same_run,
    extrapolated,
    finest_of,
    mean_apart,
    slower_order,
    states_at,
)
from tacache.fitting.full_runs import beside, held_out_of, walked_in_full
from tacache.fitting.samples import Runs
from tacache.fitting.walking import AdamsBashforthWalk, EulerWalk, walk_of
from tacache.grid import break_steps

UNSURE = 3  # an extrapolation is of second order: from half the steps on, its error falls by four
FINER_RUNS = ("second-order", "finer", "euler")  # what their files are called, beside the full runs


class Aim(NamedTuple):
    """What a fit to the flow leads to: its states, and the distances of Euler runs to its end."""

    states: Tensor
    euler: Mapping[int, float]  # by steps, of held-out samples
    floor: float  # how far the states themselves may be off the flow: no less can be measured
    spent: int  # evaluations


def aimed_at_flow(
    runs: Runs,
    states: Tensor,
    reference_steps: int | None,
    resume: Path | None = None,
    progress: bool = False,
) -> Aim:
    """The states of the flow at the run's levels, and how far Euler runs end from them.

    Euler runs of the held-out samples with half the steps, all and `reference_steps` say how fast
    its error falls. As usual, a second-order run of `reference_steps` then stands for the flow.
    Where the error falls slower, two Euler runs are extrapolated by the order that was measured;
    so are runs that are evaluated together only, for which Euler runs beside it would cost as much.
    """
    steps, finest = len(runs.times) - 1, finest_of(len(runs.times) - 1, reference_steps)
    judges = [k for k, i in enumerate(runs.numbers) if i < held_out_of(runs.total)]
    states = states.to(working_dtype(states))
    ends = {} if steps % 2 else {steps // 2: _euler_ends(runs, steps // 2, judges)}
    ends[steps] = states[-1, judges] if _is_euler(runs) else _euler_ends(runs, steps, judges)
    with runs.on_steps(finest) as finer:
        check_same_run(runs, finer)
        if not runs.together:
            ends[finest] = _euler_ends(finer, finest, judges)
        extrapolates = runs.together or slower_order(runs, ends) is not None
        if extrapolates:
            found, floor = _extrapolated(runs, finer, states, ends, judges, resume, progress)
        else:
            found, floor = _by_second_order(runs, finer, judges, resume, progress)
    euler = {count: mean_apart(runs, ends[count], found[-1, judges]) for count in sorted(ends)}
    return Aim(found, euler, floor, _flow_cost(runs, finest, extrapolates=extrapolates))


def _by_second_order(
    runs: Runs, finer: Runs, judges: Sequence[int], resume: Path | None, progress: bool
) -> tuple[Tensor, float]:
    """The states of a finer run by Adams-Bashforth, and how far it may end from the flow.

    By every other of its velocities it would end elsewhere, three times as far from it as it is
    from the flow, and as far where the end of the flow is stiff: no less is claimed.
    """
    walk = AdamsBashforthWalk(finer.times, break_steps(finer.times, finer.breaks))
    kept = resume and beside(resume, FINER_RUNS[0])
    reached, velocities = _walked(finer, walk, kept, progress)
    times = (*finer.times[:-1:2], finer.times[-1])
    coarser = AdamsBashforthWalk(times, break_steps(times, finer.breaks))
    x = reached[0, judges]
    for n, v in enumerate(velocities[::2, judges]):
        x = coarser.move(x, v, n, n + 1)
    found = states_at(runs.times, finer.times, reached, velocities, runs.breaks)
    return found, mean_apart(runs, x, reached[-1, judges])


def _extrapolated(
    runs: Runs,
    finer: Runs,
    states: Tensor,
    ends: dict[int, Tensor],
    judges: Sequence[int],
    resume: Path | None,
    progress: bool,
) -> tuple[Tensor, float]:
    """The states that two Euler runs point to, and how far these may be from the flow."""
    kept = resume and beside(resume, FINER_RUNS[1])
    reached, velocities = _walked(finer, EulerWalk(finer.times), kept, progress)
    if not _is_euler(runs):
        kept = resume and beside(resume, FINER_RUNS[2])
        states, _ = _walked(runs, EulerWalk(runs.times), kept, progress)
    steps, finest = len(runs.times) - 1, len(finer.times) - 1
    ends[finest] = reached[-1, judges]
    order = slower_order(runs, ends) or EULER
    fine = states_at(runs.times, finer.times, reached, velocities, runs.breaks)
    found = extrapolated(states, fine, finest / steps, order)
    before = ends[finest]  # where half the steps are none, no more is known than what it changes
    if steps // 2 in ends:
        before = extrapolated(ends[steps // 2], ends[steps], 2, order)
    return found, mean_apart(runs, before, found[-1, judges]) / UNSURE


def _walked(
    runs: Runs, walk: EulerWalk | AdamsBashforthWalk, kept: Path | None, progress: bool
) -> tuple[Tensor, Tensor]:
    """All states and velocities of runs by a solver of ours, in working precision."""
    found = walked_in_full(runs, walk, title="finer steps", resume=kept, progress=progress)
    states, velocities = (tensor.to(working_dtype(tensor)) for tensor in found)
    return states, velocities


def _euler_ends(runs: Runs, steps: int, judges: Sequence[int]) -> Tensor:
    """The ends of held-out samples' Euler runs with so many steps."""
    if steps != len(runs.times) - 1:
        with runs.on_steps(steps) as others:
            return _euler_ends(others, steps, judges)
    chosen = range(len(runs.noise)) if runs.together else judges
    x, walk = runs.noise[list(chosen)], EulerWalk(runs.times)
    for n in range(steps if chosen else 0):
        x = walk.move(x, runs.evaluate(x, n, chosen), n, n + 1)
    return x[[chosen.index(k) for k in judges]].to("cpu", working_dtype(x))


def _is_euler(runs: Runs) -> bool:
    """Whether the full steps of these runs are Euler's."""
    return not walk_of(runs, runs.times, []).remembers


def flow_cost(runs: Runs, target: Target, reference_steps: int | None) -> int:
    """Evaluations that the states of the flow take at most, beside the full runs."""
    if target == "run":
        return 0
    finest = finest_of(len(runs.times) - 1, reference_steps)
    return _flow_cost(runs, finest, extrapolates=True)


def _flow_cost(runs: Runs, finest: int, *, extrapolates: bool) -> int:
    steps, by_euler = len(runs.times) - 1, _is_euler(runs)
    again = steps if extrapolates and not by_euler else 0
    watched = (0 if steps % 2 else steps // 2) + (0 if by_euler else steps)
    if runs.together:
        return runs.total * (finest + again + watched)
    return runs.total * (finest + again) + held_out_of(runs.total) * (watched + finest)
