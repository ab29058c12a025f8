"""Samplers with one evaluation a step on a grid of their own: A2S and OSS."""

from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from tacache.velocity import euler
from tacache_lab.methods.seam import Baseline, Meter, RecordedProblem, SamplingProblem
from tacache_lab.methods.simple import FewerSteps, GridSettings

GAINS = (
    (0.95, 1.05),
    (0.975, 1.025),
    (1.0, 1.0),
    (1.025, 0.975),
    (1.05, 0.95),
)  # published: .95 to 1.05
FEW = 2  # samples of OSS's program where tuning is kept short: each takes K N evaluations


class A2SSettings(GridSettings):
    """The grid, and the gain of the first and of the last step."""

    first_gain: float = 0.95
    last_gain: float = 1.05


class A2S(Baseline[A2SSettings]):
    """Acceleration-aware sampling: the time label moves to mid-step, and a gain scales the step."""

    name = "a2s"
    citation = (
        "Acceleration-Aware Sampling for Few-Step Rectified Flows, OpenReview hCIdPgTfUw, 2025"
    )

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[A2SSettings]:
        """Return the K-step grid with several gains."""
        times = recording.shorter(evaluations)
        return [A2SSettings(times=times, first_gain=a, last_gain=b) for a, b in GAINS]

    def sample(self, model: Meter, problem: SamplingProblem, settings: A2SSettings) -> Tensor:
        """Step by step, x - alpha h v(x, t - h / 2), where alpha is linear over the steps."""
        x, last = problem.noise, len(settings.times) - 2
        for i, (t, t_next) in enumerate(pairwise(settings.times)):
            share = i / last if last else 0.0
            gain = settings.first_gain + share * (settings.last_gain - settings.first_gain)
            x = euler(x, gain * model(x, (t + t_next) / 2), t, t_next)
        return x


class OSS(FewerSteps):
    """Optimal stepsize (Pei et al., 2025): Euler on the sub-grid that tracks a teacher best."""

    name = "oss"
    citation = "Pei et al., Optimal Stepsize for Diffusion Sampling, arXiv:2503.21774, 2025"
    tuned = True
    # fmt: off
    published = MappingProxyType({
        "flux-10": GridSettings(times=(
            0.9968, 0.9886, 0.9819, 0.975, 0.966, 0.9471, 0.9158, 0.8287, 0.5512, 0.2808, 0.0,
        )),
        "wan-20": GridSettings(times=(
            1.0, 0.997, 0.995, 0.993, 0.991, 0.989, 0.987, 0.985, 0.98, 0.975, 0.973, 0.968, 0.96,
            0.946, 0.927, 0.902, 0.864, 0.776, 0.539, 0.208, 0.0,
        )),
    })
    # fmt: on

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[GridSettings]:
        """Return the grid of exactly K steps found by dynamic programming."""
        few = recording if recording.most is None else recording.first(FEW)
        nodes = teacher_path(few, evaluations)
        return [GridSettings(times=tuple(recording.times[n] for n in nodes))]


def teacher_path(recording: RecordedProblem, steps: int) -> tuple[int, ...]:
    """Return the nodes of the student's grid, by dynamic programming over the teacher's.

    For each number of steps and each node it keeps the student's state nearest to the teacher's
    there, in mean square over all samples: K N evaluations a sample.
    """
    model, last = Meter(recording), recording.steps
    states: dict[int, Tensor] = {0: recording.noise}
    came_from: list[dict[int, int]] = []
    for done in range(1, steps + 1):
        best: dict[int, tuple[float, int, Tensor]] = {}
        # enough steps must be left for the rest of the budget
        targets = [last] if done == steps else range(done, last - (steps - done) + 1)
        for n, x in states.items():
            v = model(x, recording.times[n])
            for m in (m for m in targets if m > n):
                arrived = euler(x, v, recording.times[n], recording.times[m])
                cost = float(torch.mean((arrived - recording.targets[m]).double() ** 2))
                if m not in best or cost < best[m][0]:
                    best[m] = cost, n, arrived
        states = {m: arrived for m, (_, _, arrived) in best.items()}
        came_from.append({m: n for m, (_, n, _) in best.items()})
    path = [last]
    for previous in reversed(came_from):
        path.append(previous[path[-1]])
    return tuple(reversed(path))
