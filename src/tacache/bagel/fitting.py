"""Fitted plans of BAGEL: its steps are bound once for each prompt, and then walk in lock-step."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacache.bagel.finished import job_key
from tacache.bagel.host import Evaluate, applied, model_of, replaced, watching
from tacache.bagel.making import (
    Generate,
    Job,
    Maker,
    jobs_of,
    maker_of,
    pixels_of,
    quiet,
)
from tacache.bagel.runs import Run, describe
from tacache.errors import HostError, named
from tacache.fidelity import psnr
from tacache.fitting import check_budget, fit_budget
from tacache.fitting.full_runs import held_out_of, record
from tacache.fitting.samples import check_finite
from tacache.plan import LONGEST, Plan
from tacache.prompts import as_prompts, fingerprint
from tacache.work.progress import track

Value = TypeVar("Value")


def fit_plan(
    host: Any,
    prompts: str | Path | Iterable[str],
    *,
    evaluations: int,
    seeds: Sequence[int] | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    generate: Generate | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> Plan:
    """A plan for this budget, fitted on full-step runs of BAGEL, one per prompt and seed.

    `host`, `prompts`, `generate` and the other arguments are as for `calibrate`, with one image a
    call. See `tacache.fit_plan` for the fit itself.
    """
    return fit_plans(
        host,
        prompts,
        evaluations=[evaluations],
        seeds=seeds,
        history=history,
        max_evaluations=max_evaluations,
        search=search,
        generate=generate,
        resume=resume,
        progress=progress,
        **call,
    )[0]


def fit_plans(
    host: Any,
    prompts: str | Path | Iterable[str],
    *,
    evaluations: Sequence[int],
    seeds: Sequence[int] | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    generate: Generate | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> list[Plan]:
    """A plan per budget from full-step runs that are made once; `fit_plan` says more."""
    model, make = model_of(host), maker_of(host, generate, call)
    texts = as_prompts(prompts)
    jobs = jobs_of(texts, seeds)
    with quiet(model), torch.no_grad():
        runs = BagelRuns(model, make, jobs, progress)
        for budget in evaluations:
            measuring = held_out_of(runs.total) * budget
            check_budget(runs, budget, history, max_evaluations, measuring)
        path = None if resume is None else Path(resume)
        reference = record(runs, resume=path, progress=progress)
        dtype = str(runs.evaluated_dtype).removeprefix("torch.")
        facts = describe(model, runs.run, dtype=dtype, prompts=fingerprint(texts))
        pictures = runs.pictures(reference.states[-1], reference.held_out)
        plans = []
        for budget in evaluations:
            plan = fit_budget(
                runs,
                reference,
                budget,
                history=history,
                max_evaluations=max_evaluations,
                search=search,
                measuring=reference.held_out * budget,
                resume=path,
                progress=progress,
            )
            plans.append(runs.certified(plan.model_copy(update={"host": facts}), pictures))
        return plans


class Held:
    """One call's steps, bound but not evaluated: the velocity at any state and step."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.steps: list[Evaluate] = []
        self.noise: Tensor | None = None
        self._autocasts: list[dict[str, Any]] = []

    def start(self, run: Run) -> None:
        """The call's run begins; there is one, with one image."""
        if self.run is not None or len(run.lengths) != 1:
            raise HostError("a fit counts one sample a prompt and seed: make one image a call")
        self.run, self._autocasts = run, _autocasts()

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Nothing is evaluated yet: the state stays the noise."""
        self.noise = x
        self.steps.append(evaluate)
        return torch.zeros_like(x)

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """The guided velocity, under the autocast that the call was made with."""
        with ExitStack() as stack:
            for autocast in self._autocasts:
                stack.enter_context(torch.autocast(**autocast))
            return self.steps[step](x_t=x).to(x.device)


class BagelRuns:
    """Held calls of one model, as a fit sees them."""

    together = False

    def __init__(self, model: Any, make: Maker, jobs: Sequence[Job], progress: bool) -> None:
        self.model, self.make, self.jobs = model, make, jobs
        held = [_held(model, make, job) for job in track(jobs, "preparing", progress)]
        self.held, self.run = held, _common_run(held, jobs)
        self.noise = torch.stack([one.noise for one in held if one.noise is not None])
        self.times, self.breaks = self.run.times, self.run.breaks
        self.numbers: Sequence[int] = range(len(jobs))
        self.total, self.job = len(jobs), job_key(model, jobs, make.call)
        self.evaluated_dtype = self.noise.dtype

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One evaluation of each chosen call, one after the other."""
        found = []
        for s, k in enumerate(chosen):
            v = self.held[k].evaluate(x[s], step)
            check_finite(v, step, str(self.jobs[k]))
            found.append(v)
        self.evaluated_dtype = found[0].dtype
        return torch.stack(found)

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """All samples are here."""
        return dict(mine)

    def pictures(self, results: Tensor, held_out: int) -> dict[int, Tensor]:
        """What the host makes of its held-out samples' full-step latents, where that is pixels."""
        found = {}
        for i in range(held_out):
            latents = results[i].to(self.noise.device)
            with named(self.jobs[i]), replaced(self.model, generate_image=_giving(latents)):
                pixels = pixels_of(self.make(self.jobs[i]))
            if pixels is not None:
                found[i] = pixels
        return found

    def certified(self, plan: Plan, pictures: Mapping[int, Tensor]) -> Plan:
        """The plan with the PSNR of what the host makes of held-out samples when it follows it."""
        found = []
        for i, picture in pictures.items():
            with named(self.jobs[i]), applied(self.model, plan):
                made = pixels_of(self.make(self.jobs[i]))
            assert made is not None  # the same host made one of the full-step latents
            found.append(float(psnr(picture, made).mean()))
        if not found or plan.certificate is None:
            return plan
        changed = {
            "psnr": min(math.fsum(found) / len(found), 999.0),  # JSON has no infinity
            "evaluations_spent": plan.certificate.evaluations_spent + len(found) * plan.evaluations,
        }
        return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=changed)})


def _held(model: Any, make: Maker, job: Job) -> Held:
    held = Held()
    with named(job), watching(model, held):
        make(job)
    if held.run is None or len(held.steps) != len(held.run.times) - 1:
        raise HostError(f"{job}: generate_image of the model was not called, or left its loop")
    return held


def _common_run(held: Sequence[Held], jobs: Sequence[Job]) -> Run:
    first = held[0].run
    assert first is not None  # _held has made sure
    for one, job in zip(held, jobs, strict=True):
        if one.run != first:
            raise HostError(
                f"{job} runs with another size or other settings than {jobs[0]}: fit prompts of "
                "one size together"
            )
    return first


def _giving(latents: Tensor) -> Any:
    """A `generate_image` that is done at once."""
    return lambda *args, **kwargs: (latents,)


def _autocasts() -> list[dict[str, Any]]:
    """The autocasts in force here, as arguments to bring them back with."""
    return [
        {"device_type": kind, "dtype": torch.get_autocast_dtype(kind)}
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    ]
