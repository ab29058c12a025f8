"""A plan from kept samples: what it costs, whether they can be made again, and the fit itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tacache.errors import HostError
from tacache.fitting.budget_search import guess_for, most_tries
from tacache.fitting.fit_options import MAX_QUICK_EVALUATIONS, FitOptions
from tacache.fitting.full_runs import keep_runs
from tacache.fitting.quality_goal import QualityGoal
from tacache.fitting.search import MAX_SUBSETS, subsets
from tacache.hosts.base import Call, Host
from tacache.hosts.held_runs import fit_plans, job_of
from tacache.hosts.learning import RecordedSample
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.storage.signature import RunSignature

Budget = int | QualityGoal  # how often a run is evaluated, or what it is to reach with the fewest
FLOW_RUNS = 5  # full runs of a sample: more than its runs to the flow and those beside them take
SEARCHED_FITS = 20  # fits of all samples, more than a line search over anchors makes
# How far a repeated velocity may be off, over its norm: other batches round differently.
SAME = {torch.float32: 1e-3, torch.float64: 1e-3}
NEARLY_SAME = 3e-2  # in the half precisions


def cost_of(samples: Sequence[RecordedSample], run: RunSignature, budget: Budget) -> str:
    """Return what a fit on kept samples takes at most, told before it begins."""
    full = run.steps * len(samples)
    recorded = all(sample.states is not None for sample in samples)
    each = kept_options(budget, len(samples), run).max_evaluations - full
    tries = 1 if isinstance(budget, int) else _tries(budget, run)
    most = tries * each + (0 if recorded else full)
    seconds = most * max(sample.seconds for sample in samples)
    length = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        ("" if tries == 1 else f"At most {tries} budgets are tried, from the same full runs. ")
        + f"It takes at most {most} evaluations, as many as {most / run.steps:.0f} full runs: up "
        f"to {length} by the time that the recorded ones took."
    )


def _tries(goal: QualityGoal, run: RunSignature) -> int:
    """Return how many budgets a search for a quality tries at most."""
    least, most = run.parts, run.steps - 1
    return most_tries(least, most, guess_for(goal, run.steps, least, most))


def most_of(samples: int, steps: int, evaluations: int) -> int:
    """Return the evaluations that a fit without a search may spend, the full runs included."""
    least = samples * (steps + 2 * evaluations) + 10 * steps
    count = subsets(steps, evaluations)
    if count <= MAX_SUBSETS:  # all of them are tried
        return least + count * samples * evaluations
    return max(least, min(MAX_QUICK_EVALUATIONS, least + SEARCHED_FITS * samples * evaluations))


def kept_options(budget: Budget, samples: int, run: RunSignature) -> FitOptions:
    """Return what a fit to kept samples is asked for: a budget, or the fewest for a quality."""
    shared: Any = {"search": False, "keep_better": True, "progress": True}
    if isinstance(budget, int):
        most = most_of(samples, run.steps, budget)
        return FitOptions(evaluations=(budget,), max_evaluations=most, **shared)
    # The largest budget skips one step; runs that say where the flow leads come beside it.
    least = samples * 3 * run.steps + 10 * run.steps
    aiming = FLOW_RUNS * samples * run.steps if budget.target == "flow" else 0
    each = max(least, most_of(samples, run.steps, run.steps // 2)) + aiming
    return FitOptions(**asdict(budget), max_evaluations=each, **shared)


def fit_kept(
    host: Host,
    call: Call,
    run: RunSignature,
    budget: Budget,
    samples: Sequence[RecordedSample],
    resume: Path,
) -> list[Plan]:
    """Return plans fitted to kept samples, whose recorded full runs are not made again.

    It is one plan; for a quality, one of each number of evaluations that was tried.
    """
    if len({sample.noise.shape for sample in samples}) > 1:
        raise HostError("one call makes several runs, of other sizes: no plan is for all of them")
    seeds = list(range(len(samples)))
    resume = resume.with_name(f"{resume.name}.{len(samples)}")
    states = [sample.states for sample in samples if sample.states is not None]
    velocities = [sample.velocities for sample in samples if sample.velocities is not None]
    if len(states) == len(velocities) == len(samples):
        job = job_of(host, [Sample(None, seed) for seed in seeds], call)
        runs = torch.stack(states, dim=1), torch.stack(velocities, dim=1)
        keep_runs(resume, job, run.times, *runs)
    options = replace(kept_options(budget, len(samples), run), resume=resume)
    plans = fit_plans(host, None, call=call, options=options, seeds=seeds)
    return [_of_run(plan, run) for plan in plans]


def _of_run(plan: Plan, run: RunSignature) -> Plan:
    """Return a plan that says what run it is for, with the latents that the fit has seen."""
    latents = {"latent_shape": plan.origin.latent_shape, "dtype": plan.origin.dtype}
    return plan.model_copy(update={"origin": run.origin.model_copy(update=latents)})


def check_repeats(host: Host, call: Call, sample: RecordedSample) -> None:
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
