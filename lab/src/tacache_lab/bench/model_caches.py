"""Rivals that cache inside the model, as methods: the real pipeline with their hooks in place.

An evaluation is a step in which the model's last block ran for the prompt, as counted there. A
skipped step still runs a part of the model: what all steps cost together is counted beside it, in
evaluations (`equivalent_evaluations` of a record).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tacache.storage.files import Frozen
from tacache.tasu import relative_distance
from tacache.velocity import euler
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.rivals import Rival
from tacache_lab.methods import SamplingProblem
from tacache_lab.methods.tuning import named

if TYPE_CHECKING:  # they load diffusers, which not every host goes with
    from tacache_lab.methods.inside import InsideCache
    from tacache_lab.methods.inside.inside_cache import Look

FEW = 2  # calibration samples that thresholds are searched on, and ratios measured


class InsideMethod(Rival):
    """A cache inside the model, tuned for the budget or at a published setting."""

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return the published setting or the best one for the budget, if the model can have it."""
        from tacache_lab.methods.inside import check_supported

        self.baseline.available()
        check_supported(calibration_set.caller.pipe)
        settings = super().prepare(calibration_set, evaluations)
        if self.variant is not None:
            self.baseline.check(calibration_set.caller.pipe.transformer, settings)
        return settings

    def fit(self, calibration_set: CalibrationSet, evaluations: int) -> Any:
        """Tune it on the calibration samples, in runs of the real pipeline."""
        return self.baseline.fit(CalibrationTrials(calibration_set, self.baseline), evaluations)

    def sample(self, problem: SamplingProblem, settings: Any) -> Tensor:
        """Take every step of the grid: the cache itself says where the model is evaluated.

        The grid is that of full steps, unless the settings have another.
        """
        x = problem.noise
        for t, t_next in pairwise(getattr(settings, "times", ()) or problem.times):
            x = euler(x, problem.velocity(x, t), t, t_next)
        return x


@cache
def inside_caches() -> dict[str, "InsideCache[Any]"]:
    """Return caches inside the model by name: none without diffusers, whose models they are for."""
    try:
        from tacache_lab.methods.inside import CACHES
    except ImportError:
        return {}
    return CACHES


def within(method: Any, caller: Calls, settings: Any) -> AbstractContextManager[None]:
    """Hold a method's cache in the pipeline while it samples; most methods have none."""
    if isinstance(method, InsideMethod):
        from tacache_lab.methods.inside import Cache

        return caller.inside(Cache(method.baseline, settings))
    return nullcontext()


class Trial(NamedTuple):
    """A run of one sample: its evaluations, and |x - x_N|^2 / |x_N|^2."""

    evaluations: int
    error: float


class CalibrationTrials:
    """Runs of a cache on the samples of a calibration set; each is made once."""

    def __init__(self, calibration_set: CalibrationSet, cache: "InsideCache[Any]") -> None:
        self._calibration, self._cache = calibration_set, cache
        self._made: dict[tuple[Any, int], Trial] = {}
        self._ends: dict[int, Tensor] = {}

    @property
    def steps(self) -> int:
        """Return N, the number of steps of a run."""
        return self._calibration.caller.steps

    @property
    def most(self) -> int | None:
        """Return how many settings are run, where not all are."""
        return self._calibration.most

    @property
    def family(self) -> str:
        """Return the name of the model's family."""
        from tacache_lab.methods.inside.families import family_of

        return family_of(self._calibration.caller.pipe.transformer).name

    def grid(self, steps: int) -> Sequence[float]:
        """Return the grid of so many steps."""
        return self._calibration.caller.grid(steps)

    def evaluations(self, settings: Any) -> float:
        """Return the mean evaluations of the first few samples."""
        return mean(self._sample(i, settings).evaluations for i in self._first(FEW))

    def error(self, settings: Any, samples: int) -> float:
        """Return the mean error of the first samples."""
        return mean(self._sample(i, settings).error for i in self._first(samples))

    def seen(self, settings: Any, look: "Look") -> list[Sequence[float]]:
        """Return what there is to see in the model after each run of the first few samples."""

        def seen_in(number: int) -> Sequence[float]:
            name = f"seen in sample {number}: {named(settings)}"
            return self._calibration.tries(name, lambda: self._run(number, settings, look)[2])

        return [seen_in(i) for i in self._first(FEW)]

    def _first(self, samples: int) -> range:
        return range(min(samples, len(self._calibration.subjects)))

    def _sample(self, number: int, settings: Any) -> Trial:
        if (settings, number) not in self._made:
            name = f"sample {number}: {named(settings)}"
            spent, error = self._calibration.tries(name, lambda: self._tried(number, settings))
            self._made[settings, number] = Trial(int(spent), error)
        return self._made[settings, number]

    def _tried(self, number: int, settings: Any) -> Trial:
        x, evaluations, _ = self._run(number, settings, lambda _: ())
        if number not in self._ends:
            self._ends[number] = self._calibration.end(number)
        return Trial(evaluations, _error(x, self._ends[number]))

    @torch.no_grad()
    def _run(self, number: int, settings: Any, look: "Look") -> tuple[Tensor, int, Sequence[float]]:
        caller, method = self._calibration.caller, InsideMethod(self._cache)
        subject = self._calibration.subjects[number]
        times = caller.grid_for(lambda problem: method.sample(problem, settings))
        with within(method, caller, settings), caller.open(subject, times) as velocity:
            x = method.sample(SamplingProblem(velocity, velocity.run.noise, caller.times), settings)
            return x, len(velocity.evaluated), look(caller.pipe.transformer)


def _error(x: Tensor, end: Tensor) -> float:
    error = float(relative_distance(x, end) ** 2)
    return error if error < float("inf") else float("inf")  # a NaN is as bad
