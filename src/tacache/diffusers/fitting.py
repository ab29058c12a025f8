"""Fitted plans of a pipeline: its calls are held in their loops, and walk in lock-step."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache.diffusers.fingerprint import describe, jsonable, settings
from tacache.diffusers.finished import job_key
from tacache.diffusers.holding import Job, PipelineRuns, hold, pixels_of, with_pixels
from tacache.diffusers.host import applied, plain_scheduler, without_plan
from tacache.diffusers.mixing import Vary, call_of_run, check_vary, middle
from tacache.diffusers.runs import check_call_names, plan_runs
from tacache.errors import HostError, named
from tacache.fidelity import psnr
from tacache.fitting import check_budget, fit_budget
from tacache.fitting.full_runs import held_out_of, record
from tacache.plan import LONGEST, Plan
from tacache.profile import Origin
from tacache.prompts import as_prompts, fingerprint
from tacache.work.processes import Processes


def fit_plan(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: int,
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    vary: Vary | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> Plan:
    """A plan for this budget, fitted on full-step runs of a pipeline, one per prompt and seed.

    `prompts` is a list or a file; None where the call passes `prompt_embeds` (then one run a seed).
    All other arguments go to the pipeline. Each prompt is a call of its own, so that they need not
    fit in one batch; under `torchrun` or `accelerate launch` they are shared out. With
    `vary={"guidance_scale": [2.0, 3.0, 4.0]}` the runs take these values in turn, and the plan
    serves all of them. See `tacache.fit_plan` for the fit itself.
    """
    return fit_plans(
        pipe,
        prompts,
        evaluations=[evaluations],
        num_inference_steps=num_inference_steps,
        seeds=seeds,
        vary=vary,
        history=history,
        max_evaluations=max_evaluations,
        search=search,
        resume=resume,
        progress=progress,
        **call,
    )[0]


def fit_plans(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: Sequence[int],
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    vary: Vary | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> list[Plan]:
    """A plan per budget from full-step runs that are made once; `fit_plan` says more."""
    _check_call(pipe, call)
    _check_solver(pipe)
    texts = None if prompts is None else as_prompts(prompts)
    call, vary = {"num_inference_steps": num_inference_steps, **call}, vary or {}
    check_vary(pipe, vary, call)
    samples = plan_runs(texts, list(seeds) if seeds is not None else [0], 1)
    jobs = [Job(run, call_of_run(call, vary, i)) for i, run in enumerate(samples)]
    processes = Processes.current()
    show = progress and processes.rank == 0
    with hold(pipe, jobs, processes) as runs, torch.no_grad():
        runs.job = job_key(pipe, plain_scheduler(pipe), samples, {**call, **vary})
        for budget in evaluations:
            measuring = held_out_of(runs.total) * budget
            check_budget(runs, budget, history, max_evaluations, measuring)
        path = None if resume is None else share_of(Path(resume), processes)
        reference = record(runs, resume=path, progress=show)
        plans = [
            fit_budget(
                runs,
                reference,
                budget,
                history=history,
                max_evaluations=max_evaluations,
                search=search,
                measuring=reference.held_out * budget,
                resume=path,
                progress=show,
            )
            for budget in evaluations
        ]
        host = _described(pipe, runs, call, vary, texts)
        varied = {name: tuple(values) for name, values in jsonable(dict(vary)).items()} or None
        plans = [plan.model_copy(update={"host": host, "varied": varied}) for plan in plans]
        pictures = runs.finished(reference.states[-1], reference.held_out)
        return [_certified(pipe, plan, runs, pictures) for plan in plans]


def _check_call(pipe: Any, call: dict[str, Any]) -> None:
    check_call_names(pipe, call)
    if "generator" in call:
        raise HostError("fit_plan makes the generators itself: give seeds=[...] instead")
    for name in ("num_images_per_prompt", "num_videos_per_prompt"):
        if call.get(name) not in (None, 1):
            raise HostError(f"a fit counts one sample a prompt and seed: give seeds, not {name}")


def _check_solver(pipe: Any) -> None:
    """Least squares need a solver whose steps are affine in the velocity."""
    scheduler = plain_scheduler(pipe)
    if scheduler.config.get("thresholding"):
        raise HostError(
            f"{type(scheduler).__name__} clips what it predicts (thresholding=True), so where an "
            "interval leads is no sum of velocities and cannot be fitted: set thresholding=False, "
            "or make the plan by a rule (calibrate, then make_plan)"
        )


def _described(
    pipe: Any, runs: PipelineRuns, call: dict[str, Any], vary: Vary, texts: Sequence[str] | None
) -> Origin:
    first = runs.held[0]
    return describe(
        pipe,
        plain_scheduler(pipe),
        call | settings(first.call) | middle(vary),
        latent_shape=tuple(first.noise.shape[1:]),
        dtype=str(first.noise.dtype).removeprefix("torch."),
        prompts=None if texts is None else fingerprint(texts),
    )


def _certified(pipe: Any, plan: Plan, runs: PipelineRuns, pictures: Mapping[int, Tensor]) -> Plan:
    """The plan with the PSNR of what the pipeline makes of held-out samples when it follows it."""
    found, strength, start = {}, runs.held[0].call.get("strength"), {}
    if isinstance(strength, float | int) and strength < 1:  # the plan starts midway, see `apply`
        start = {"strength": 1.0}
    else:
        strength = None
    for i, picture in pictures.items():
        following = applied(pipe, plan, strength=strength)
        with named(runs.jobs[i]), without_plan(pipe), following, _quiet(pipe):
            made = pixels_of(pipe(**with_pixels(pipe, {**runs.jobs[i].arguments, **start})))
        found[i] = float(psnr(picture, made).mean())
        if math.isnan(found[i]):
            raise HostError(f"{runs.jobs[i]}: the decoded pictures are not numbers")
    everyone = runs.gathered(found)
    assert plan.certificate is not None
    spent = plan.certificate.evaluations_spent + len(everyone) * plan.evaluations
    mean = min(sum(everyone.values()) / len(everyone), 999.0) if everyone else None
    certificate = plan.certificate.model_copy(update={"psnr": mean, "evaluations_spent": spent})
    return plan.model_copy(update={"certificate": certificate})


@contextmanager
def _quiet(pipe: Any) -> Iterator[None]:
    """No progress bar of the pipeline's own."""
    before = getattr(pipe, "_progress_bar_config", {})
    pipe._progress_bar_config = {**before, "disable": True}
    try:
        yield
    finally:
        pipe._progress_bar_config = before


def share_of(path: Path, processes: Processes) -> Path:
    """A file of this process's own."""
    return path if processes.count == 1 else path.with_name(f"{path.name}.{processes.rank}")
