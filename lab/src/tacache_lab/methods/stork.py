"""STORK (Tan et al., ICLR 2026, arXiv:2505.24210): a stabilised Runge-Kutta step on one evaluation.

STORK-2 takes the Runge-Kutta-Gegenbauer step of s stages (Skaras et al. 2021). Only its first stage
evaluates the model; at the others the velocity is a Taylor polynomial in t from the last evaluated
ones. What a step of length h adds is then -h sum_i M_i (-h)^i v^(i) / i!, where M_i is the method's
own average of c^i over the stages, at the share c of the step: M_0 = 1 and M_1 = 1/2 exactly, as
the method is of second order, and M_2 is near 1/4. With one derivative STORK-2 is Adams-Bashforth.

Derivatives are those of the polynomial through the last velocities, whatever the grid; the authors'
are those of a uniform one. Steps that have too few velocities behind them use what there is.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product

import numpy as np
from torch import Tensor

from tacache.stepper import weighted_sum
from tacache.tasu import working_dtype
from tacache_lab.methods.seam import Baseline, Meter, RecordedProblem, SamplingProblem
from tacache_lab.methods.simple import GridSettings

STAGES = (50, 10)  # published: 50
DERIVATIVES = (2, 3, 1)  # published: 2


class StorkSettings(GridSettings):
    """The grid, the stages of a step, and how many derivatives of the velocity are used."""

    stages: int = 50
    derivatives: int = 2


def gegenbauer(j: int) -> float:
    """Return b_j of the Runge-Kutta-Gegenbauer method of second order."""
    if j < 2:
        return 1.0 if j == 0 else 1 / 3
    return 4 * (j - 1) * (j + 4) / (3 * j * (j + 1) * (j + 2) * (j + 3))


def share(j: int, stages: int) -> float:
    """Return how far into the step stage j is, from 0 to 1."""
    if j < 2:
        return j * 6 / ((stages + 4) * (stages - 1))
    return (j + 4) * (j - 1) / ((stages + 4) * (stages - 1))


@cache
def moment(power: int, stages: int) -> float:
    """Return M: what the method makes of dy/dc = c^power from y = 0 over one step."""
    first = 0.0**power  # of the derivative at the start
    before, y = 0.0, share(1, stages) * first
    for j in range(2, stages + 1):
        mu = (2 * j + 1) / j * gegenbauer(j) / gegenbauer(j - 1)
        nu = -(j + 1) / j * gegenbauer(j) / gegenbauer(j - 2)
        weight = mu * 6 / ((stages + 4) * (stages - 1))
        at_start = -weight * (1 - j * (j + 1) / 2 * gegenbauer(j - 1))
        change = weight * share(j - 1, stages) ** power + at_start * first
        before, y = y, mu * y + nu * before + change
    return y


def stork_weights(
    times: Sequence[float], t_next: float, stages: int, derivatives: int
) -> tuple[float, ...]:
    """Return weights of the velocities at these times, newest first, whose sum is the average."""
    used = times[: derivatives + 1]
    span = used[0] - t_next
    shares = np.array([(used[0] - t) / span for t in used])  # 0 and below: before the step
    powers = np.vander(shares, increasing=True)  # row i: velocity i as a polynomial in the share
    moments = np.array([moment(i, stages) for i in range(len(used))])
    return tuple(float(w) for w in np.linalg.solve(powers.T, moments))


class Stork(Baseline[StorkSettings]):
    """STORK-2 on the K-step grid."""

    name = "stork"
    citation = "Tan et al., STORK: Faster Diffusion and Flow Matching Sampling, ICLR 2026"

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[StorkSettings]:
        """Return the K-step grid, first as published."""
        times = recording.shorter(evaluations)
        return [
            StorkSettings(times=times, stages=stages, derivatives=derivatives)
            for derivatives, stages in product(DERIVATIVES, STAGES)
        ]

    def sample(self, model: Meter, problem: SamplingProblem, settings: StorkSettings) -> Tensor:
        """Step by step, in working precision; the model sees the noise's dtype."""
        dtype = problem.noise.dtype
        x = problem.noise.to(working_dtype(problem.noise))
        seen: list[tuple[float, Tensor]] = []  # newest first
        for t, t_next in pairwise(settings.times):
            seen.insert(0, (t, model(x.to(dtype), t).to(x.dtype)))
            weights = stork_weights(
                [at for at, _ in seen], t_next, settings.stages, settings.derivatives
            )
            used = [v for _, v in seen[: len(weights)]]
            x = x - (t - t_next) * weighted_sum(used, weights)
            del seen[settings.derivatives :]
        return x.to(dtype)
