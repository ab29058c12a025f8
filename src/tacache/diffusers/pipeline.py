"""A pipeline of diffusers as a host, and calibrate and fit_plan on it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from tacache import hosts
from tacache.diffusers.applying import applied, check_finished, plain_scheduler, without_plan
from tacache.diffusers.calls import (
    check_call_names,
    giving,
    midway_strength,
    pixels_of,
    run_arguments,
    sounds_of,
)
from tacache.diffusers.fingerprint import describe, has_negative, settings
from tacache.diffusers.recording import recording
from tacache.diffusers.solving import DiffusersEuler, SolverIntegrator
from tacache.diffusers.stepping import euler_factor
from tacache.diffusers.trajectory import PipelineTrajectory, held_call
from tacache.errors import HostError
from tacache.fitting import chosen_plan
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import Integrator
from tacache.fitting.latents import JointEuler
from tacache.grid import as_times
from tacache.hosts import Call, Pixels
from tacache.plan import Plan
from tacache.profile import Profile
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

    Under `torchrun` or `accelerate launch` the runs are shared out, and every process gets the same
    profile.

    Args:
        pipe: A flow pipeline of diffusers.
        prompts: A list or a file of prompts; None where the call passes `prompt_embeds`, which
            makes one run a seed.
        num_inference_steps: The steps of each run.
        seeds: The seeds of the runs; 0 unless told.
        batch_size: How many prompts go into one call.
        resume: A file that keeps finished runs, so that a killed calibration goes on.
        progress: Whether a bar is shown.
        call: All other arguments go to the pipeline; latents are not decoded.

    Returns:
        The profile, from which `make_plan` makes plans.

    Raises:
        HostError: The pipeline or a call cannot be measured; the message says why.

    """
    return hosts.calibrate(
        PipelineHost(pipe),
        prompts,
        call={"num_inference_steps": num_inference_steps, **call},
        seeds=seeds,
        batch_size=batch_size,
        resume=resume,
        progress=progress,
    )


def fit_plan(
    pipe: Any,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: int | None = None,
    num_inference_steps: int = 50,
    seeds: Sequence[int] | None = None,
    **keywords: Any,
) -> Plan:
    """Fit a plan to full-step runs, one per prompt and seed.

    It has so many evaluations or, with `like_steps=50` or `min_psnr=35`, the fewest that are as
    near to the flow as 50 Euler steps, or whose pictures have this PSNR to those of the full run.
    Each prompt is a call of its own, so that they need not fit in one batch; under `torchrun` or
    `accelerate launch` they are shared out. See `tacache.fit_plan` for the fit itself.

    Args:
        pipe: A flow pipeline of diffusers.
        prompts: A list or a file of prompts; None where the call passes `prompt_embeds`, which
            makes one run a seed.
        evaluations: How often the model is evaluated under the plan.
        num_inference_steps: The steps of each full run.
        seeds: The seeds of the runs; 0 unless told.
        keywords: The fields of `tacache.fitting.fit_options.FitOptions`, such as `like_steps` and
            `min_psnr`; all others go to the pipeline.

    Returns:
        The plan, with the certificate of its held-out samples.

    Raises:
        HostError: The pipeline or a call cannot be fitted; the message says why.
        PlanError: No budget reaches the quality that is asked for.

    """
    options, call = FitOptions.split({**keywords, "evaluations": evaluations})
    call = {"num_inference_steps": num_inference_steps, **call}
    plans = hosts.fit_plans(PipelineHost(pipe), prompts, call=call, options=options, seeds=seeds)
    return chosen_plan(plans, options)


class PipelineHost:
    """A pipeline of diffusers (`tacache.hosts.Host`)."""

    any_time = False
    sounds: Mapping[str, Tensor] = {}  # of the sample that was drawn last, by latent

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse a scheduler that carries no plan, foreign arguments, and what cannot be fitted."""
        scheduler = plain_scheduler(self.pipe)
        check_call_names(self.pipe, call)
        if "generator" in call:
            raise HostError("seeds make the generators: give seeds=[...] in place of generator")
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
        """Return what the pipeline is called with for one sample."""
        return run_arguments([sample], call)

    @property
    def family(self) -> str:
        """Return the pipeline's class."""
        return type(self.pipe).__name__

    def processes(self) -> Processes:
        """Return the processes of the launcher."""
        return Processes.current()

    def identity(self, call: Call) -> object:
        """Return the pipeline, its scheduler and arguments, and its dtype."""
        origin = describe(self.pipe, plain_scheduler(self.pipe), call)
        return [origin.model_dump(mode="json"), str(getattr(self.pipe, "dtype", None))]

    def quiet(self) -> AbstractContextManager[None]:
        """Show no progress bar of the pipeline's own."""
        return self._bars(disable=True)

    @contextmanager
    def _bars(self, **options: Any) -> Iterator[None]:
        """Yield the pipeline's own progress bars with these options."""
        before = getattr(self.pipe, "_progress_bar_config", {})
        self.pipe._progress_bar_config = {**before, **options}
        try:
            yield
        finally:
            self.pipe._progress_bar_config = before

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """Return the profile of one call, whose latents are not decoded."""
        asked = call if "output_type" in call else giving(self.pipe, "latent", call)
        with recording(self.pipe) as seen:
            self.pipe(**run_arguments(samples, asked))
        if not seen.walks or seen.walks[0].latest is None:
            raise HostError(f"{type(self.pipe).__name__} never called its scheduler's step")
        v = seen.walks[0].latest
        origin = describe(
            self.pipe,
            plain_scheduler(self.pipe),
            call | settings(self.pipe, seen.call),
            latent_shape=tuple(v.shape[1:]),
            dtype=str(v.dtype).removeprefix("torch."),
            negative=has_negative(seen.call),
        )
        return Profile.merge(walk.profile(origin, seen.breaks) for walk in seen.walks)

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[PipelineTrajectory]:
        """Yield one call, held in its loop, on the pipeline's own grid or on these times."""
        grid = None if times is None else as_times(times)
        if grid is not None:
            call = self.with_steps(call, len(grid) - 1)
        arguments = self.arguments(sample, call)
        if call.get("output_type") != "latent":
            arguments = giving(self.pipe, "np", arguments)
        with held_call(self.pipe, arguments, asked=call, times=grid) as run:
            yield run

    def integrator(
        self, runs: Sequence[PipelineTrajectory], times: tuple[float, ...]
    ) -> Integrator:
        """Return the pipeline's own solver; Euler's takes an interval in one step.

        On times of a plan's own every pipeline steps by Euler's method, as under such a plan.
        """
        is_euler = euler_factor(plain_scheduler(self.pipe)) is not None
        if latents := runs[0].latents if runs else ():
            if not is_euler:
                raise HostError(
                    f"{self.family} steps several latents by a multistep solver, which a fit does "
                    "not follow so far: give it Euler's, or make an instant plan"
                )
            return JointEuler(latents, DiffusersEuler)
        if is_euler or any(run.has_own_times for run in runs):
            return DiffusersEuler(times)
        return SolverIntegrator([run.solver() for run in runs], times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """Follow a plan; one that starts midway takes the call's strength, which becomes 1.0."""
        strength = midway_strength(self.pipe, call)
        if plan is None:
            yield call
            return
        with self._bars(desc="by the plan"), applied(self.pipe, plan, strength=strength):
            yield call if strength is None else {**call, "strength": 1.0}

    @contextmanager
    def full(self) -> Iterator[None]:
        """Yield the pipeline with its own scheduler."""
        with self._bars(desc="full steps"), without_plan(self.pipe):
            yield

    @property
    def run_plan(self) -> Plan | None:
        """Return the plan that the scheduler took the latest call by."""
        followed: Plan | None = getattr(self.pipe.scheduler, "run_plan", None)
        return followed

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Return the picture or clip of a plain call."""
        check_call_names(self.pipe, call)
        output = self.pipe(**giving(self.pipe, "np", self.arguments(sample, call)))
        check_finished(self.pipe)
        self.sounds = sounds_of(output)
        return pixels_of(output)

    def with_steps(self, call: Call, steps: int) -> Call:
        """Return the call with so many inference steps."""
        return {**call, "num_inference_steps": steps}
