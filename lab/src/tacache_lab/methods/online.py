"""Rules that decide during the run, for each sample apart: a sum of estimates against a threshold.

Only the samples that are due are evaluated, in one call. A velocity function that keeps per-sample
data of its own cannot know which they are: give such data as the problem's condition, or run
batches of one.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.tasu import divide, working_dtype
from tacache.velocity import euler
from tacache_lab.methods.caching import Reuse
from tacache_lab.methods.seam import (
    Baseline,
    Meter,
    RecordedProblem,
    SamplingProblem,
    Settings,
    Visit,
    last_state,
)
from tacache_lab.methods.tuning import MAX_THRESHOLD, bisected, named, nearly, spread

LOWEST, BISECTIONS = 1e-6, 14  # of the search for a threshold


class Memory(NamedTuple):
    """What each sample knows: x_j and v_j of its last evaluation, its gain k, x_{i-1}."""

    x: Tensor
    v: Tensor
    gain: Tensor
    before: Tensor


class SkipCriterion(NamedTuple):
    """When to evaluate: in the first `warm_up` steps, the last, and where the sum is due."""

    threshold: float
    warm_up: int
    reuse: Reuse
    estimate: Callable[[Memory, Tensor], Tensor]


def mean_abs(x: Tensor) -> Tensor:
    """Return mean|x| of each sample."""
    return x.reshape(len(x), -1).abs().mean(dim=1, dtype=working_dtype(x))


def relative_change(now: Tensor, before: Tensor) -> Tensor:
    """Return mean|now - before| / mean|before| of each sample, as published caches do."""
    return divide(mean_abs(now - before), mean_abs(before))


def walk_online(model: Meter, problem: SamplingProblem, watch: SkipCriterion) -> Iterator[Visit]:
    """Yield Euler over the full grid; each sample is evaluated where its own sum is due."""
    x, total = problem.noise, torch.zeros(problem.samples, dtype=torch.float64)
    memory: Memory | None = None
    for n, (t, t_next) in enumerate(pairwise(problem.times)):
        rows: Sequence[int] = range(problem.samples)
        if memory is None or n < watch.warm_up or n == problem.steps - 1:
            v = model(x, t)
        else:
            total += watch.estimate(memory, x).double().cpu()
            rows = torch.nonzero(total >= watch.threshold).flatten().tolist()
            v = _reconstruct(memory, x, watch.reuse)
            if rows:
                v[rows] = model(x[rows], t, rows)
        memory = _remember(memory, x, v, rows)
        total[list(rows)] = 0.0
        yield Visit(n, t, x, v)
        x = euler(x, v, t, t_next)


def _reconstruct(memory: Memory, x: Tensor, reuse: Reuse) -> Tensor:
    """Return v_j, or x + (v_j - x_j), in the dtype of v_j and in memory of its own."""
    if reuse == "velocity":
        return memory.v.clone()
    return (x.to(working_dtype(x)) + (memory.v - memory.x)).to(memory.v.dtype)


def _remember(memory: Memory | None, x: Tensor, v: Tensor, rows: Sequence[int]) -> Memory:
    """Return the memory after a step in which these rows were evaluated."""
    if memory is None:
        return Memory(x, v, torch.zeros_like(mean_abs(x)), x)
    if not rows:
        return memory._replace(before=x)
    chosen = list(rows)
    x_j, v_j, gain = memory.x.clone(), memory.v.clone(), memory.gain.clone()
    change = mean_abs(v[chosen] - v_j[chosen])
    gain[chosen] = divide(change, mean_abs(x[chosen] - x_j[chosen]))
    x_j[chosen], v_j[chosen] = x[chosen], v[chosen]
    return Memory(x_j, v_j, gain, x)


class OnlineRule(Baseline[Settings]):
    """A baseline that watches a sum during the run, for each sample apart.

    Samples may differ in evaluations, and a budget is met by their mean.
    """

    @abstractmethod
    def watch(self, settings: Settings) -> SkipCriterion:
        """Return what is summed, and up to where."""

    def visits(self, model: Meter, problem: SamplingProblem, settings: Settings) -> Iterator[Visit]:
        """Return each sample decides for itself."""
        return walk_online(model, problem, self.watch(settings))

    def sample(self, model: Meter, problem: SamplingProblem, settings: Settings) -> Tensor:
        """Return where the walk ends."""
        return last_state(self.visits(model, problem, settings), problem.times)

    def tightest(
        self, recording: RecordedProblem, settings: Settings, threshold: str, evaluations: int
    ) -> list[Settings]:
        """Return `settings` with the lowest thresholds that stay within the budget or a bit less.

        By bisection with real runs: a tighter threshold evaluates more often. None where even the
        loosest spends more. Where tuning is kept short, half as many are tried for one budget.
        """
        known: dict[float, tuple[float, Settings]] = {}

        def tried(value: float) -> tuple[float, Settings]:
            update: dict[str, Any] = {threshold: value}
            trial = settings.model_copy(update=update)

            def evaluated() -> tuple[float]:
                return (fmean(self.run(recording, trial).evaluations),)

            if value not in known:
                (spent,) = recording.tried(f"evaluations: {named(trial)}", evaluated)
                known[value] = spent, trial
            return known[value]

        by_spent: dict[float, Settings] = {}
        short = recording.most is not None
        for budget in spread(nearly(evaluations), 1 if short else None):
            first = 0.0 if budget == recording.steps else MAX_THRESHOLD
            times = BISECTIONS // 2 if short else BISECTIONS
            spent, best = bisected(tried, budget, first=first, lowest=LOWEST, times=times)
            if spent <= budget:
                by_spent.setdefault(spent, best)
        return list(by_spent.values())
