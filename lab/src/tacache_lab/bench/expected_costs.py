"""What a benchmark is going to cost, told before it begins: evaluations, and how long they take.

How many settings a rival tries without a limit (`tries`) is known only when it has tried them, so
that such tuning is named and not counted.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.machines import synchronize
from tacache_lab.bench.model_caches import FEW, InsideMethod
from tacache_lab.bench.plan_methods import RATIOS, FittedPlan, Planned
from tacache_lab.bench.tasks import BenchJob, Task
from tacache_lab.methods.tuning import TuningRuns


class Cost(NamedTuple):
    """A part of the work, with its evaluations of the model for one sample; None: not known."""

    what: str
    evaluations: float | None


def expected_costs(
    job: BenchJob, tasks: Sequence[Task], calibration_samples: int, steps: int
) -> list[Cost]:
    """Return what these tasks evaluate, with the full runs that come before them.

    Args:
        job: What is asked for.
        tasks: The methods and budgets that are left to do.
        calibration_samples: How many full runs the methods are tuned on.
        steps: Those of a full run.

    Returns:
        The parts of the work, in the order they are done.

    """
    subjects, repeats = len(job.subjects), job.repeats + (job.repeats > 1)
    tuned: dict[str, list[float | None]] = {}
    for task in tasks:
        tuned.setdefault(task.chosen.name, []).append(tuning_cost(task, job, steps))
    full_runs = calibration_samples * (steps + (job.flow or 0))
    return [
        Cost("full runs to tune on", full_runs),
        *(Cost(f"tuning {name}", _sum(costs)) for name, costs in tuned.items()),
        Cost("full runs to compare with", subjects * (steps * repeats + (job.fine or 0))),
        Cost("all methods", subjects * repeats * sum(run_cost(task, steps) for task in tasks)),
    ]


def run_cost(task: Task, steps: int) -> float:
    """Return the evaluations of one run of a method."""
    evaluations = task.evaluations or steps
    if isinstance(task.chosen.method, InsideMethod):
        evaluations += task.chosen.method.baseline.skip_cost * (steps - evaluations)
    return evaluations


def tuning_cost(task: Task, job: BenchJob, steps: int) -> float | None:
    """Return the evaluations that making a method ready takes, beyond full runs; None: unknown."""
    method: Any = task.chosen.method
    if not method.calibrated or task.evaluations is None:
        return 0
    samples = len(task.calibration_set.prompts)
    if isinstance(method, FittedPlan):
        return method.options.limit - samples * steps
    tries = len(RATIOS) + 1 if isinstance(method, Planned) else job.tries
    if tries is None:
        return None
    if isinstance(method, Planned):
        tries = 1 if method.ratio else min(tries, job.tries or tries)
        return 0 if tries == 1 else tries * samples * task.evaluations
    if not isinstance(method, InsideMethod):
        return tries * samples * task.evaluations
    runs: TuningRuns = method.baseline.tuning_runs(steps, task.evaluations, tries)
    return run_cost(task, steps) * (runs.on_all * samples + runs.on_few * min(FEW, samples))


def told(costs: Sequence[Cost], seconds: float, processes: int) -> Iterator[str]:
    """Yield what to say of costs, where one evaluation takes so many seconds."""
    known = [cost for cost in costs if cost.evaluations]
    total = sum(cost.evaluations or 0 for cost in known)
    parts = ", ".join(f"{cost.what} {cost.evaluations:,.0f}" for cost in known)
    yield f"this takes about {total:,.0f} evaluations of the model: {parts}"
    unknown = [cost.what for cost in costs if cost.evaluations is None]
    if unknown:
        yield f"not counted, as all settings are tried (--tries limits them): {', '.join(unknown)}"
    yield (
        f"one takes {seconds:.3g} s here, so they take about "
        f"{duration(total * seconds / processes)}; text, decoding and metrics come on top. Stop it "
        "whenever you like: the same command goes on from there"
    )


def duration(seconds: float) -> str:
    """Return a length of time in the unit that suits it."""
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def seconds_of_evaluation(caller: Calls, subject: Any) -> float:
    """Return how long one evaluation takes, after one that pays what comes only once."""
    with torch.no_grad(), caller.open(subject) as velocity:
        noise, first = velocity.run.noise, velocity.times[0]
        velocity.evaluate(noise, first)
        synchronize(caller.device)
        started = time.perf_counter()
        velocity.evaluate(noise, first)
        synchronize(caller.device)
    return time.perf_counter() - started


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
