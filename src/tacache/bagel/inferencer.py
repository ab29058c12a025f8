"""BAGEL as a host, by its InterleaveInferencer or a function, and calibrate and fit_plan on it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache import host as verbs
from tacache.bagel.held import BagelRun, BagelSteps, Held
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
from tacache.bagel.making import Generate, maker_of, pixels_of, quiet
from tacache.bagel.runs import Run, denoiser_name, describe, images_of, model_name
from tacache.calibration import Recorder
from tacache.errors import HostError
from tacache.fitting.flow import Target
from tacache.fitting.walking import Walk
from tacache.grid import as_times
from tacache.host import Call, Pixels
from tacache.plan import LONGEST, Plan
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
    """
    return verbs.calibrate(
        BagelHost(host, generate), prompts, call=call, seeds=seeds, resume=resume, progress=progress
    )


def fit_plan(
    host: Any, prompts: str | Path | Iterable[str], *, evaluations: int, **options: Any
) -> Plan:
    """Fit a plan with this many evaluations to full-step runs of BAGEL, one per prompt and seed.

    `host`, `prompts`, `generate` and the call's arguments are as for `calibrate`, with one image a
    call; the other options are those of `fit_plans`. See `tacache.fit_plan` for the fit itself.
    """
    return fit_plans(host, prompts, evaluations=[evaluations], **options)[0]


def fit_plans(
    host: Any,
    prompts: str | Path | Iterable[str],
    *,
    evaluations: Sequence[int],
    seeds: Sequence[int] | None = None,
    target: Target = "run",
    reference_steps: int | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    generate: Generate | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    **call: Any,
) -> list[Plan]:
    """Fit a plan for each budget; the full-step runs are made once. `fit_plan` says more."""
    return verbs.fit_plans(
        BagelHost(host, generate),
        prompts,
        evaluations=evaluations,
        call=call,
        seeds=seeds,
        target=target,
        reference_steps=reference_steps,
        history=history,
        max_evaluations=max_evaluations,
        search=search,
        resume=resume,
        progress=progress,
    )


def only_process() -> Processes:
    """Return the one process that BAGEL runs in; refuse several processes of a launcher."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise HostError("bagel runs in one process: leave torchrun (device=auto uses all GPUs)")
    return ALONE


class Recording:
    """Measures each run of a call while the model makes full steps."""

    def __init__(self) -> None:
        self.runs: list[tuple[Run, Recorder]] = []

    def start(self, run: Run) -> None:
        """A run begins."""
        if not run.alike:
            raise HostError("calibrate images of one size together: this run packs several sizes")
        self.runs.append((run, Recorder(run.times)))

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """The model's own, measured with its images along dim 0."""
        v = evaluate()
        run, recorder = self.runs[-1]
        recorder.add(torch.stack(images_of(v, run)))
        return v


class BagelHost:
    """BAGEL's inferencer, or a Bagel with a function of a prompt that calls it."""

    any_time = True

    def __init__(self, given: Any, generate: Generate | None = None) -> None:
        self.pipe, self.model, self._generate = given, model_of(given), generate

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse foreign arguments and a TaylorSeer that is on."""
        maker_of(self.pipe, self._generate, call)
        check_taylorseer(self.model)

    def processes(self) -> Processes:
        """One process does all of the work."""
        return only_process()

    @property
    def family(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    def identity(self, call: Call) -> object:
        """The model's class, network and name."""
        return [type(self.model).__name__, denoiser_name(self.model), model_name(self.model)]

    def quiet(self) -> AbstractContextManager[None]:
        """No progress bar of BAGEL's own, one a run."""
        return quiet(self.model)

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """The profile of one call; images that it packs are samples of their own."""
        if len(samples) != 1:
            raise HostError("BAGEL takes one prompt a call: leave batch_size at 1")
        recording = Recording()
        with watching(self.model, recording):
            maker_of(self.pipe, self._generate, call)(samples[0])
        if not recording.runs:
            raise HostError("generate_image of the model was never called")
        return Profile.merge(self._profile(run, seen, call) for run, seen in recording.runs)

    def _profile(self, run: Run, seen: Recorder, call: Call) -> Profile:
        dtype = "" if seen.latest is None else str(seen.latest.dtype).removeprefix("torch.")
        origin = describe(self.model, run, dtype=dtype, called_with=self._shown(call))
        return seen.profile(origin, run.breaks)

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[BagelRun]:
        """One call whose steps are bound and whose picture waits; at any times."""
        held, make = Held(), maker_of(self.pipe, self._generate, call)
        own = self._generate is None  # the inferencer's own call
        later = replaced(self.pipe, decode_image=held.decode_later) if own else nullcontext()
        with self.quiet(), watching(self.model, held), later:
            make(sample)

        def decode(latents: Tensor) -> Any:
            if held.shape is not None:
                return self.pipe.decode_image(latents, *held.shape)
            with replaced(self.model, generate_image=lambda *args, **kwargs: (latents,)):
                return make(sample)

        run = BagelRun(self.model, held, decode, self._shown(call))
        if times is not None:
            run.times = as_times(times)
        yield run

    def walk(self, runs: Sequence[BagelRun], times: tuple[float, ...]) -> Walk:
        """Euler, rounded as the model's own loop rounds."""
        return BagelSteps(times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """The model follows the plan; without one, it runs as it is."""
        with nullcontext() if plan is None else applied(self.model, plan):
            yield call

    def full(self) -> AbstractContextManager[None]:
        """The model with its own methods."""
        return without_plan(self.model)

    @property
    def run_plan(self) -> Plan | None:
        """The plan as the latest run took it."""
        return followed_plan(self.model)

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """The picture of one call."""
        pixels = pixels_of(maker_of(self.pipe, self._generate, call)(sample))
        if pixels is None:
            raise HostError(f"{sample}: the inferencer gave no picture")
        return pixels

    def with_steps(self, call: Call, steps: int) -> Call:
        """BAGEL counts noise levels, one more than steps."""
        return {**call, "num_timesteps": steps + 1}

    def _shown(self, call: Call) -> Call:
        """The inferencer's arguments for the origin; those of a user's function are not known."""
        plain = bool | int | float | str
        own = call if self._generate is None else {}
        return {name: value for name, value in own.items() if isinstance(value, plain)}
