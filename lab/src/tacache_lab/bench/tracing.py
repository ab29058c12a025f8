"""Numbers at every step of a sample: k and d of its full run, and how far a method drifts.

What the paper's figure 2 and appendix C are made of. The full-step run is read from its file.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tacache.calibration import measure
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.stepper import Stepper
from tacache.tasu import dot, init_direction, realign, relative_distance
from tacache.velocity import euler
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.recorded_runs import FullRun
from tacache_lab.bench.records import Traces, rounded
from tacache_lab.methods import SamplingProblem
from tacache_lab.methods.seam import Meter, Visit


def is_traceable(method: Any) -> bool:
    """Return whether a method steps through the full grid: a plan of ours, or a rule that skips."""
    from tacache_lab.bench.plan_methods import Followed

    return isinstance(method, Followed) or hasattr(getattr(method, "baseline", None), "visits")


def full_traces(caller: Calls, full_run: FullRun) -> Traces:
    """Return the grid, and k_n and d_n of one sample; nothing follows the last step."""
    own = measure(full_run.velocities[:, None], caller.times, caller.host, caller.breaks)
    return {
        "times": rounded(caller.times),
        "magnitude": (*rounded(own.magnitude[:-1]), None),
        "direction": (*rounded(own.direction[:-1]), None),
    }


@torch.no_grad()
def drift_traces(
    caller: Calls, subject: Sample, method: Any, settings: Any, full_run: FullRun
) -> Traces:
    """Return how far a method's run is from the full-step run of the same noise at every step."""
    with caller.open(subject) as velocity:
        heard: list[Tensor] = []  # what the model said since the step before

        def hearing(x: Tensor, t: float) -> Tensor:
            heard.append(velocity(x, t))
            return heard[-1]

        problem = SamplingProblem(hearing, velocity.run.noise, caller.times, grid=caller.grid)
        compared = DriftComparison(
            full_run, turns=isinstance(settings, Plan) and settings.weights is None
        )
        for visit in visits(method, problem, settings):
            compared.add(visit, heard.pop() if heard else None)
    return compared.traces(caller.times[-1])


def visits(method: Any, problem: SamplingProblem, settings: Any) -> Iterable[Visit]:
    """Return the steps of a method's run, one after the other."""
    if isinstance(settings, Plan):
        return plan_visits(problem, settings)
    steps: Iterable[Visit] = method.baseline.visits(Meter(problem), problem, settings)
    return steps


def plan_visits(problem: SamplingProblem, plan: Plan) -> Iterator[Visit]:
    """Follow a plan step by step."""
    stepper, x = Stepper(plan), problem.noise
    for n, (t, t_next) in enumerate(pairwise(plan.times)):
        v = stepper.velocity(x, partial(problem.velocity, x, t, **problem.condition))
        yield Visit(n, t, x, v)
        x = euler(x, v, t, t_next)


class DriftComparison:
    """One sample's steps against its full-step run.

    `turns` says that skips are rebuilt from a direction between anchors: then cos(theta) between it
    and the true one is noted, as `tacache.diagnose` does.
    """

    def __init__(self, full_run: FullRun, *, turns: bool) -> None:
        self._full_run, self._turns = full_run, turns
        self._state: list[float] = []
        self._velocity: list[float] = []
        self._evaluated: list[float] = []
        self._cosines: list[float | None] = []
        self._anchors: list[Tensor] = []  # evaluated velocities, newest first
        self._last: Visit | None = None

    def add(self, visit: Visit, evaluated: Tensor | None) -> None:
        """Compare the next step; `evaluated` is the model's velocity where it was evaluated.

        A fitted plan steps with an average over the interval: it does not drift as the model does.
        """
        states, velocities = self._full_run
        v = visit.v if evaluated is None else evaluated
        self._state.append(float(relative_distance(visit.x, states[visit.step][None])))
        self._velocity.append(float(relative_distance(v, velocities[visit.step][None])))
        self._evaluated.append(float(evaluated is not None))
        self._cosines.append(self._cosine(visit.step) if evaluated is None else None)
        if evaluated is not None:
            self._anchors = [evaluated.double(), *self._anchors[:1]]
        self._last = visit

    def _cosine(self, n: int) -> float | None:
        """Return cos(theta) at a cached step; None before there is a direction."""
        if len(self._anchors) < 2 or self._last is None:
            return None
        before, now = (self._full_run.velocities[i][None].double() for i in (n - 1, n))
        historical = realign(init_direction(*self._anchors), self._last.v.double())
        return float(dot(historical, realign(now - before, before)))

    def traces(self, end: float) -> Traces:
        """Return the numbers of all steps, to be asked for after the last one."""
        assert self._last is not None
        x = euler(self._last.x, self._last.v, self._last.t, end)
        drift = float(relative_distance(x, self._full_run.states[-1][None]))
        traces: Traces = {
            "state_drift": rounded([*self._state, drift]),
            "velocity_drift": rounded(self._velocity),
            "evaluated": tuple(self._evaluated),
        }
        return traces | ({"cos_theta": rounded(self._cosines)} if self._turns else {})
