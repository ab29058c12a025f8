"""The reference of a fit: full-step runs of its samples, and how errors made on the way grow."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from tacache.decomposition import norm
from tacache.errors import PlanError
from tacache.fitting.anchors import growth_between, inner_products, local_errors, pooled
from tacache.fitting.flow import Aim, Target, aim_of, check_same_run, finest_of, states_at
from tacache.fitting.lockstep import Reference
from tacache.fitting.samples import Runs
from tacache.fitting.walking import EulerWalk, Walk, walk_of
from tacache.grid import break_steps
from tacache.storage.tensors import load_values, save_values
from tacache.work.progress import track

PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 4  # where, and on how many samples, growth is measured
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long
KEEP_EVERY = 10  # steps


def record(
    runs: Runs,
    *,
    target: Target = "run",
    reference_steps: int | None = None,
    resume: Path | None = None,
    progress: bool = False,
) -> Reference:
    """Run all samples with full steps, and measure how errors made on the way grow.

    With the target "flow", the states to fit to are those of the flow, from a second run of
    `reference_steps`. `resume` names a file that keeps the runs as far as they are.
    """
    steps = len(runs.times) - 1
    recorded, walked = walked_in_full(runs, resume=resume, progress=progress)
    aim = None
    if target == "flow":
        aim = aimed_at_flow(runs, recorded, reference_steps, resume, progress)
    grams = runs.gathered({i: inner_products(walked[:, k]) for k, i in enumerate(runs.numbers)})
    held_out = held_out_of(runs.total)
    kept = [grams[i] for i in sorted(grams) if i >= held_out]
    parts = break_steps(runs.times, runs.breaks)
    return Reference(
        states=recorded if aim is None else aim.states,
        errors=local_errors(pooled(kept), runs.times, parts),
        growth=_growth(runs, recorded, walked, progress),
        held_out=held_out,
        spent=runs.total * steps + probe_cost(runs) + flow_cost(runs, target, reference_steps),
        run_ends=recorded[-1],
        euler={} if aim is None else aim.euler,
        flow_floor=0.0 if aim is None else aim.floor,
    )


def walked_in_full(
    runs: Runs,
    *,
    by_euler: bool = False,
    title: str = "full steps",
    resume: Path | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """All states and velocities of the samples' full runs, by the host's solver or by Euler's."""
    steps, everyone = len(runs.times) - 1, range(len(runs.noise))
    states, velocities = _kept(resume, runs)
    walk = EulerWalk(runs.times) if by_euler else retraced(runs, everyone, states, velocities)
    x = states[-1].to(runs.noise.device)
    for n in track(range(len(velocities), steps), title, progress):
        v = runs.evaluate(x, n, everyone)
        x = walk.move(x, v, n, n + 1)
        velocities.append(v.cpu())
        states.append(x.cpu())
        if resume and (len(velocities) % KEEP_EVERY == 0 or len(velocities) == steps):
            walked = torch.stack(states), torch.stack(velocities)
            keep_runs(resume, runs.job, runs.times, *walked)
    return torch.stack(states), torch.stack(velocities)


def aimed_at_flow(
    runs: Runs,
    states: Tensor,
    reference_steps: int | None,
    resume: Path | None,
    progress: bool,
) -> Aim:
    """The states of the flow at the run's levels, and how far Euler runs end from them.

    Euler runs of as many steps as the run and of `reference_steps` are extrapolated. A third one,
    of half the steps and of held-out samples alone, says whether the error falls as Euler's does.
    """
    steps, held_out = len(runs.times) - 1, held_out_of(runs.total)
    if walk_of(runs, runs.times, []).remembers:  # the run's own solver is not Euler's
        states, _ = walked_in_full(
            runs, by_euler=True, title="Euler steps", resume=resume and beside(resume, "euler"),
            progress=progress,
        )  # fmt: skip
    with runs.on_steps(finest_of(steps, reference_steps)) as finer:
        check_same_run(runs, finer)
        found = walked_in_full(
            finer, by_euler=True, title="finer steps", resume=resume and beside(resume, "finer"),
            progress=progress,
        )  # fmt: skip
    fine = states_at(runs.times, finer.times, *found, runs.breaks)
    judges = [k for k, i in enumerate(runs.numbers) if i < held_out]
    halves = _halved(runs, judges) if steps % 2 == 0 else None
    return aim_of(runs, states, fine, len(finer.times) - 1, halves, held_out)


def _halved(runs: Runs, chosen: Sequence[int]) -> Tensor:
    """The ends of the chosen samples' Euler runs with half the steps."""
    with runs.on_steps((len(runs.times) - 1) // 2) as coarser:
        x, walk = coarser.noise[list(chosen)], EulerWalk(coarser.times)
        for n in range(len(coarser.times) - 1 if chosen else 0):
            x = walk.move(x, coarser.evaluate(x, n, chosen), n, n + 1)
    return x.cpu()


def beside(resume: Path, what: str) -> Path:
    """The file that keeps another run of a fit, beside that of its full runs."""
    return resume.with_name(f"{resume.name}.{what}")


def flow_cost(runs: Runs, target: Target, reference_steps: int | None) -> int:
    """Evaluations that the states of the flow take, beside the full runs."""
    if target == "run":
        return 0
    steps = len(runs.times) - 1
    again = steps if walk_of(runs, runs.times, []).remembers else 0
    halves = held_out_of(runs.total) * (steps // 2) if steps % 2 == 0 else 0
    return runs.total * (again + finest_of(steps, reference_steps)) + halves


def held_out_of(total: int) -> int:
    """How many samples judge a fit: a quarter, at least one."""
    return max(1, total // 4)


def _kept(path: Path | None, runs: Runs) -> tuple[list[Tensor], list[Tensor]]:
    """States and velocities of a run that was stopped; those of other samples are an error."""
    start = runs.noise.cpu()
    if path is None or not path.exists():
        return [start], []
    try:
        found = load_values(path)
        same_job = found["times"] == list(runs.times) and found["job"] == runs.job
        states, velocities = list(found["states"]), list(found["velocities"])
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


def _growth(runs: Runs, states: Tensor, velocities: Tensor, progress: bool) -> list[float]:
    """How errors grow: at a few steps, make the one that reuse makes, run on, and compare."""
    steps, found = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            walk = retraced(runs, chosen, states, velocities[: _probed_from(steps, n)])
            on_device = states[:, chosen].to(runs.noise.device)
            error, result = _probe(runs, walk, on_device, n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        found.append(math.exp(fmean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), found)


def _probe(
    runs: Runs, walk: Walk, states: Tensor, n: int, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = _probed_from(len(times) - 1, n)
    v = (states[before] - states[before + 1]) / (times[before] - times[before + 1])
    if before == n - 1:  # one step makes no error: go a little too far
        v = 1.1 * v
    x = walk.move(states[before], v, before, n)
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = walk.move(x, runs.evaluate(x, i, chosen), i, i + 1)
    return error, norm(x - states[-1]) + tiny


def retraced(
    runs: Runs,
    chosen: Sequence[int],
    states: Sequence[Tensor] | Tensor,
    velocities: Sequence[Tensor] | Tensor,
) -> Walk:
    """A walk of the chosen samples that stands where their full steps so far have led."""
    walk, device, rows = walk_of(runs, runs.times, chosen), runs.noise.device, list(chosen)
    for n in range(len(velocities) if walk.remembers else 0):
        walk.move(states[n][rows].to(device), velocities[n][rows].to(device), n, n + 1)
    return walk


def _probed_from(steps: int, n: int) -> int:
    """The step whose velocity is reused up to step n."""
    return max(0, n - max(1, round(PROBE_SKIP * steps)))


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def probe_cost(runs: Runs) -> int:
    """Evaluations that measuring growth takes."""
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))
