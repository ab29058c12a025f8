"""What is measured of one pipeline: whole runs, skipped steps alone, waiting, and a fit."""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.fullsize.methods import METHODS, RIVALS, Engaged, Task, counted, tasu_plan
from benchmarks.fullsize.models import Built
from benchmarks.fullsize.timing import Clock, Position, Probe, Timed, probe, spread, timed_run
from benchmarks.fullsize.waiting import traced_waits, waits_in_steps

from tacache.diffusers import applied, fit_plan
from tacache.stepper import carry, weighted_sum
from tacache.tasu import start_arc

MICRO = 1e6
TRACE_STEPS, TRACE_BUDGET = 8, 4
WARM_PLANNED, WARM_RIVAL = 4, 10  # iterations: a whole history, and every path of a cache
BACKEND = "inductor"  # of torch.compile
PLANNED = frozenset(METHODS) - frozenset(RIVALS)  # these leave the transformer as it is


class Thoroughness(NamedTuple):
    """How often whole runs are made, and which methods' first one is decoded."""

    repeats: int
    full_repeats: int
    rival_repeats: int
    decoded: frozenset[str]

    def of(self, method: str) -> int:
        """Whole runs by this method."""
        if method == "full":
            return self.full_repeats
        return self.rival_repeats if method in RIVALS else self.repeats


class Bench(NamedTuple):
    """A model on a device, what a first call showed, and how thoroughly to measure."""

    built: Built
    clock: Clock
    seen: Probe
    thorough: Thoroughness
    compiled: bool

    @property
    def steps(self) -> int:
        """N."""
        return len(self.seen.times) - 1


def measure_run(bench: Bench, method: str, budget: int) -> dict[str, Any]:
    """Whole calls by a method: the loop, its parts, and memory."""
    task = Task(bench.built, bench.seen.times, budget, Position(), bench.seen.further)
    first = _warm(bench, method, task)
    before, graphs = bench.clock.allocated(), graph_count()
    with METHODS[method](task) as engaged, compiled_blocks(bench):
        # A hook in a block would change what is compiled, so evaluations are counted in eager mode.
        with nullcontext() if bench.compiled else counted(bench.built) as count:
            runs = _runs(bench, method, task)
        plan = getattr(bench.built.pipe.scheduler, "run_plan", None)
    evaluated: float = len(plan.anchors) if plan else len(engaged.anchors)
    if count is not None:
        evaluated = count.calls / bench.built.model.passes / len(runs)
    record: dict[str, Any] = {
        "setting": engaged.setting,
        "evaluations": evaluated,
        **_times(runs),
        **_memory(runs, before),
        **_parts(runs, engaged, None if plan is None else plan.intervals, bench.seen.step),
    }
    if bench.compiled:
        record |= {"compile_seconds": first, "graphs_compiled_late": graph_count() - graphs}
    return record


def _warm(bench: Bench, method: str, task: Task) -> float:
    """Seconds of a first call that is stopped early; a cache keeps nothing of it."""
    started = time.perf_counter()
    iterations = WARM_PLANNED if method in PLANNED else WARM_RIVAL
    with METHODS[method](task), compiled_blocks(bench):
        timed_run(
            bench.built, bench.clock, bench.steps, position=task.position, stop_after=iterations
        )
    seconds = time.perf_counter() - started
    gc.collect()  # hooks and what they keep go round in circles: memory is counted from here
    return seconds


def _runs(bench: Bench, method: str, task: Task) -> list[Timed]:
    """Whole runs by an engaged method, the first of them decoded where that is asked for."""
    return [
        timed_run(
            bench.built,
            bench.clock,
            bench.steps,
            decode=i == 0 and method in bench.thorough.decoded,
            position=task.position,
        )
        for i in range(bench.thorough.of(method))
    ]


def _times(runs: Sequence[Timed]) -> dict[str, Any]:
    """Denoising of all runs; whole calls and what they take besides, of the decoded ones."""
    decoded = [run for run in runs if run.is_decoded]
    times: dict[str, Any] = {
        "repeats": len(runs),
        "decoded": len(decoded),
        "finite": all(run.is_finite for run in runs),
        "loop_seconds": spread([run.loop for run in runs]),
    }
    if decoded:
        times["total_seconds"] = spread([run.total for run in decoded])
        times["rest_seconds"] = spread([run.rest for run in decoded])
    return times


def _memory(runs: Sequence[Timed], before: int) -> dict[str, Any]:
    """What the runs took beyond what was allocated before the method was engaged."""
    latents = runs[0].latents
    return {
        "peak_bytes": max(run.peak for run in runs) - before,
        "latent_bytes": sum(latent.nbytes for latent in latents),
        **_shapes(latents),
    }


def _shapes(latents: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The first latent's shape and dtype, and the shapes of a joint model's others."""
    shapes = [list(latent.shape) for latent in latents]
    dtype = str(latents[0].dtype).removeprefix("torch.")
    record = {"latent_shape": shapes[0], "latent_dtype": dtype}
    return record | ({"further_shapes": shapes[1:]} if shapes[1:] else {})


def _parts(
    runs: Sequence[Timed], engaged: Engaged, intervals: Sequence[int] | None, plain_step: float
) -> dict[str, Any]:
    """Seconds of an evaluated iteration, and microseconds a skipped step adds.

    With a plan skipped steps are within the scheduler's step: what it takes beyond the plain one's.
    With a cache a skipped step is an iteration of the pipeline's loop.
    """
    if intervals is not None:
        return {
            "evaluated_seconds": spread([t for run in runs for t in run.iterations]),
            "skip_us": spread(
                [skip_seconds(run.steps, intervals, plain_step) for run in runs], MICRO
            ),
            "step_us": _by_length(runs, intervals),
            "plain_step_us": MICRO * plain_step,
        }
    anchors = frozenset(engaged.anchors)
    split: dict[bool, list[float]] = {True: [], False: []}
    for run in runs:
        for n, seconds in enumerate(run.iterations):
            split[n in anchors].append(seconds)
    parts: dict[str, Any] = {"evaluated_seconds": spread(split[True])}
    if split[False]:
        parts["skip_us"] = spread(split[False], MICRO)
    return parts


def skip_seconds(steps: Sequence[float], intervals: Sequence[int], plain_step: float) -> float:
    """Seconds a skipped step: all the scheduler's steps beyond as many plain ones."""
    skipped = sum(intervals) - len(intervals)
    return (sum(steps) - len(steps) * plain_step) / max(skipped, 1)


def _by_length(runs: Sequence[Timed], intervals: Sequence[int]) -> dict[str, float]:
    """The scheduler's step in microseconds, by the length of its interval."""
    times: dict[int, list[float]] = {}
    for run in runs:
        for seconds, length in zip(run.steps, intervals, strict=True):
            times.setdefault(length, []).append(seconds)
    return {str(n): MICRO * statistics.median(times[n]) for n in sorted(times)}


def stepping(
    latents: Sequence[torch.Tensor], device: torch.device
) -> dict[str, Callable[[], object]]:
    """What a plan does beside the model, on latents like these; none of it alone is a run."""
    ways = [_ways(latent, device) for latent in latents]
    return {name: _all_of([way[name] for way in ways]) for name in ways[0]}


def _all_of(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [call() for call in calls]


def _ways(latent: torch.Tensor, device: torch.device) -> dict[str, Callable[[], torch.Tensor]]:
    v = torch.randn(latent.shape, dtype=latent.dtype, device=device)
    v_previous = v + 0.05 * torch.randn_like(v)
    arc = start_arc(v, v_previous).advance(1.01, 0.02)

    def fitted_interval() -> torch.Tensor:
        carry(v, v_previous, rate=-0.4)
        return weighted_sum((v, v_previous), (1.6, -0.9)).to(v.dtype)

    return {
        "one_pass": v.clone,
        "first_skip": lambda: start_arc(v, v_previous).advance(1.01, 0.02).velocity().to(v.dtype),
        "later_skip": lambda: arc.advance(1.01, 0.02).velocity().to(v.dtype),
        "fitted_interval": fitted_interval,
    }


def measure_stepping(bench: Bench) -> dict[str, Any]:
    """Skipped steps alone, many in a row: here launching kernels is part of the time."""
    latents, calls = bench.seen.latents, 100 if bench.clock.is_cuda else 5
    us = {
        f"{name}_us": spread(bench.clock.per_call(way, calls), MICRO)
        for name, way in stepping(latents, bench.clock.device).items()
    }
    return {"repeats": 7, **us, **_shapes(latents)}


def measure_waiting(bench: Bench) -> dict[str, Any]:
    """How often the host waits for the device and how long the device for the host.

    With a plan, and with full steps that are as many evaluations.
    """
    seen = probe(bench.built, bench.clock, TRACE_STEPS, evaluations=2)
    traced_waits(bench.built, bench.clock, 2)  # a first trace starts the profiler's own machinery
    with applied(bench.built.pipe, tasu_plan(seen.times, TRACE_BUDGET)):
        planned_trace, planned_idle = traced_waits(bench.built, bench.clock, TRACE_STEPS)
        planned_steps = waits_in_steps(bench.built, bench.clock, TRACE_STEPS)
    evaluations = len(planned_steps)
    plain_trace, plain_idle = traced_waits(bench.built, bench.clock, evaluations)
    plain_steps = waits_in_steps(bench.built, bench.clock, evaluations)
    return {
        "repeats": 1,
        "setting": {"steps": TRACE_STEPS, "evaluations": evaluations},
        "trace": {"plain": plain_trace, "planned": planned_trace},
        "idle_us": {"plain": plain_idle, "planned": planned_idle},
        "steps_waiting": {"plain": plain_steps, "planned": planned_steps},
    }


def measure_fit(bench: Bench, budget: int, samples: int, search: bool, out: Path) -> dict[str, Any]:
    """Wall-clock seconds from the first full-step run to a fitted plan, which is saved."""
    started = time.perf_counter()
    call = {key: value for key, value in bench.built.call.items() if key != "output_type"}
    with compiled_blocks(bench):
        plan = fit_plan(
            bench.built.pipe,
            None,
            evaluations=budget,
            num_inference_steps=bench.steps,
            seeds=range(samples),
            search=search,
            progress=True,
            output_type="latent",
            **call,
        )
    bench.clock.settle()
    seconds = time.perf_counter() - started
    path = out.with_name(f"{bench.built.name}-{budget}.plan.json")
    plan.save(path)
    spent = None if plan.certificate is None else plan.certificate.evaluations_spent
    setting = {"samples": samples, "search": search}
    return {
        "repeats": 1,
        "setting": setting,
        "seconds": spread([seconds]),
        "evaluations_spent": spent,
        "plan": path.name,
    }


def graph_count() -> int:
    """Graphs that torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # loading it takes seconds
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


@contextmanager
def compiled_blocks(bench: Bench) -> Iterator[None]:
    """Every transformer block compiled (regional compilation), where that is asked for."""
    blocks = bench.built.blocks if bench.compiled else []
    if blocks:  # with a cache's hooks a block is another function; all share one table of graphs
        torch._dynamo.config.recompile_limit = 64
    for block in blocks:
        block.compile(backend=BACKEND)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
