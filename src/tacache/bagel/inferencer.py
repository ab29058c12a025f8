"""BAGEL as a host, by its InterleaveInferencer or a function, and calibrate and fit_plan on it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache import hosts as verbs
from tacache.bagel.held_call import BagelEuler, BagelTrajectory, HeldCall
from tacache.bagel.host import (
    Evaluate,
    applied,
    check_taylorseer,
    followed_plan,
    model_of,
    replaced,
    watching,
    without_plan,
)
from tacache.bagel.maker import Generate, maker_of, pixels_of, quiet
from tacache.bagel.runs import BagelRun, denoiser_name, describe, images_of, model_name
from tacache.calibration import Recorder
from tacache.errors import HostError
from tacache.fitting import chosen_plan
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import Integrator
from tacache.grid import as_times
from tacache.hosts import Call, Pixels
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.work.processes import ALONE, Processes


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
    """Measure a profile on full-step runs of BAGEL, one per prompt and seed.

    `host` is an InterleaveInferencer, called with each prompt and the other arguments; or a Bagel
    with `generate(prompt, **call)`, your own function that calls it, with one packed image or
    several. `prompts` is a list or a file. `resume` names a file that keeps finished runs, so that
    a killed calibration goes on where it stopped.

    Args:
        host: An InterleaveInferencer, or a Bagel with `generate`.
        prompts: A list of prompts, or a file of them.
        seeds: The seeds that each prompt runs with.
        generate: A function of a prompt that calls the Bagel.
        resume: The file that keeps finished runs.
        progress: Whether to show a bar.
        call: The call's other arguments.

    Returns:
        The profile of all runs.

    Raises:
        HostError: An argument is unknown, or images differ in size.

    """
    return verbs.calibrate(
        BagelHost(host, generate), prompts, call=call, seeds=seeds, resume=resume, progress=progress
    )


def fit_plan(
    host: Any,
    prompts: str | Path | Iterable[str],
    *,
    evaluations: int | None = None,
    seeds: Sequence[int] | None = None,
    generate: Generate | None = None,
    **keywords: Any,
) -> Plan:
    """Fit a plan to full-step runs of BAGEL, one per prompt and seed.

    It has so many evaluations or, with `like_steps` or `min_psnr`, the fewest that reach that.
    `host`, `prompts`, `generate` and the call's arguments are as for `calibrate`, with one image a
    call. See `tacache.fit_plan` for the fit itself.

    Args:
        host: An InterleaveInferencer, or a Bagel with `generate`.
        prompts: A list of prompts, or a file of them.
        evaluations: How often the plan evaluates the model.
        seeds: The seeds that each prompt runs with.
        generate: A function of a prompt that calls the Bagel.
        keywords: The fields of `tacache.fitting.fit_options.FitOptions`, and the call's arguments.

    Returns:
        The fitted plan, with its certificate.

    Raises:
        HostError: An argument is unknown, or a call makes several images.
        PlanError: The budget, the quality or an option cannot be met.

    """
    options, call = FitOptions.split({**keywords, "evaluations": evaluations})
    maker = BagelHost(host, generate)
    plans = verbs.fit_plans(maker, prompts, call=call, options=options, seeds=seeds)
    return chosen_plan(plans, options)


def only_process() -> Processes:
    """Return the one process that BAGEL runs in; refuse several processes of a launcher."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise HostError("bagel runs in one process: leave torchrun (device=auto uses all GPUs)")
    return ALONE


class Recording:
    """Measures each run of a call while the model makes full steps."""

    def __init__(self) -> None:
        self.runs: list[tuple[BagelRun, Recorder]] = []

    def start(self, run: BagelRun) -> None:
        """Begin to measure a run."""
        if not run.alike:
            raise HostError("calibrate images of one size together: this run packs several sizes")
        self.runs.append((run, Recorder(run.times)))

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Return the model's own, measured with its images along dim 0."""
        v = evaluate()
        run, recorder = self.runs[-1]
        recorder.add(torch.stack(images_of(v, run)))
        return v


class BagelHost:
    """BAGEL's inferencer, or a Bagel with a function of a prompt that calls it."""

    any_time = True

    def __init__(self, pipe: Any, generate: Generate | None = None) -> None:
        self.pipe, self.model, self._generate = pipe, model_of(pipe), generate

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse foreign arguments and a TaylorSeer that is on."""
        maker_of(self.pipe, self._generate, call)
        check_taylorseer(self.model)

    def processes(self) -> Processes:
        """Return the one process that does all of the work."""
        return only_process()

    @property
    def family(self) -> str:
        """Return the model's class."""
        return type(self.model).__name__

    def identity(self, call: Call) -> object:
        """Return the model's class, network and name."""
        return [type(self.model).__name__, denoiser_name(self.model), model_name(self.model)]

    def quiet(self) -> AbstractContextManager[None]:
        """Show no progress bar of BAGEL's own, one a run."""
        return quiet(self.model)

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """Measure one call; images that it packs are samples of their own."""
        if len(samples) != 1:
            raise HostError("BAGEL takes one prompt a call: leave batch_size at 1")
        recording = Recording()
        with watching(self.model, recording):
            maker_of(self.pipe, self._generate, call)(samples[0])
        if not recording.runs:
            raise HostError("generate_image of the model was never called")
        return Profile.merge(self._profile(run, seen, call) for run, seen in recording.runs)

    def _profile(self, run: BagelRun, seen: Recorder, call: Call) -> Profile:
        dtype = "" if seen.latest is None else str(seen.latest.dtype).removeprefix("torch.")
        origin = describe(self.model, run, dtype=dtype, called_with=self._shown(call))
        return seen.profile(origin, run.breaks)

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[BagelTrajectory]:
        """Hold one call whose steps are bound and whose picture waits; at any times."""
        held, make = HeldCall(), maker_of(self.pipe, self._generate, call)
        own = self._generate is None  # the inferencer's own call
        later = replaced(self.pipe, decode_image=held.decode_later) if own else nullcontext()
        with self.quiet(), watching(self.model, held), later:
            make(sample)

        def decode(latents: Tensor) -> Any:
            if held.shape is not None:
                return self.pipe.decode_image(latents, *held.shape)
            with replaced(self.model, generate_image=lambda *args, **kwargs: (latents,)):
                return make(sample)

        run = BagelTrajectory(self.model, held, decode, self._shown(call))
        if times is not None:
            run.times = as_times(times)
        yield run

    def integrator(self, runs: Sequence[BagelTrajectory], times: tuple[float, ...]) -> Integrator:
        """Return Euler, rounded as the model's own loop rounds."""
        return BagelEuler(times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """Make the model follow the plan; without one, it runs as it is."""
        with nullcontext() if plan is None else applied(self.model, plan):
            yield call

    def full(self) -> AbstractContextManager[None]:
        """Give the model its own methods for a `with` block."""
        return without_plan(self.model)

    @property
    def run_plan(self) -> Plan | None:
        """Return the plan as the latest run took it."""
        return followed_plan(self.model)

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Draw the picture of one call."""
        pixels = pixels_of(maker_of(self.pipe, self._generate, call)(sample))
        if pixels is None:
            raise HostError(f"{sample}: the inferencer gave no picture")
        return pixels

    def with_steps(self, call: Call, steps: int) -> Call:
        """Return the call with so many steps; BAGEL counts noise levels, one more."""
        return {**call, "num_timesteps": steps + 1}

    def _shown(self, call: Call) -> Call:
        """Return the inferencer's arguments for the origin; those of a function are not known."""
        plain = bool | int | float | str
        own = call if self._generate is None else {}
        return {name: value for name, value in own.items() if isinstance(value, plain)}
