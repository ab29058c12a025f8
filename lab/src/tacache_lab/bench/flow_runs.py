"""Runs that stand for the flow itself: a second-order solver on a fine grid, from the same noise.

Towards t = 0 velocities change with log t, so that steps of equal length leave an error of first
order there, whatever the solver. The grid is therefore graded at its end: levels fall by a constant
ratio (docs/decisions/0016-what-stands-for-the-flow.md has what that gains).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from tacache.fitting.flow import states_at
from tacache.grid import break_steps
from tacache.prompts import Sample
from tacache.storage.tensors import load_values, save_values
from tacache.tasu import working_dtype
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.recorded_runs import holds
from tacache_lab.methods import SamplingProblem
from tacache_lab.methods.solvers import Model, adams_bashforth_steps

FLOW_STEPS = 300  # of the host's grid, before its end is graded
RATIO, LOWEST = 0.9, 1e-3  # of one level to the one before; the last level above the end


def flow_times(grid: Sequence[float]) -> tuple[float, ...]:
    """Return a host's grid, graded from where a level is less than `RATIO` of the one before."""
    kept = [grid[0]]
    for level in grid[1:-1]:
        if level < RATIO * kept[-1]:
            break
        kept.append(level)
    while kept[-1] * RATIO > max(LOWEST, grid[-1]):
        kept.append(kept[-1] * RATIO)
    return (*kept, grid[-1])


def flow_steps(
    velocity: Model, noise: Tensor, times: Sequence[float], breaks: Sequence[float] = ()
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the velocity of each step and the state it leads to, by Adams-Bashforth of order 2.

    At a break another model takes over, so that the solver starts anew there. States are kept in
    working precision; the model sees the noise's dtype.
    """
    x, cuts = noise.to(working_dtype(noise)), (0, *break_steps(times, breaks), len(times) - 1)

    def widened(x: Tensor, t: float) -> Tensor:
        return velocity(x.to(noise.dtype), t).to(working_dtype(noise))

    for first, last in pairwise(cuts):
        for v, state in adams_bashforth_steps(widened, x, times[first : last + 1]):
            x = state
            yield v, x


def flow_end(
    problem: SamplingProblem, times: Sequence[float], breaks: Sequence[float] = ()
) -> Tensor:
    """Return where the flow leads, by a run over these times."""
    walked = flow_steps(problem.velocity, problem.noise, times, breaks)
    ((_, x),) = deque(walked, maxlen=1)
    return x.to(problem.noise.dtype)


def record_flow(caller: Calls, folder: Path, subject: Sample, steps: int) -> None:
    """Keep the flow's states at the levels of full steps, unless they are there and whole."""
    target = flow_file(caller, folder, subject, steps)
    if holds(target, "states"):
        return
    times = flow_times(caller.grid(steps))
    with torch.no_grad(), caller.open(subject, times) as velocity:
        noise = velocity.run.noise
        walked = list(flow_steps(velocity, noise, times, caller.breaks))
        states = torch.cat([noise, *(x for _, x in walked)])
        velocities = torch.cat([v for v, _ in walked])
    at_levels = states_at(caller.times, times, states, velocities, caller.breaks)
    save_values(target, {"states": at_levels.cpu()})


def load_flow(caller: Calls, folder: Path, subject: Sample, steps: int) -> Tensor:
    """Return the flow's states that were recorded, one a level of full steps along dim 0."""
    states: Tensor = load_values(flow_file(caller, folder, subject, steps))["states"]
    return states.to(caller.device)


def flow_file(caller: Calls, folder: Path, subject: Sample, steps: int) -> Path:
    """Return the file that holds the flow's states of a sample."""
    return folder / f"flow-{caller.key(*subject, steps)}.pt"
