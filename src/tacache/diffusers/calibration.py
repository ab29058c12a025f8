"""Calibration on a pipeline: full-step runs, seen from inside its scheduler."""

import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache.decomposition import indicators
from tacache.diffusers.calls import calling_pipeline, run_breaks
from tacache.diffusers.fingerprint import describe, settings
from tacache.diffusers.finished import job_key
from tacache.diffusers.flow import run_times
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import Run, check_call_names, plan_runs, run_arguments
from tacache.errors import HostError, ProfileError
from tacache.profile import Profile
from tacache.prompts import as_prompts, fingerprint
from tacache.storage.finished import FinishedRuns
from tacache.work.processes import Processes
from tacache.work.progress import track


@dataclass
class Trajectory:
    """k and d of each step of one walk through the noise levels, and the levels themselves."""

    times: tuple[float, ...]
    latest: Tensor
    magnitude: list[list[float]] = field(default_factory=list)
    direction: list[list[float]] = field(default_factory=list)

    def add(self, v: Tensor) -> None:
        """Measure the change to the next step's velocity."""
        n = len(self.magnitude)
        k, d = indicators(self.latest, v, self.times[n] - self.times[n + 1])
        self.magnitude.append(k)
        self.direction.append(d)
        self.latest = v.clone()


class Recorder:
    """What a scheduler saw in a call of the pipeline; some pipelines walk the levels repeatedly."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []
        self.call: dict[str, Any] = {}
        self.breaks: tuple[float, ...] = ()
        self._expected = -1

    def see(self, scheduler: Any, v: Tensor) -> None:
        """Take in the velocity of the step the scheduler has just made."""
        step = scheduler.step_index - 1
        if step == self._expected:
            self.trajectories[-1].add(v)
        else:
            pipeline, self.call = calling_pipeline(scheduler)
            self.breaks = run_breaks(pipeline, self.call)
            self.trajectories.append(Trajectory(run_times(scheduler)[step:], v.clone()))
        self._expected = step + 1


def calibrate(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    batch_size: int = 1,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> Profile:
    """The profile of full-step runs of a pipeline, one per prompt and seed.

    `prompts` is a list or a file; None where the call passes `prompt_embeds` (then one run a seed).
    All other arguments go to the pipeline; latents are not decoded. `resume` names a file that
    keeps finished runs, so that a killed calibration goes on where it stopped. Under `torchrun` or
    `accelerate launch` the runs are shared out, and every process gets the same profile.
    """
    if batch_size < 1:
        raise HostError(f"batch_size is at least 1, not {batch_size}")
    if "generator" in call:
        raise HostError("calibrate makes the generators itself: give seeds=[...] instead")
    check_call_names(pipe, call)
    texts = None if prompts is None else as_prompts(prompts)
    plain_scheduler(pipe)  # refuse before the first long run
    runs = plan_runs(texts, list(seeds) if seeds is not None else [0], batch_size)
    call = {"num_inference_steps": num_inference_steps, **call}
    finished = FinishedRuns(resume, job_key(pipe, plain_scheduler(pipe), runs, call))
    processes = Processes.current()
    mine = [i for i in range(len(runs)) if i % processes.count == processes.rank]
    done = {i: profile for i, profile in finished.load().items() if i in mine}
    with processes.failing_together() as together:
        for i in track(mine, "calibrating", progress and processes.rank == 0):
            if i not in done:
                done[i] = _measure_run(pipe, runs[i], call, texts)
                finished.add(i, done[i])
    profiles = together.gathered(done)
    return Profile.merge(profiles[i] for i in sorted(profiles))


@contextmanager
def recording(pipe: Any) -> Iterator[Recorder]:
    """Watch the velocities of the pipeline's runs, from its own scheduler's step."""
    before, plain, recorder = pipe.scheduler, plain_scheduler(pipe), Recorder()
    watched = recording_scheduler(plain.__class__).from_config(plain.config)
    if hasattr(plain, "_shift"):
        watched._shift = plain._shift
    watched.recorder = recorder
    pipe.scheduler = watched
    try:
        yield recorder
    finally:
        pipe.scheduler = before


@functools.cache
def recording_scheduler(parent: type) -> Any:
    """`parent` with a `step` that also tells a recorder."""
    plain_step: Any = parent.step  # type: ignore[attr-defined]

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = plain_step(self, model_output, timestep, sample, *args, **kwargs)
        self.recorder.see(self, model_output)
        return result

    return type(f"Recording{parent.__name__}", (parent,), {"step": step, "recorder": Recorder()})


def _measure_run(
    pipe: Any, run: Run, call: dict[str, Any], prompts: Sequence[str] | None
) -> Profile:
    with recording(pipe) as recorder, torch.no_grad():
        pipe(**run_arguments(run, _latents_only(pipe, call)))
    if not recorder.trajectories:
        raise HostError(f"{type(pipe).__name__} never called its scheduler's step")
    v = recorder.trajectories[0].latest
    host = describe(
        pipe,
        plain_scheduler(pipe),
        call | settings(recorder.call),
        latent_shape=tuple(v.shape[1:]),
        dtype=str(v.dtype).removeprefix("torch."),
        prompts=None if prompts is None else fingerprint(prompts),
    )
    try:
        return Profile.merge(
            Profile.from_samples(walk.times, walk.magnitude, walk.direction, host, recorder.breaks)
            for walk in recorder.trajectories
        )
    except ProfileError as error:
        raise ProfileError(f"{run}: {error}") from error


def _latents_only(pipe: Any, call: dict[str, Any]) -> dict[str, Any]:
    """The call without the decoder's work, where the pipeline lets one ask for that."""
    accepts = "output_type" in inspect.signature(type(pipe).__call__).parameters
    return {**call, "output_type": "latent"} if accepts and "output_type" not in call else call
