"""What a fit to the flow aims at: states of the flow, from runs with more than the full steps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tacache.fitting.fit_options import FitOptions
from tacache.fitting.flow import (
    EULER,
    check_same_run,
    distances,
    extrapolated,
    finest_of,
    log_mean,
    mean_apart,
    slower_order,
    states_at,
)
from tacache.fitting.full_runs import beside, held_out_of, walked_in_full
from tacache.fitting.integrators import AdamsBashforthIntegrator, EulerIntegrator
from tacache.fitting.samples import FitSamples
from tacache.grid import break_steps
from tacache.tasu import working_dtype

UNSURE = 2  # an extrapolation from half the steps has about three to four times the error
MAX_DENSE_STEPS = 100  # of the finer run, between which a dynamic program places its anchors
# what the files of further runs are called, beside the full runs
FINER_RUNS = SECOND_ORDER, FINER, EULER_STEPS = "second-order", "finer", "euler"


# Returns all samples' states of the flow at these noise levels, along a new first dimension.
FlowStates = Callable[[Sequence[float]], Tensor]


class Walked(NamedTuple):
    """A run over `times` that was walked to its end: a state a level, a velocity a step."""

    times: tuple[float, ...]
    states: Tensor
    velocities: Tensor

    def states_at(self, levels: Sequence[float], breaks: Sequence[float]) -> Tensor:
        """Return its states at other levels."""
        return states_at(levels, self.times, self.states, self.velocities, breaks)

    def coarser(self) -> "tuple[tuple[float, ...], Tensor]":
        """Return the levels and velocities of every so many steps, a hundred of them at most."""
        stride = -(-len(self.velocities) // MAX_DENSE_STEPS)
        return (*self.times[:-1:stride], self.times[-1]), self.velocities[::stride]


class Aim(NamedTuple):
    """What a fit to the flow leads to: its states, and the distances of Euler runs to its end."""

    states_at: FlowStates
    finer: Walked  # the run with the most steps
    euler: Mapping[int, float]  # by steps, of held-out samples, the mean by logarithms
    floor: float  # how far the states themselves may be off the flow: no less can be measured
    spent: int  # evaluations


def aimed_at_flow(runs: FitSamples, full: Walked, options: FitOptions) -> Aim:
    """Return the states of the flow at any level, and how far Euler runs end from them.

    Euler runs of the held-out samples with half the steps, all and `reference_steps` say how fast
    its error falls. As a rule, a second-order run of `reference_steps` then stands for the flow.
    Where the error falls much slower, two Euler runs are extrapolated by the order measured; so are
    runs that are evaluated together only, for which Euler runs beside it would cost as much.
    """
    steps, resume, progress = len(runs.times) - 1, options.resume, options.progress
    finest = finest_of(steps, options.reference_steps)
    judges = [k for k, i in enumerate(runs.numbers) if i < held_out_of(runs.total)]
    with runs.on_steps(finest) as finer:
        check_same_run(runs, finer, finest)
        ends = {steps: full.states[-1, judges] if _is_euler(runs) else _euler_ends(runs, judges)}
        if steps % 2 == 0:
            with runs.on_steps(steps // 2) as coarser:
                check_same_run(runs, coarser, steps // 2)
                ends[steps // 2] = _euler_ends(coarser, judges)
        if not runs.together:
            ends[finest] = _euler_ends(finer, judges)
        extrapolates = runs.together or slower_order(runs, ends) is not None
        if extrapolates:
            states, walked, floor = _extrapolated(runs, finer, full, ends, judges, resume, progress)
        else:
            states, walked, floor = _by_second_order(runs, finer, judges, resume, progress)
    end = states(runs.times[-1:])[0, judges]
    euler = {count: log_mean(distances(runs, ends[count], end)) for count in sorted(ends)}
    return Aim(states, walked, euler, floor, _flow_cost(runs, finest, extrapolates=extrapolates))


def _by_second_order(
    runs: FitSamples, finer: FitSamples, judges: Sequence[int], resume: Path | None, progress: bool
) -> tuple[FlowStates, Walked, float]:
    """Return the states of a finer run by Adams-Bashforth, and how far it may end from the flow.

    By every other of its velocities it would end elsewhere, about three times as far from it as it
    is from the flow, and about as far where the end of the flow is stiff: no less is claimed. A
    step in which another expert takes over is the first one's to its end; that adds to it.
    """
    times, parts = finer.times, break_steps(finer.times, finer.breaks)
    kept = resume and beside(resume, SECOND_ORDER)
    integrator = AdamsBashforthIntegrator(times, parts)
    reached, velocities = walked_in_full(
        finer, integrator, title="finer steps", resume=kept, progress=progress
    )
    coarse = (*times[:-1:2], times[-1])
    again = AdamsBashforthIntegrator(coarse, break_steps(coarse, finer.breaks))
    x, end = reached[0, judges], reached[-1, judges]
    for n, v in enumerate(velocities[::2, judges]):
        x = again.move(x, v, n, n + 1)
    for n in parts:
        jump = velocities[n, judges] - velocities[n - 1, judges]
        x = x + (times[n - 1] - times[n]) * jump
    walked = Walked(times, reached, velocities)
    return partial(walked.states_at, breaks=runs.breaks), walked, mean_apart(runs, x, end)


def _extrapolated(
    runs: FitSamples,
    finer: FitSamples,
    full: Walked,
    ends: dict[int, Tensor],
    judges: Sequence[int],
    resume: Path | None,
    progress: bool,
) -> tuple[FlowStates, Walked, float]:
    """Return the states that two Euler runs point to, and how far these may be from the flow.

    An extrapolation from half the steps on has about four times its error. Where the order was
    measured, which makes both agree, that tells nothing: no less is claimed than what it changes.
    """
    kept = resume and beside(resume, FINER)
    reached, velocities = walked_in_full(
        finer, EulerIntegrator(finer.times), title="finer steps", resume=kept, progress=progress
    )
    if not _is_euler(runs):
        kept = resume and beside(resume, EULER_STEPS)
        euler = EulerIntegrator(runs.times)
        states, seen = walked_in_full(
            runs, euler, title="Euler steps", resume=kept, progress=progress
        )
        full = Walked(runs.times, states, seen)
    steps, finest = len(runs.times) - 1, len(finer.times) - 1
    walked = Walked(finer.times, reached, velocities)
    ends[finest] = reached[-1, judges]
    order = slower_order(runs, ends)

    def flow(levels: Sequence[float]) -> Tensor:
        coarse, fine = (run.states_at(levels, runs.breaks) for run in (full, walked))
        return extrapolated(coarse, fine, finest / steps, order or EULER)

    end = flow(runs.times[-1:])[0, judges]
    if order or steps // 2 not in ends:
        return flow, walked, mean_apart(runs, ends[finest], end)
    before = extrapolated(ends[steps // 2], ends[steps], 2)
    return flow, walked, mean_apart(runs, before, end) / UNSURE


def _euler_ends(runs: FitSamples, judges: Sequence[int]) -> Tensor:
    """Return the ends of held-out samples' Euler runs, in the precision that the model sees."""
    chosen = range(len(runs.noise)) if runs.together else judges
    start, integrator = runs.noise[list(chosen)], EulerIntegrator(runs.times)
    x = start.to(working_dtype(start))
    for n in range(len(runs.times) - 1 if chosen else 0):
        x = integrator.move(x, runs.evaluate(x.to(start.dtype), n, chosen).to(x.dtype), n, n + 1)
    return x[[chosen.index(k) for k in judges]].cpu()


def _is_euler(runs: FitSamples) -> bool:
    """Return whether the full steps of these runs are Euler's, not rounded to half precision."""
    is_rounded = runs.noise.dtype != working_dtype(runs.noise)
    return not (is_rounded or runs.integrator([]).remembers)


def flow_cost(runs: FitSamples, options: FitOptions) -> int:
    """Return evaluations that the states of the flow take at most, beside the full runs."""
    if options.target == "run":
        return 0
    finest = finest_of(len(runs.times) - 1, options.reference_steps)
    return _flow_cost(runs, finest, extrapolates=True)


def _flow_cost(runs: FitSamples, finest: int, *, extrapolates: bool) -> int:
    steps, by_euler = len(runs.times) - 1, _is_euler(runs)
    again = steps if extrapolates and not by_euler else 0
    watched = (0 if steps % 2 else steps // 2) + (0 if by_euler else steps)
    if runs.together:
        return runs.total * (finest + again + watched)
    return runs.total * (finest + again) + held_out_of(runs.total) * (watched + finest)
