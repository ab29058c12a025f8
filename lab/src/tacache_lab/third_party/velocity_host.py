"""A host for models that are a function velocity(x, t): calls of a benchmark, without prompts."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacache.calibration import full_steps, measure
from tacache.cli.model_kinds import whole
from tacache.errors import HostError, TACacheError
from tacache.fitting.integrators import EulerIntegrator, Integrator
from tacache.hosts import Call, Host, Pixels
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.stepper import sample as follow_plan
from tacache.storage.origin import Origin
from tacache.velocity import Batch, Velocity
from tacache.work.processes import ALONE, Processes

STEPS = "steps"
SAMPLE_SETS = ("calibration", "test")  # files beside this one


@dataclass(frozen=True)
class ThirdPartyModel:
    """A model whose weights a package has: how it is loaded, and what it makes.

    `times(N)` are the N + 1 noise levels of a run of N steps, `shape` is that of one sample, and
    `picture` shows a state as pixels.
    """

    name: str
    package: str
    shape: tuple[int, ...]
    times: Callable[[int], tuple[float, ...]]
    load: Callable[[], Velocity]
    picture: Callable[[Tensor], Pixels]


class VelocityTrajectory:
    """One sample's run: velocities at any state and time."""

    breaks: tuple[float, ...] = ()
    state: Tensor | None = None
    settings: object = None

    def __init__(
        self, model: ThirdPartyModel, velocity: Velocity, noise: Tensor, times: tuple[float, ...]
    ) -> None:
        self._model, self._velocity, self.noise = model, velocity, noise
        self.times = self.grid = times

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """Return the velocity at a state and step."""
        return self._velocity(x, self.times[step])

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """Return the velocity at any time."""
        return self._velocity(x, t)

    def guidance(self, t: float) -> object:
        """Return the same of all times: there is no guidance."""
        return None

    def finish(self, x: Tensor) -> Pixels:
        """Return the picture of a state."""
        return self._model.picture(x)

    def origin(self) -> Origin:
        """Return the model's name, and the package whose weights it has."""
        return Origin(
            kind="function",
            model=self._model.name,
            denoiser=self._model.package,
            latent_shape=self._model.shape,
            call={STEPS: len(self.times) - 1},
        )


class VelocityHost:
    """Runs a third party's model; it keeps the plan that its calls follow."""

    any_time, pipe = True, None

    def __init__(self, model: ThirdPartyModel) -> None:
        self.model, self.family = model, model.name
        self.run_plan: Plan | None = None

    @cached_property
    def velocity(self) -> Velocity:
        """Return the model, fetched and loaded when it is first asked for."""
        return self.model.load()

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse what the model is not called with."""
        if unknown := sorted(call.keys() - {STEPS}):
            raise HostError(f"{self.model.name} is called with steps only, not {unknown[0]!r}")

    def processes(self) -> Processes:
        """Return this process alone, as models this small need no launcher."""
        return ALONE

    def identity(self, call: Call) -> object:
        """Return the model and its package."""
        return self.model.name, self.model.package

    def quiet(self) -> AbstractContextManager[None]:
        """Do nothing, since there are no bars."""
        return nullcontext()

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """Return the profile of full runs of these samples together."""
        run = self._run(samples[0], call)
        noise = torch.cat([self.noise(sample, run.times[0]) for sample in samples])
        walked = full_steps(self.velocity, Batch(noise, {}), run.times)
        return measure((v for v, _ in walked), run.times, run.origin())

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[VelocityTrajectory]:
        """Open one sample's run on the model's own grid or on these times."""
        yield self._run(sample, call, times)

    def integrator(self, runs: Sequence[Any], times: tuple[float, ...]) -> Integrator:
        """Return Euler's method."""
        return EulerIntegrator(times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        """Make calls follow the plan."""
        before, self.run_plan = self.run_plan, plan or self.run_plan
        try:
            yield call
        finally:
            self.run_plan = before

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make calls take full steps."""
        before, self.run_plan = self.run_plan, None
        try:
            yield
        finally:
            self.run_plan = before

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Return the picture of one sample."""
        run = self._run(sample, call)
        plan = self.run_plan or Plan.full(run.times)
        with torch.no_grad():
            return run.finish(follow_plan(self.velocity, run.noise, plan))

    def with_steps(self, call: Call, steps: int) -> Call:
        """Return the same call with so many steps."""
        return {**call, STEPS: steps}

    def noise(self, sample: Sample, level: float) -> Tensor:
        """Return the state a sample starts from, which its name and seed alone decide."""
        name = hashlib.sha256(f"{sample.text}\n{sample.seed}".encode()).digest()
        draw = np.random.default_rng(list(name))
        values = draw.standard_normal((1, *self.model.shape), dtype=np.float32)
        return level * torch.from_numpy(values)

    def _run(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> VelocityTrajectory:
        grid = self.model.times(call[STEPS])
        noise = self.noise(sample, grid[0])
        return VelocityTrajectory(
            self.model, self.velocity, noise, grid if times is None else tuple(times)
        )


class ThirdPartyKind:
    """What the commands ask of a third party's model."""

    steps_argument = STEPS
    batches = False

    def __init__(self, model: ThirdPartyModel) -> None:
        self.model = model

    def load(self, model: str, options: dict[str, Any], bars: bool) -> Host:
        """Return the model's host."""
        if options:
            raise TACacheError(f"{model} takes no options of --load: it runs on the CPU as it is")
        return VelocityHost(self.model)

    def accelerate(self, pipe: Any, options: dict[str, Any]) -> None:
        """Refuse it, since these are models of the benchmark."""
        raise TACacheError(f"{self.model.name} is a model for benchmarks only: use tacache bench")

    def prompts_of(self, model: str, source: str) -> str | Path:
        """Return the file that numbers the samples of a set."""
        if source not in SAMPLE_SETS:
            raise TACacheError(f"{model} has no prompts: leave the options of prompts as they are")
        return Path(__file__).with_name(f"{source}.txt")

    def call_arguments(self, model: str, plan: Plan | None, **options: Any) -> dict[str, Any]:
        """Return the arguments of a call: the steps."""
        call = {name: value for name, value in options.items() if value is not None}
        VelocityHost(self.model).check(call)
        return call

    def steps_of(self, call: dict[str, Any]) -> int:
        """Return the number of steps of a full run."""
        return whole(call, STEPS)
