"""A plan from kept samples: what it costs, whether they can be made again, and the fit itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from tacache.errors import HostError
from tacache.fitting import FAST
from tacache.fitting.full_runs import keep_runs
from tacache.host.fitting import fit_plans, job_of
from tacache.host.interface import Call, Host
from tacache.host.learning import Kept
from tacache.host.settings import Setting
from tacache.plan import Plan
from tacache.prompts import Sample

TRIES = 20  # fits of all samples, more than a line search over anchors makes
# How far a repeated velocity may be off, over its norm: other batches round differently.
SAME = {torch.float32: 1e-3, torch.float64: 1e-3}
NEARLY_SAME = 3e-2  # in the half precisions


def cost_of(samples: Sequence[Kept], evaluations: int) -> str:
    """What a fit on kept samples takes at most, told before it begins."""
    steps, recorded = len(samples[0].times) - 1, sum(one.states is not None for one in samples)
    most = most_of(len(samples), steps, evaluations)
    most -= steps * len(samples) if recorded == len(samples) else 0
    seconds = most * max(one.seconds for one in samples)
    length = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        f"It takes at most {most} evaluations, as many as {most / steps:.0f} full runs: up to "
        f"{length} by the time that the recorded ones took."
    )


def most_of(samples: int, steps: int, evaluations: int) -> int:
    """The evaluations that a fit without a search may spend, the full runs included."""
    least = samples * (steps + 2 * evaluations) + 10 * steps
    return max(least, min(FAST, least + TRIES * samples * evaluations))


def fit_kept(
    host: Host,
    call: Call,
    run: Setting,
    evaluations: int,
    samples: Sequence[Kept],
    resume: Path,
) -> Plan:
    """A plan fitted to kept samples, whose recorded full runs are not made again."""
    seeds = list(range(len(samples)))
    resume = resume.with_name(f"{resume.name}.{len(samples)}")
    states = [one.states for one in samples if one.states is not None]
    velocities = [one.velocities for one in samples if one.velocities is not None]
    if len(states) == len(velocities) == len(samples):
        job = job_of(host, [Sample(None, seed) for seed in seeds], call)
        runs = torch.stack(states, dim=1), torch.stack(velocities, dim=1)
        keep_runs(resume, job, run.times, *runs)
    plan = fit_plans(
        host,
        None,
        evaluations=[evaluations],
        call=call,
        seeds=seeds,
        search=False,
        max_evaluations=most_of(len(samples), run.steps, evaluations),
        resume=resume,
        progress=True,
    )[0]
    latents = {"latent_shape": plan.host.latent_shape, "dtype": plan.host.dtype}
    return plan.model_copy(update={"host": run.origin.model_copy(update=latents)})


def check_repeats(host: Host, call: Call, sample: Kept) -> None:
    """Refuse a kept call, the host's first, that does not give the same velocities again."""
    with torch.no_grad(), host.quiet(), host.open(Sample(None, 0), call) as run:
        if run.times != sample.times or not torch.equal(run.noise.cpu(), sample.noise):
            raise HostError("made again, they start from other noise or on another grid")
        for step, (x, before) in zip((0, len(run.times) - 2), sample.ends, strict=True):
            v = run.evaluate(x.to(run.noise.device), step).cpu().float()
            off = float((v - before.float()).norm() / before.float().norm().clamp(min=1e-12))
            if off > SAME.get(before.dtype, NEARLY_SAME):
                raise HostError(
                    f"made again, they have other velocities at step {step} (by {off:.1%}): an "
                    "argument, a callback or a hook changes them in a way that cannot be kept"
                )


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Leave torch's generators as they were: the call that waits goes on drawing from them."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng([torch.cuda.current_device()] if started else []):
        yield
