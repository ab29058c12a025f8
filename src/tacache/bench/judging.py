"""Runs of one subject: the references, and every method from the same noise, as records."""

import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.baselines import BASELINES, Problem
from tacache.baselines.simple import GridSettings
from tacache.bench.calls import Caller, Counted, Subject, Times
from tacache.bench.jobs import Job, Prepared, Task
from tacache.bench.lessons import save_tensors
from tacache.bench.methods import load_settings
from tacache.bench.records import Adds, Key, Machine, Record
from tacache.bench.scoring import Result, as_pixels, compare, score
from tacache.errors import HostError

FULL, FINE = "full", "fine"  # the references, as methods of their records
Sample = Callable[[Problem], Tensor]


class Reference(NamedTuple):
    """Results to compare with, and the noise that every method must start from."""

    full: Result
    fine: Result | None
    noise_sha256: str


class Made(NamedTuple):
    """What a run gave, counted and timed."""

    result: Result
    evaluated: Times
    noise_sha256: str
    seconds: float
    memory_bytes: int | None


class Judge:
    """Makes the records of a job; `done` are those there are."""

    def __init__(self, caller: Caller, job: Job, results: Path, done: Mapping[Key, Record]) -> None:
        self.caller, self.job, self.results, self.done = caller, job, results, done
        self.folder = work_folder(results)
        self.machine = this_machine(caller)

    def judged(
        self, task: Task, ready: Prepared, subject: Subject, reference: Reference
    ) -> dict[str, Any]:
        """The fields of one method's record; where it fails, with the reason."""
        if ready.settings is None or ready.kind is None:
            return {"status": ready.status, "reason": ready.reason}
        settings, method = load_settings(ready.kind, ready.settings), task.asked.method
        facts = {"settings": method.shown(settings)}
        try:
            made = self.sampled(subject, lambda problem: method.sample(problem, settings))
            if made.noise_sha256 != reference.noise_sha256:
                raise HostError("it did not start from the reference's noise")
            return facts | self.facts(made, task.key(subject), reference)
        except Exception as error:
            return facts | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    def reference_keys(self, subject: Subject) -> list[Key]:
        """Of the records of full steps, and of the fine grid where it is asked for."""
        keys = [Key(FULL, self.caller.steps, *subject)]
        return keys if self.job.fine is None else [*keys, Key(FINE, self.job.fine, *subject)]

    def reference(self, subject: Subject, add: Adds) -> Reference:
        """The results of full and fine steps, from the folder where they are there already."""
        keys = self.reference_keys(subject)
        files = [self.folder / f"reference-{self.caller.key(*key)}.safetensors" for key in keys]
        noise = self.done[keys[0]].noise_sha256 if keys[0] in self.done else None
        if noise and all(key in self.done for key in keys) and all(f.exists() for f in files):
            return _as_reference([load_result(file) for file in files], noise)
        made = [self.run(subject, euler_walk, steps=key.evaluations) for key in keys]
        reference = _as_reference([one.result for one in made], made[0].noise_sha256)
        for one, file in zip(made, files, strict=True):
            save_tensors(file, one.result._asdict())
        for one, key in zip(made, keys, strict=True):
            if key not in self.done:
                add(self.record(key, **self.facts(one, key, reference)))
        return reference

    def sampled(self, subject: Subject, sample: Sample) -> Made:
        """A method's run, on the full grid or on one with the times it is going to ask for."""
        asked: set[float] = set()

        def rehearsed(x: Tensor, t: float) -> Tensor:
            asked.add(t)
            return x

        full, grid = self.caller.times, None
        sample(Problem(rehearsed, torch.linspace(-1.0, 1.0, 8)[None], full, grid=self.caller.grid))
        if not asked <= set(full[:-1]):
            grid = (*sorted(asked, reverse=True), full[-1])
        return self.run(subject, sample, times=grid)

    def run(
        self,
        subject: Subject,
        sample: Sample,
        *,
        times: Times | None = None,
        steps: int | None = None,
    ) -> Made:
        """One whole call of the pipeline, timed, whose loop `sample` leads."""
        _synchronize(reset=True)
        started = time.perf_counter()
        with torch.no_grad(), self.caller.open(subject, times, steps) as velocity:
            grid = self.caller.times if times is not None else velocity.times
            noise = velocity.run.noise
            x = sample(Problem(velocity, noise, grid, grid=self.caller.grid))
            pixels = finish(velocity, x)
        _synchronize()
        seconds = time.perf_counter() - started
        return Made(
            Result(x[0].float().cpu(), as_pixels(pixels)),
            tuple(velocity.evaluated),
            velocity.noise_sha256,
            seconds,
            torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        )

    def record(self, key: Key, **fields: Any) -> Record:
        """A record of this job."""
        return Record(
            **key._asdict(),
            **fields,
            steps=self.caller.steps,
            fine=self.job.fine,
            host=self.caller.host,
            machine=self.machine,
        )

    def facts(self, made: Made, key: Key, reference: Reference) -> dict[str, Any]:
        """What was measured of a run; a reference is not compared to itself."""
        full, fine, metrics = reference.full, reference.fine, self.job.metrics
        return {
            "status": "done",
            "evaluated": tuple(round(t, 6) for t in made.evaluated),
            "noise_sha256": made.noise_sha256,
            "seconds": made.seconds,
            "memory_bytes": made.memory_bytes,
            "to_full": None if key.method == FULL else compare(full, made.result, metrics),
            "to_fine": (
                None if not fine or key.method == FINE else compare(fine, made.result, metrics)
            ),
            "scores": score(made.result, key.prompt, metrics),
            "picture": None if self.job.keep is None else self.keep(made.result, key),
        }

    def keep(self, result: Result, key: Key) -> str:
        """Write the picture; its path as seen from the results."""
        from tacache.diffusers.generation import Request, file_stem, write

        assert self.job.keep is not None
        number = list(self.job.prompts).index(key.prompt)
        method = re.sub(r"[^a-z0-9.+]+", "-", f"{key.method}-{key.evaluations or ''}".lower())
        stem = f"{file_stem(number, key.prompt, key.seed)}-{method.strip('-')}"
        pixels = result.pixels.movedim(-3, -1).numpy()
        target = write(pixels, self.job.keep / stem, Request(None, {}))
        return os.path.relpath(target, self.results.parent)


def euler_walk(problem: Problem) -> Tensor:
    """Every step evaluated: the reference."""
    return BASELINES[FULL].run(problem, GridSettings(times=tuple(problem.times))).x


def finish(velocity: Counted, x: Tensor) -> NDArray[np.float32]:
    """What the pipeline itself makes of the last state: values in [0, 1]."""
    if not torch.isfinite(x).all():
        raise HostError("its result has values that are not finite")
    return np.asarray(velocity.run.finish(x)[0][0], dtype=np.float32)


def load_result(file: Path) -> Result:
    """A reference from its file."""
    from safetensors.torch import load_file

    found = load_file(file)
    return Result(found["latents"], found["pixels"])


def work_folder(results: Path) -> Path:
    """Where calibration runs, settings and references are kept; it may be deleted."""
    return results.with_name(f"{results.name}.work")


def this_machine(caller: Caller) -> Machine:
    """The device and what is installed."""
    device = caller.device
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    packages = ("tacache", "torch", "diffusers", "transformers")
    versions = {package: version(package) for package in packages}
    return Machine(
        device=f"{device.type}: {name}",
        versions={"python": platform.python_version(), **versions},
    )


def _as_reference(results: list[Result], noise_sha256: str) -> Reference:
    return Reference(results[0], results[1] if len(results) > 1 else None, noise_sha256)


def _synchronize(*, reset: bool = False) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        if reset:
            torch.cuda.reset_peak_memory_stats()
