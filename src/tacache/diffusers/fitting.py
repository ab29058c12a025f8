"""Fitted plans of a pipeline: its calls are held in their loops, and walk in lock-step."""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import diffusers
import numpy as np
import torch
from torch import Tensor

from tacache.diffusers.driving import DrivenRun, drive
from tacache.diffusers.fingerprint import describe, settings
from tacache.diffusers.finished import job_key
from tacache.diffusers.host import applied, plain_scheduler, without_plan
from tacache.diffusers.processes import Processes, Together
from tacache.diffusers.runs import Run, check_call_names, plan_runs, run_arguments
from tacache.errors import HostError
from tacache.fitting import check_budget, fit_budget, held_out_of, record
from tacache.lockstep import check_finite
from tacache.metrics import psnr
from tacache.plan import Plan
from tacache.prompts import as_prompts, fingerprint

Value = TypeVar("Value")


def fit_plan(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: int,
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    history: int = 4,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> Plan:
    """A plan for this budget, fitted on full-step runs of a pipeline, one per prompt and seed.

    `prompts` is a list or a file; None where the call passes `prompt_embeds` (then one run a seed).
    All other arguments go to the pipeline. Each prompt is a call of its own, so that they need not
    fit in one batch; under `torchrun` or `accelerate launch` they are shared out. See
    `tacache.fit_plan` for the fit itself.
    """
    return fit_plans(
        pipe,
        prompts,
        evaluations=[evaluations],
        num_inference_steps=num_inference_steps,
        seeds=seeds,
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
    history: int = 4,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> list[Plan]:
    """A plan per budget from full-step runs that are made once; `fit_plan` says more."""
    check_call_names(pipe, call)
    if "generator" in call:
        raise HostError("fit_plan makes the generators itself: give seeds=[...] instead")
    for name in ("num_images_per_prompt", "num_videos_per_prompt"):
        if call.get(name) not in (None, 1):
            raise HostError(f"a fit counts one sample a prompt and seed: give seeds, not {name}")
    _check_scheduler(pipe)
    texts = None if prompts is None else as_prompts(prompts)
    call = {"num_inference_steps": num_inference_steps, **call}
    jobs = plan_runs(texts, list(seeds) if seeds is not None else [0], 1)
    processes = Processes.current()
    show = progress and processes.rank == 0
    with _held(pipe, jobs, call, processes) as runs, torch.no_grad():
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
                # what is left for the search when the plan has been measured
                max_evaluations=max_evaluations - reference.held_out * budget if search else 0,
                resume=path,
                progress=show,
            )
            for budget in evaluations
        ]
        host = _described(pipe, runs, call, texts)
        plans = [plan.model_copy(update={"host": host}) for plan in plans]
        pictures = runs.finished(reference.states[-1], reference.held_out)
        return [_certified(pipe, plan, runs, pictures) for plan in plans]


class Failure(NamedTuple):
    """What a process sends in the place of its values when it cannot go on."""

    reason: str


class OtherProcessError(HostError):
    """Another process has failed and said so."""


class PipelineRuns:
    """Held calls of one pipeline, this process's share of them, as a fit sees them."""

    together = False

    def __init__(
        self,
        held: Sequence[DrivenRun],
        jobs: Sequence[Run],
        numbers: Sequence[int],
        call: dict[str, Any],
        group: Together,
    ) -> None:
        self.held, self.jobs, self.numbers = held, jobs, numbers
        self.call, self._group = call, group
        self.total = len(jobs)
        self.noise = torch.stack([run.noise for run in held])
        self.times, self.breaks = held[0].times, held[0].breaks
        self.job = ""

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One evaluation of each chosen call, one after the other."""
        return torch.stack([self._one(k, x[s], step) for s, k in enumerate(chosen)])

    def _one(self, k: int, x: Tensor, step: int) -> Tensor:
        try:
            v = self.held[k].evaluate(x, step)
        except HostError as error:
            raise HostError(f"{self.jobs[self.numbers[k]]}: {error}") from error
        check_finite(v, step, str(self.jobs[self.numbers[k]]))
        if not torch.equal(self.held[k].state, x.to(self.held[k].state.dtype)):
            raise HostError(
                "the pipeline edits its latents between steps (inpainting): a plan cannot be "
                "fitted to it; calibrate it and make one by a rule"
            )
        return v

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Everyone's values by the samples' numbers; if a process failed, its reason."""
        values: dict[int, Value] = {}
        for part in self._group.exchange(dict(mine)):
            if isinstance(part, Failure):
                raise OtherProcessError(f"another process failed: {part.reason}")
            values |= part
        return values

    def finished(self, results: Tensor, held_out: int) -> dict[int, Tensor]:
        """The pictures the pipeline makes of its held-out samples' full-step results."""
        pictures: dict[int, Tensor] = {}
        for k, i in enumerate(self.numbers):
            if i < held_out and self.call.get("output_type") != "latent":
                with _named(self.jobs[i]):
                    pictures[i] = _pixels(self.held[k].finish(results[k].to(self.noise.device)))
        return pictures


@contextmanager
def _held(
    pipe: Any, jobs: Sequence[Run], call: dict[str, Any], processes: Processes
) -> Iterator[PipelineRuns]:
    """The calls of this process, held at their first step; the others are told of a failure."""
    group = Together(processes.count)
    numbers = list(range(processes.rank, len(jobs), processes.count))
    try:
        if not numbers:
            raise HostError(
                f"{len(jobs)} prompts are too few for {processes.count} processes: give each one"
            )
        with ExitStack() as stack:
            held = [stack.enter_context(_driven(pipe, jobs[i], call)) for i in numbers]
            runs = PipelineRuns(held, jobs, numbers, call, group)
            _check_alike(runs)
            runs.job = job_key(pipe, plain_scheduler(pipe), jobs, call)
            yield runs
    except OtherProcessError:
        raise
    except Exception as error:
        group.exchange(Failure(f"process {processes.rank}: {error}"))
        raise


@contextmanager
def _driven(pipe: Any, job: Run, call: dict[str, Any]) -> Iterator[DrivenRun]:
    with ExitStack() as stack:
        try:
            run = stack.enter_context(drive(pipe, **_with_pixels(pipe, run_arguments(job, call))))
        except HostError as error:
            raise HostError(f"{job}: {error}") from error
        yield run


def _check_alike(runs: PipelineRuns) -> None:
    """All calls walk the same noise levels."""
    for run, number in zip(runs.held, runs.numbers, strict=True):
        if run.times != runs.times:
            raise HostError(
                f"{runs.jobs[number]} has other noise levels than {runs.jobs[runs.numbers[0]]}: "
                "fit prompts of one size and one number of steps together"
            )


def _check_scheduler(pipe: Any) -> None:
    scheduler = plain_scheduler(pipe)
    if not isinstance(scheduler, diffusers.FlowMatchEulerDiscreteScheduler):
        raise HostError(
            f"plans are fitted to Euler steps, and {type(scheduler).__name__} is another solver: "
            "give the pipeline a FlowMatchEulerDiscreteScheduler while fitting, or make the plan "
            "by a rule (calibrate, then make_plan)"
        )


def _described(
    pipe: Any, runs: PipelineRuns, call: dict[str, Any], texts: Sequence[str] | None
) -> Any:
    first = runs.held[0]
    return describe(
        pipe,
        plain_scheduler(pipe),
        call | settings(first.call),
        latent_shape=tuple(first.noise.shape[1:]),
        dtype=str(first.noise.dtype).removeprefix("torch."),
        prompts=None if texts is None else fingerprint(texts),
    )


def _certified(pipe: Any, plan: Plan, runs: PipelineRuns, pictures: Mapping[int, Tensor]) -> Plan:
    """The plan with the PSNR of what the pipeline makes of held-out samples when it follows it."""
    found, strength, call = {}, runs.held[0].call.get("strength"), runs.call
    if isinstance(strength, float | int) and strength < 1:  # the plan starts midway, see `apply`
        call = {**call, "strength": 1.0}
    else:
        strength = None
    for i, picture in pictures.items():
        following = applied(pipe, plan, strength=strength)
        with _named(runs.jobs[i]), without_plan(pipe), following, _quiet(pipe):
            made = _pixels(pipe(**_with_pixels(pipe, run_arguments(runs.jobs[i], call))))
        found[i] = float(psnr(picture, made).mean())
        if math.isnan(found[i]):
            raise HostError(f"{runs.jobs[i]}: the decoded pictures are not numbers")
    everyone = runs.gathered(found)
    assert plan.certificate is not None
    spent = plan.certificate.evaluations_spent + len(everyone) * plan.evaluations
    mean = min(sum(everyone.values()) / len(everyone), 999.0) if everyone else None
    certificate = plan.certificate.model_copy(update={"psnr": mean, "evaluations_spent": spent})
    return plan.model_copy(update={"certificate": certificate})


def _with_pixels(pipe: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The call with numbers as its output, where the pipeline lets one ask for that."""
    accepts = "output_type" in inspect.signature(type(pipe).__call__).parameters
    chosen = {"output_type": "np"} if accepts else {}
    return {**arguments, **chosen}


def _pixels(output: Any) -> Tensor:
    """Pictures or frames of a pipeline's output, (samples, ...)."""
    return torch.from_numpy(np.asarray(output[0], dtype=np.float32))


@contextmanager
def _named(job: Run) -> Iterator[None]:
    """What fails in the block says which prompt it was."""
    try:
        yield
    except Exception as error:
        raise HostError(f"{job}: {error}") from error


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
