"""A pipeline of diffusers as a host, and calibrate and fit_plan on it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
from torch import Tensor

from tacache import host
from tacache.diffusers.calls import midway_strength
from tacache.diffusers.driving import DrivenRun, drive
from tacache.diffusers.fingerprint import describe, has_negative, settings
from tacache.diffusers.grids import on_grid
from tacache.diffusers.host import applied, check_finished, plain_scheduler, without_plan
from tacache.diffusers.recording import recording
from tacache.diffusers.runs import check_call_names, giving, run_arguments
from tacache.diffusers.solving import EulerSteps, SolverWalk
from tacache.errors import HostError
from tacache.fitting.flow import Target
from tacache.fitting.walking import Walk
from tacache.grid import as_times
from tacache.host import Call, Pixels
from tacache.plan import LONGEST, Plan
from tacache.profile import Origin, Profile
from tacache.prompts import Sample
from tacache.work.processes import Processes


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
    """Measure a profile on full-step runs of a pipeline, one per prompt and seed.

    `prompts` is a list or a file; None where the call passes `prompt_embeds` (then one run a seed).
    All other arguments go to the pipeline; latents are not decoded. `resume` names a file that
    keeps finished runs, so that a killed calibration goes on where it stopped. Under `torchrun` or
    `accelerate launch` the runs are shared out, and every process gets the same profile.
    """
    return host.calibrate(
        PipelineHost(pipe),
        prompts,
        call={"num_inference_steps": num_inference_steps, **call},
        seeds=seeds,
        batch_size=batch_size,
        resume=resume,
        progress=progress,
    )


def fit_plan(
    pipe: Any, prompts: str | Path | Iterable[str] | None, *, evaluations: int, **options: Any
) -> Plan:
    """Fit a plan with this many evaluations to full-step runs, one per prompt and seed.

    `prompts` is a list or a file; None where the call passes `prompt_embeds` (then one run a seed).
    Options are those of `fit_plans`; all others go to the pipeline. Each prompt is a call of its
    own, so that they need not fit in one batch; under `torchrun` or `accelerate launch` they are
    shared out. See `tacache.fit_plan` for the fit itself.
    """
    return fit_plans(pipe, prompts, evaluations=[evaluations], **options)[0]


def fit_plans(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: Sequence[int],
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    target: Target = "run",
    reference_steps: int | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> list[Plan]:
    """Fit a plan for each budget; the full-step runs are made once. `fit_plan` says more."""
    return host.fit_plans(
        PipelineHost(pipe),
        prompts,
        evaluations=evaluations,
        call={"num_inference_steps": num_inference_steps, **call},
        seeds=seeds,
        target=target,
        reference_steps=reference_steps,
        history=history,
        max_evaluations=max_evaluations,
        search=search,
        resume=resume,
        progress=progress,
    )


class PipelineRun:
    """A pipeline's call, held in its loop (`tacache.host.OpenRun`)."""

    settings: object = None  # levels and size say all that runs of a fit must share

    def __init__(
        self, pipe: Any, driven: DrivenRun, call: Call, times: tuple[float, ...] | None
    ) -> None:
        self._pipe, self._call, self.driven = pipe, call, driven
        self.times, self.breaks = times or driven.times, driven.breaks

    @property
    def noise(self) -> Tensor:
        """The latents it starts from."""
        return self.driven.noise

    @property
    def state(self) -> Tensor:
        """The latents of the last evaluation, as the model saw them."""
        return self.driven.state

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """The guided velocity, by a turn of the pipeline's own loop."""
        return self.driven.evaluate(x, step)

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """A pipeline has velocities at its own steps."""
        return self.driven.velocity(x, t)

    @property
    def grid(self) -> tuple[float, ...]:
        """The levels of its steps: a pipeline is evaluated nowhere else."""
        return self.times

    @property
    def guidance(self) -> Callable[[float], object]:
        """All evaluations are taken to cost the same."""
        return lambda t: None

    def finish(self, x: Tensor) -> Pixels | None:
        """What the pipeline makes of the last latents; None where it was asked for latents."""
        if self.driven.call.get("output_type") == "latent":
            return None
        return pixels_of(self.driven.finish(x))

    def origin(self) -> Origin:
        """The pipeline, with what its call was really made with."""
        noise = self.noise
        return describe(
            self._pipe,
            plain_scheduler(self._pipe),
            self._call | settings(self.driven.call),
            latent_shape=tuple(noise.shape[1:]),
            dtype=str(noise.dtype).removeprefix("torch."),
            negative=has_negative(self.driven.call),
        )


class PipelineHost:
    """A pipeline of diffusers (`tacache.host.Host`)."""

    any_time = False

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse foreign arguments, a scheduler that carries no plan, and what cannot be fitted."""
        check_call_names(self.pipe, call)
        if "generator" in call:
            raise HostError("seeds make the generators: give seeds=[...] in place of generator")
        scheduler = plain_scheduler(self.pipe)
        if not fitting:
            return
        for name in ("num_images_per_prompt", "num_videos_per_prompt"):
            if call.get(name) not in (None, 1):
                raise HostError(
                    f"a fit counts one sample a prompt and seed: give seeds, not {name}"
                )
        if scheduler.config.get("thresholding"):
            raise HostError(
                f"{type(scheduler).__name__} clips what it predicts (thresholding=True), so where "
                "an interval leads is no sum of velocities and cannot be fitted: set "
                "thresholding=False, or make the plan by a rule (calibrate, then make_plan)"
            )

    def arguments(self, sample: Sample, call: Call) -> Call:
        """What the pipeline is called with for one sample."""
        return run_arguments([sample], call)

    @property
    def family(self) -> str:
        """The pipeline's class."""
        return type(self.pipe).__name__

    def processes(self) -> Processes:
        """Those of the launcher."""
        return Processes.current()

    def identity(self, call: Call) -> object:
        """The pipeline, its scheduler and arguments, and its dtype."""
        origin = describe(self.pipe, plain_scheduler(self.pipe), call)
        return [origin.model_dump(mode="json"), str(getattr(self.pipe, "dtype", None))]

    def quiet(self) -> AbstractContextManager[None]:
        """No progress bar of the pipeline's own."""
        return self._bars(disable=True)

    @contextmanager
    def _bars(self, **options: Any) -> Iterator[None]:
        """The pipeline's own progress bars with these options."""
        before = getattr(self.pipe, "_progress_bar_config", {})
        self.pipe._progress_bar_config = {**before, **options}
        try:
            yield
        finally:
            self.pipe._progress_bar_config = before

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """The profile of one call, whose latents are not decoded."""
        asked = call if "output_type" in call else giving(self.pipe, "latent", call)
        with recording(self.pipe) as seen:
            self.pipe(**run_arguments(samples, asked))
        if not seen.walks or seen.walks[0].latest is None:
            raise HostError(f"{type(self.pipe).__name__} never called its scheduler's step")
        v = seen.walks[0].latest
        origin = describe(
            self.pipe,
            plain_scheduler(self.pipe),
            call | settings(seen.call),
            latent_shape=tuple(v.shape[1:]),
            dtype=str(v.dtype).removeprefix("torch."),
            negative=has_negative(seen.call),
        )
        return Profile.merge(walk.profile(origin, seen.breaks) for walk in seen.walks)

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[PipelineRun]:
        """One call, held in its loop, on the pipeline's own grid or on these times."""
        pipe, grid = self.pipe, None if times is None else as_times(times)
        if grid is not None:
            pipe, call = on_grid(pipe, grid), self.with_steps(call, len(grid) - 1)
        arguments = self.arguments(sample, call)
        if call.get("output_type") != "latent":
            arguments = giving(pipe, "np", arguments)
        with drive(pipe, **arguments) as driven:
            yield PipelineRun(self.pipe, driven, call, grid)

    def walk(self, runs: Sequence[PipelineRun], times: tuple[float, ...]) -> Walk:
        """By the pipeline's own solver; Euler's takes an interval in one step."""
        if isinstance(plain_scheduler(self.pipe), diffusers.FlowMatchEulerDiscreteScheduler):
            return EulerSteps(times)
        return SolverWalk([run.driven.solver() for run in runs], times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """A plan that starts midway takes the call's strength, which is then called with 1.0."""
        strength = midway_strength(self.pipe, call)
        if plan is None:
            yield call
            return
        label = f"{plan.evaluations} of {plan.steps} steps"
        with self._bars(desc=label), applied(self.pipe, plan, strength=strength):
            yield call if strength is None else {**call, "strength": 1.0}

    @contextmanager
    def full(self) -> Iterator[None]:
        """The pipeline with its own scheduler."""
        with self._bars(desc="full steps"), without_plan(self.pipe):
            yield

    @property
    def run_plan(self) -> Plan | None:
        """The plan that the scheduler took the latest call by."""
        followed: Plan | None = getattr(self.pipe.scheduler, "run_plan", None)
        return followed

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """The picture or clip of a plain call."""
        check_call_names(self.pipe, call)
        made = self.pipe(**giving(self.pipe, "np", self.arguments(sample, call)))
        check_finished(self.pipe)
        return pixels_of(made)

    def with_steps(self, call: Call, steps: int) -> Call:
        """The call with so many inference steps."""
        return {**call, "num_inference_steps": steps}


def pixels_of(output: Any) -> Pixels:
    """The first picture or clip of a pipeline's output."""
    return np.asarray(output[0][0], dtype=np.float32)
