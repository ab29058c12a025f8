"""Runs of one subject: the references, and every method from the same noise, as records."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.errors import HostError, StorageError
from tacache.hosts import file_stem
from tacache.prompts import Sample
from tacache.storage.tensors import load_values, save_values
from tacache_lab.bench.flow_runs import flow_end, flow_times
from tacache_lab.bench.host_calls import Calls, Counted, Times
from tacache_lab.bench.machines import allocated, peak_memory, synchronize, this_machine
from tacache_lab.bench.model_caches import within
from tacache_lab.bench.named_methods import load_settings
from tacache_lab.bench.recorded_runs import holds, load_full_run, record_full_run
from tacache_lab.bench.records import Adds, Key, Record, Traces
from tacache_lab.bench.scoring import Result, as_pixels, compare, score
from tacache_lab.bench.tasks import BenchJob, Task
from tacache_lab.bench.tracing import drift_traces, full_traces, is_traceable
from tacache_lab.bench.tuning_journal import Prepared
from tacache_lab.flops import CallFlops, call_flops
from tacache_lab.methods import BASELINES, SamplingProblem
from tacache_lab.methods.simple import GridSettings

FULL, FINE = "full", "fine"  # the references, as methods of their records
WARM_UP = 2  # steps of a call before the first that is timed
Sampler = Callable[[SamplingProblem], Tensor]


class References(NamedTuple):
    """Results to compare with, and the noise that every method must start from."""

    full: Result
    fine: Result | None
    noise_sha256: str
    seconds: float | None = None  # of full steps, where this process has timed them


class TimedRun(NamedTuple):
    """The result of a run with its evaluations and its time."""

    result: Result
    evaluated: Times
    noise_sha256: str
    seconds: float
    memory_bytes: int | None
    timings: tuple[float, ...] | None = None
    equivalent_evaluations: float | None = None  # of a cache inside the model


class Judge:
    """Makes the records of a job.

    `done` are those there are, `processes` how many make them, `processes_per_device` how many of
    these on this device.
    """

    def __init__(
        self,
        caller: Calls,
        job: BenchJob,
        results: Path,
        done: Mapping[Key, Record],
        processes: int = 1,
        processes_per_device: int = 1,
    ) -> None:
        self.caller, self.job, self.results, self.done = caller, job, results, done
        self.processes, self.processes_per_device = processes, processes_per_device
        self.folder = work_folder(results)
        self.machine = this_machine(caller.device)
        self.weights = allocated(caller.device)  # what is there before anything is tuned

    @property
    def reference_name(self) -> Literal["flow"] | None:
        """Return what records say of the reference: nothing of full steps."""
        return None if self.job.flow is None else "flow"

    def run_reference(self, subject: Sample, key: Key) -> TimedRun:
        """Run full steps, timed, or the fine reference: nobody asks how long that takes."""
        if key.method == FULL:
            return self.timed(subject, euler_run, steps=key.evaluations)
        if self.job.flow is None:
            return self.run(subject, euler_run, steps=key.evaluations)
        times, breaks = flow_times(self.caller.grid(self.job.flow)), self.caller.breaks
        return self.run(subject, partial(flow_end, times=times, breaks=breaks), times=times)

    def reference_file(self, key: Key) -> Path:
        """Return the file that keeps the result of a reference."""
        kind = () if key.method == FULL or self.job.flow is None else (self.reference_name,)
        return self.folder / f"reference-{self.caller.key(*key, *kind)}.pt"

    def warm_up(self, subject: Sample) -> None:
        """Run a whole short call, so that the first timed one pays nothing that comes only once."""
        self.run(subject, euler_run, steps=WARM_UP)

    @cached_property
    def flops(self) -> CallFlops | None:
        """Return the operations of the pipeline's calls, counted when they are first asked for."""
        return call_flops(self.caller, self.job.subjects[0])

    def judged(
        self, task: Task, ready: Prepared, subject: Sample, reference: References
    ) -> dict[str, Any]:
        """Return the fields of one method's record; where it fails, with the reason."""
        if ready.settings is None or ready.kind is None:
            return {"status": ready.status, "reason": ready.reason}
        settings, method = load_settings(ready.kind, ready.settings), task.chosen.method
        facts: dict[str, Any] = {"settings": method.shown(settings)}
        try:
            with within(method, self.caller, settings):
                run = self.sampled(subject, lambda problem: method.sample(problem, settings))
            if run.noise_sha256 != reference.noise_sha256:
                raise HostError("it did not start from the reference's noise")
            if self.job.trace and is_traceable(method):
                full_run = load_full_run(self.caller, self.folder, subject)
                facts["traces"] = drift_traces(self.caller, subject, method, settings, full_run)
            return facts | self.facts(run, task.key(subject), reference)
        except StorageError:
            raise  # no other sample could be kept either
        except Exception as error:
            return facts | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    def reference_keys(self, subject: Sample) -> list[Key]:
        """Return the keys of the records of full steps and, if asked for, of the fine grid."""
        of_sample = (subject.text, subject.seed)
        keys = [Key(FULL, self.caller.steps, *of_sample)]
        return keys if self.job.fine is None else [*keys, Key(FINE, self.job.fine, *of_sample)]

    def reference(self, subject: Sample, add: Adds) -> References:
        """Return the results of full and fine steps, from the folder where they are whole."""
        keys, traces = self.reference_keys(subject), self.full_traces(subject)
        files = [self.reference_file(key) for key in keys]
        noise = self.done[keys[0]].noise_sha256 if keys[0] in self.done else None
        missing = [key for key in keys if self.is_left(key, traced=key.method == FULL)]
        if noise and not missing and all(holds(file, *Result._fields) for file in files):
            seconds = self.timed(subject, euler_run).seconds if self.job.repeats > 1 else None
            return references_of([load_result(file) for file in files], noise, seconds)
        runs = [self.run_reference(subject, key) for key in keys]
        results = [run.result for run in runs]
        reference = references_of(results, runs[0].noise_sha256, runs[0].seconds)
        for run, file in zip(runs, files, strict=True):
            save_values(file, run.result._asdict())
        for run, key in zip(runs, keys, strict=True):
            if key in missing:
                own = traces if key.method == FULL else None
                add(self.record(key, **self.facts(run, key, reference), traces=own))
        return reference

    def is_left(self, key: Key, *, traced: bool) -> bool:
        """Return whether a record is missing, or its traces where it is to have some."""
        there = self.done.get(key)
        if there is None:
            return True
        return self.job.trace and traced and there.status == "done" and there.traces is None

    def full_traces(self, subject: Sample) -> Traces | None:
        """Return the traces of the full-step run, which is recorded to compare others with."""
        if not self.job.trace:
            return None
        record_full_run(self.caller, self.folder, subject)
        return full_traces(self.caller, load_full_run(self.caller, self.folder, subject))

    def sampled(self, subject: Sample, sample: Sampler) -> TimedRun:
        """Return a method's run, on the full grid or on the times it is going to ask for."""
        return self.timed(subject, sample, times=self.caller.grid_for(sample))

    def timed(self, subject: Sample, sample: Sampler, **grid: Any) -> TimedRun:
        """Return a run; with repeats it warms up first, and its time is the median of theirs."""
        run, repeats = self.run(subject, sample, **grid), self.job.repeats
        if repeats == 1:
            return run
        timings = tuple(self.run(subject, sample, **grid).seconds for _ in range(repeats))
        return run._replace(seconds=median(timings), timings=timings)

    def run(
        self,
        subject: Sample,
        sample: Sampler,
        *,
        times: Times | None = None,
        steps: int | None = None,
    ) -> TimedRun:
        """Return one whole call of the pipeline, timed, whose loop `sample` leads."""
        synchronize(self.caller.device, reset=True)
        before = allocated(self.caller.device)
        started = time.perf_counter()
        with torch.no_grad(), self.caller.open(subject, times, steps) as velocity:
            grid = self.caller.times if times is not None else velocity.times
            noise = velocity.run.noise
            x = sample(SamplingProblem(velocity, noise, grid, grid=self.caller.grid))
            pixels = finish(velocity, x)
        synchronize(self.caller.device)
        seconds = time.perf_counter() - started
        return TimedRun(
            Result(x[0].float().cpu(), as_pixels(pixels)),
            velocity.evaluated,
            velocity.noise_sha256,
            seconds,
            self.weights + peak_memory(self.caller.device) - before or None,
            equivalent_evaluations=velocity.equivalent_evaluations,
        )

    def record(self, key: Key, **fields: Any) -> Record:
        """Make a record of this job."""
        return Record(
            **key._asdict(),
            **fields,
            steps=self.caller.steps,
            fine=self.job.fine,
            reference=self.reference_name,
            tries=self.job.tries,
            origin=self.caller.host,
            machine=self.machine,
            processes=self.processes,
            processes_per_device=self.processes_per_device,
        )

    def facts(self, run: TimedRun, key: Key, reference: References) -> dict[str, Any]:
        """Return what was measured of a run; a reference is not compared to itself."""
        full, fine, metrics = reference.full, reference.fine, self.job.metrics
        device, equivalent = self.caller.device, run.equivalent_evaluations
        return {
            "status": "done",
            "evaluated": tuple(round(t, 6) for t in run.evaluated),
            "noise_sha256": run.noise_sha256,
            "seconds": run.seconds,
            "memory_bytes": run.memory_bytes,
            "timings": run.timings,
            "full_seconds": None if key.method in (FULL, FINE) else reference.seconds,
            "equivalent_evaluations": None if equivalent is None else round(equivalent, 3),
            "flops": self.flops_of(run),
            "to_full": None if key.method == FULL else compare(full, run.result, metrics, device),
            "to_fine": (
                None
                if not fine or key.method == FINE
                else compare(fine, run.result, metrics, device)
            ),
            "scores": score(
                run.result,
                key.prompt,
                metrics,
                device,
                answer=self.job.answers.get(key.prompt),
                model=self.caller.host.model,
            ),
            "picture": None if self.job.keep is None else self.keep(run.result, key),
        }

    def flops_of(self, run: TimedRun) -> int | None:
        """Return the operations of a whole call with the evaluations of a run."""
        amount = run.equivalent_evaluations or self.caller.amount(run.evaluated)
        return self.flops.of(amount) if self.flops else None

    def keep(self, result: Result, key: Key) -> str:
        """Write the picture and return its path relative to the results."""
        assert self.job.keep is not None
        number = list(self.job.prompts).index(key.prompt)
        method = re.sub(r"[^a-z0-9.+@]+", "-", f"{key.method}-{key.evaluations or ''}".lower())
        stem = f"{file_stem(number, key.prompt, key.seed)}-{method.strip('-')}"
        pixels = result.pixels.movedim(-3, -1).numpy()
        target = self.caller.write(pixels, self.job.keep / stem)
        return os.path.relpath(target, self.results.parent)


def load_result(file: Path) -> Result:
    """Read a reference from its file."""
    tensors = load_values(file)
    return Result(tensors["latents"], tensors["pixels"])


def references_of(
    results: Sequence[Result], noise_sha256: str, seconds: float | None
) -> References:
    """Return what there is to compare with.

    The full-step result, and the fine one where it is there.
    """
    return References(results[0], results[1] if len(results) > 1 else None, noise_sha256, seconds)


def euler_run(problem: SamplingProblem) -> Tensor:
    """Take every step of the grid with an evaluation, as the references do."""
    return BASELINES[FULL].run(problem, GridSettings(times=tuple(problem.times))).x


def finish(velocity: Counted, x: Tensor) -> NDArray[np.float32]:
    """Return what the pipeline itself makes of the last state: values in [0, 1]."""
    if not torch.isfinite(x).all():
        raise HostError("its result has values that are not finite")
    return velocity.finish(x)


def work_folder(results: Path) -> Path:
    """Return the folder of calibration runs, settings and references; it may be deleted."""
    return results.with_name(f"{results.name}.work")
