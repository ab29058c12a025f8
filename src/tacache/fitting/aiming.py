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

UNSURE = 2  # an extrapolation from half the steps has about three to four times the error
# what the files of further runs are called, beside the full runs
FINER_RUNS = SECOND_ORDER, FINER, EULER_STEPS = "second-order", "finer", "euler"


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
    its error falls. As a rule, a second-order run of `reference_steps` then stands for the flow.
    Where the error falls much slower, two Euler runs are extrapolated by the order measured; so are
    runs that are evaluated together only, for which Euler runs beside it would cost as much.
    """
    steps, finest = len(runs.times) - 1, finest_of(len(runs.times) - 1, reference_steps)
    judges = [k for k, i in enumerate(runs.numbers) if i < held_out_of(runs.total)]
    with runs.on_steps(finest) as finer:
        check_same_run(runs, finer, finest)
        ends = {steps: states[-1, judges] if _is_euler(runs) else _euler_ends(runs, judges)}
        if steps % 2 == 0:
            with runs.on_steps(steps // 2) as coarser:
                check_same_run(runs, coarser, steps // 2)
                ends[steps // 2] = _euler_ends(coarser, judges)
        if not runs.together:
            ends[finest] = _euler_ends(finer, judges)
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

    By every other of its velocities it would end elsewhere, about three times as far from it as it
    is from the flow, and about as far where the end of the flow is stiff: no less is claimed. A
    step in which another expert takes over is the first one's to its end; that adds to it.
    """
    times, parts = finer.times, break_steps(finer.times, finer.breaks)
    kept = resume and beside(resume, SECOND_ORDER)
    walk = AdamsBashforthWalk(times, parts)
    reached, velocities = walked_in_full(
        finer, walk, title="finer steps", resume=kept, progress=progress
    )
    coarse = (*times[:-1:2], times[-1])
    again = AdamsBashforthWalk(coarse, break_steps(coarse, finer.breaks))
    x, end = reached[0, judges], reached[-1, judges]
    for n, v in enumerate(velocities[::2, judges]):
        x = again.move(x, v, n, n + 1)
    for n in parts:
        jump = velocities[n, judges] - velocities[n - 1, judges]
        x = x + (times[n - 1] - times[n]) * jump
    found = states_at(runs.times, times, reached, velocities, runs.breaks)
    return found, mean_apart(runs, x, end)


def _extrapolated(
    runs: Runs,
    finer: Runs,
    states: Tensor,
    ends: dict[int, Tensor],
    judges: Sequence[int],
    resume: Path | None,
    progress: bool,
) -> tuple[Tensor, float]:
    """The states that two Euler runs point to, and how far these may be from the flow.

    An extrapolation from half the steps on has about four times its error. Where the order was
    measured, which makes both agree, that tells nothing: no less is claimed than what it changes.
    """
    kept = resume and beside(resume, FINER)
    reached, velocities = walked_in_full(
        finer, EulerWalk(finer.times), title="finer steps", resume=kept, progress=progress
    )
    if not _is_euler(runs):
        kept = resume and beside(resume, EULER_STEPS)
        states, _ = walked_in_full(
            runs, EulerWalk(runs.times), title="Euler steps", resume=kept, progress=progress
        )
    steps, finest = len(runs.times) - 1, len(finer.times) - 1
    ends[finest] = reached[-1, judges]
    order = slower_order(runs, ends)
    fine = states_at(runs.times, finer.times, reached, velocities, runs.breaks)
    found = extrapolated(states, fine, finest / steps, order or EULER)
    if order or steps // 2 not in ends:
        return found, mean_apart(runs, ends[finest], found[-1, judges])
    before = extrapolated(ends[steps // 2], ends[steps], 2)
    return found, mean_apart(runs, before, found[-1, judges]) / UNSURE


def _euler_ends(runs: Runs, judges: Sequence[int]) -> Tensor:
    """The ends of held-out samples' Euler runs, which only the model sees in its own precision."""
    chosen = range(len(runs.noise)) if runs.together else judges
    start, walk = runs.noise[list(chosen)], EulerWalk(runs.times)
    x = start.to(working_dtype(start))
    for n in range(len(runs.times) - 1 if chosen else 0):
        x = walk.move(x, runs.evaluate(x.to(start.dtype), n, chosen).to(x.dtype), n, n + 1)
    return x[[chosen.index(k) for k in judges]].cpu()


def _is_euler(runs: Runs) -> bool:
    """Whether the full steps of these runs are Euler's, and not rounded to half precision."""
    is_rounded = runs.noise.dtype != working_dtype(runs.noise)
    return not (is_rounded or walk_of(runs, runs.times, []).remembers)


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
