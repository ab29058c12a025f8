"""Calibration on BAGEL: full-step runs, seen from inside its loop."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache.bagel.finished import job_key
from tacache.bagel.host import Evaluate, check_taylorseer, model_of, watching
from tacache.bagel.making import Generate, Job, Maker, jobs_of, maker_of, quiet
from tacache.bagel.runs import Run, describe, images_of
from tacache.calibration import measure
from tacache.errors import HostError, ProfileError
from tacache.profile import Profile
from tacache.prompts import as_prompts, fingerprint
from tacache.storage.finished import FinishedRuns
from tacache.work.progress import track


class Recorder:
    """The velocities of each run while the model makes full steps."""

    def __init__(self) -> None:
        self.runs: list[tuple[Run, list[Tensor]]] = []

    def start(self, run: Run) -> None:
        """A run begins."""
        if not run.alike:
            raise HostError("calibrate images of one size together: this run packs several sizes")
        self.runs.append((run, []))

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """The model's own, of which a copy is kept with its images along dim 0."""
        v = evaluate()
        run, velocities = self.runs[-1]
        velocities.append(torch.stack(images_of(v, run)))
        return v


def calibrate(
    host: Any,
    prompts: str | Path | Iterable[str],
    *,
    seeds: Sequence[int] | None = None,
    generate: Generate | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> Profile:
    """The profile of full-step runs of BAGEL, one per prompt and seed.

    `host` is an InterleaveInferencer, called with each prompt and the other arguments; or a Bagel
    with `generate(prompt, **call)`, your own function that calls it, with one packed image or
    several. `prompts` is a list or a file. `resume` names a file that keeps finished runs, so that
    a killed calibration goes on where it stopped.
    """
    model, make = model_of(host), maker_of(host, generate, call)
    check_taylorseer(model)  # refuse before the first long run
    texts = as_prompts(prompts)
    jobs = jobs_of(texts, seeds)
    finished = FinishedRuns(resume, job_key(model, jobs, call))
    done = finished.load()
    with quiet(model):
        for i in track(range(len(jobs)), "calibrating", progress):
            if i not in done:
                done[i] = _measured(model, make, jobs[i], fingerprint(texts))
                finished.add(i, done[i])
    return Profile.merge(done[i] for i in sorted(done))


def _measured(model: Any, make: Maker, job: Job, prompts: str) -> Profile:
    recorder = Recorder()
    with watching(model, recorder):
        make(job)
    if not recorder.runs:
        raise HostError(f"{job}: generate_image of the model was never called")
    try:
        return Profile.merge(_profile(model, run, vs, prompts) for run, vs in recorder.runs)
    except ProfileError as error:
        raise ProfileError(f"{job}: {error}") from error


def _profile(model: Any, run: Run, velocities: Sequence[Tensor], prompts: str) -> Profile:
    dtype = str(velocities[0].dtype).removeprefix("torch.")
    host = describe(model, run, dtype=dtype, prompts=prompts)
    return measure(velocities, run.times, host, run.breaks)
