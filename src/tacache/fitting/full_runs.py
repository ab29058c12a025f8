"""Full-step runs of a fit's samples, kept in a file as far as they are."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tacache.errors import PlanError
from tacache.fitting.integrators import Moves
from tacache.fitting.samples import FitSamples
from tacache.storage.tensors import load_values, save_values
from tacache.tasu import working_dtype
from tacache.work.progress import track

KEEP_EVERY = 10  # steps


def walked_in_full(
    runs: FitSamples,
    integrator: Moves | None = None,
    *,
    title: str = "full steps",
    resume: Path | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return all states and velocities of the samples' full runs, by the host's solver or another.

    By another they are not rounded to the model's precision, in which the model alone sees them.
    """
    steps, everyone = len(runs.times) - 1, range(len(runs.noise))
    exact = None if integrator is None else working_dtype(runs.noise)
    start = runs.noise if exact is None else runs.noise.to(exact)
    states, velocities = _kept(resume, runs, start.cpu())
    integrator = retraced(runs, everyone, states, velocities, integrator)
    x = states[-1].to(runs.noise.device)
    for n in track(range(len(velocities), steps), title, progress):
        if exact is None:
            v = runs.evaluate(x, n, everyone)
        else:
            v = runs.evaluate(x.to(runs.noise.dtype), n, everyone).to(exact)
        x = integrator.move(x, v, n, n + 1)
        velocities.append(v.cpu())
        states.append(x.cpu())
        if resume and (len(velocities) % KEEP_EVERY == 0 or len(velocities) == steps):
            walked = torch.stack(states), torch.stack(velocities)
            keep_runs(resume, runs.job, runs.times, *walked)
    return torch.stack(states), torch.stack(velocities)


def beside(resume: Path, what: str) -> Path:
    """Return the file that keeps another run of a fit, beside that of its full runs."""
    return resume.with_name(f"{resume.name}.{what}")


def held_out_of(total: int) -> int:
    """Return how many samples judge a fit: a quarter, at least one."""
    return max(1, total // 4)


def _kept(path: Path | None, runs: FitSamples, start: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return states and velocities of a stopped run; those of other samples are an error."""
    if path is None or not path.exists():
        return [start], []
    try:
        saved = load_values(path)
        same_job = saved["times"] == list(runs.times) and saved["job"] == runs.job
        states, velocities = list(saved["states"]), list(saved["velocities"])
        same_job = same_job and torch.equal(states[0], start)
    except Exception as error:  # what unpickling raises on a foreign or damaged file is anything
        raise PlanError(
            f"{path} holds no runs of a fit, is damaged, or an earlier version wrote it: delete it"
        ) from error
    if not same_job:
        raise PlanError(f"{path} holds the runs of another fit: delete it, or name another file")
    shapes = {tuple(tensor.shape) for tensor in (*states, *velocities)}
    if len(states) != len(velocities) + 1 or shapes != {tuple(start.shape)}:
        raise PlanError(f"{path} is damaged: delete it")
    return states, velocities


def keep_runs(
    path: Path, job: str, times: Sequence[float], states: Tensor, velocities: Tensor
) -> None:
    """Write full runs as far as they are, in the place of what was kept before."""
    walked = {"states": states, "velocities": velocities}
    save_values(path, {"job": job, "times": list(times), **walked})


def retraced(
    runs: FitSamples,
    chosen: Sequence[int],
    states: Sequence[Tensor] | Tensor,
    velocities: Sequence[Tensor] | Tensor,
    integrator: Moves | None = None,
) -> Moves:
    """Return an integrator of the chosen samples that stands where their full steps have led."""
    integrator = integrator or runs.integrator(chosen)
    device, rows = runs.noise.device, list(chosen)
    for n in range(len(velocities) if integrator.remembers else 0):
        integrator.move(states[n][rows].to(device), velocities[n][rows].to(device), n, n + 1)
    return integrator
