"""Calls of one pipeline as velocity functions on its own grid, or on any other."""

import copy
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacache.diffusers.driving import DrivenRun, drive
from tacache.diffusers.fingerprint import describe, settings
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.peers import BlockMeter, Cache, check_supported, metered, placed
from tacache.diffusers.runs import Run, check_call_names, run_arguments
from tacache.errors import HostError
from tacache.grid import as_times
from tacache.profile import Host

Times = tuple[float, ...]


class Subject(NamedTuple):
    """What is drawn: a prompt and the seed of its noise."""

    prompt: str
    seed: int


class Counted:
    """The velocity function of an open call, and the times at which the model was evaluated.

    With a cache inside the model that is where its blocks really ran, as the meter says.
    """

    def __init__(self, run: DrivenRun, times: Times, meter: BlockMeter | None = None) -> None:
        self.run, self.times, self.meter = run, times, meter
        self.evaluated: list[float] = []
        self._step = {t: n for n, t in enumerate(times[:-1])}

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The velocity by the model; t is a time of the call's grid."""
        if t not in self._step:
            raise HostError(f"t={t} is not on the grid of the call")
        v = self.run.evaluate(x, self._step[t])
        if self.meter is None or self.meter.took():
            self.evaluated.append(t)
        return v

    @property
    def worth(self) -> float | None:
        """With a cache inside the model, the evaluations that its blocks' work amounts to."""
        return None if self.meter is None else self.meter.worth

    @property
    def noise_sha256(self) -> str:
        """A hash of the noise the call starts from."""
        return hashlib.sha256(self.run.noise.float().cpu().numpy().tobytes()).hexdigest()


class Caller:
    """Opens calls of a pipeline with a benchmark's arguments.

    `times` is the grid of its full steps and `host` what it is; both are read off a first call,
    which also pays the costs that come only once.
    """

    def __init__(self, pipe: Any, call: dict[str, Any], first: Subject) -> None:
        self.pipe = pipe
        self.call = {**call, "output_type": "np", "return_dict": False}
        check_call_names(pipe, self.call)
        self._grids: dict[int, Times] = {}
        self._placing: Callable[[], AbstractContextManager[BlockMeter]] | None = None
        with self.open(first) as velocity:
            run = velocity.run
            self.times, self.breaks = run.times, run.breaks
            self.device = run.noise.device
            self.host: Host = describe(
                pipe,
                plain_scheduler(pipe),
                call | settings(run.call),
                latent_shape=tuple(run.noise.shape[1:]),
                dtype=str(run.noise.dtype).removeprefix("torch."),
            )
        self._first = first

    @property
    def steps(self) -> int:
        """N, the number of full steps."""
        return len(self.times) - 1

    def key(self, *more: Any) -> str:
        """A hash of the pipeline, its arguments and `more`: the name of what was made with them."""
        content = [self.host.model_dump(mode="json"), *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    @contextmanager
    def open(
        self, subject: Subject, times: Sequence[float] | None = None, steps: int | None = None
    ) -> Iterator[Counted]:
        """The velocities of one call: on the pipeline's grid of full or so many steps, or on these.

        The same seed gives the same noise, whatever the grid.
        """
        pipe, call = self.pipe, dict(self.call)
        if times is not None:
            pipe, steps = on_grid(pipe, as_times(times)), len(times) - 1
        if steps is not None:
            call["num_inference_steps"] = steps
        arguments = run_arguments(Run((subject.prompt,), (subject.seed,)), call)
        with (self._placing or nullcontext)() as meter, drive(pipe, **arguments) as run:
            if len(run.noise) != 1:
                raise HostError(f"a call makes {len(run.noise)} samples: ask for one")
            yield Counted(run, run.times if times is None else as_times(times), meter)

    @contextmanager
    def inside(self, cache: Cache) -> Iterator[None]:
        """Every call that is opened meanwhile has this cache, in a new state, inside the model."""
        if self._placing is not None:
            raise HostError("there is a cache inside the model already: one at a time")
        self._placing = functools.partial(placed, self.pipe, cache, self.steps, self._branches)
        try:
            yield
        finally:
            self._placing = None

    @functools.cached_property
    def _branches(self) -> int:
        """How often a step calls the model: once for each branch of its guidance."""
        check_supported(self.pipe)
        with metered(self.pipe.transformer) as meter, self.open(self._first):
            return len(meter.branches)

    def grid(self, steps: int) -> Times:
        """The grid a user gets who asks the pipeline for so many steps."""
        if steps not in self._grids:
            with self.open(self._first, steps=steps) as velocity:
                self._grids[steps] = velocity.times
        return self._grids[steps]


class SampleVelocity:
    """velocity(x, t, sample=numbers): each sample in a call of its own, open until the end.

    Off the grid of full steps, further calls are opened, one for each time.
    """

    def __init__(self, caller: Caller, subjects: Sequence[Subject], stack: ExitStack) -> None:
        self._caller, self._subjects, self._stack = caller, subjects, stack
        self._calls: dict[tuple[int, float | None], Counted] = {}
        self._known = frozenset(caller.times[:-1])

    def __call__(self, x: Tensor, t: float, sample: Sequence[int]) -> Tensor:
        """The velocities of these samples, one after the other."""
        rows = [self._call(i, t)(x[k : k + 1], t) for k, i in enumerate(sample)]
        return torch.cat(rows)

    def _call(self, i: int, t: float) -> Counted:
        place = (i, None if t in self._known else t)
        if place not in self._calls:
            end = self._caller.times[-1]
            # Two steps: Mochi cannot count to one.
            times = None if t in self._known else (t, (t + end) / 2, end)
            opened = self._caller.open(self._subjects[i], times)
            self._calls[place] = self._stack.enter_context(opened)
        return self._calls[place]


def on_grid(pipe: Any, times: Times) -> Any:
    """The pipeline object again, with the same modules and noise levels of our choice."""
    plain, copied = plain_scheduler(pipe), copy.copy(pipe)
    scheduler = grid_scheduler(plain.__class__, times).from_config(plain.config)
    if hasattr(plain, "_shift"):  # set_shift changes it without the configuration
        scheduler._shift = plain._shift
    copied.scheduler = scheduler
    return copied


@functools.cache
def grid_scheduler(parent: type, times: Times) -> Any:
    """`parent` with these noise levels in place of its own, whatever it is asked for."""
    plain_set_timesteps: Any = parent.set_timesteps  # type: ignore[attr-defined]

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_set_timesteps(self, *args, **kwargs)
        _set_levels(self, times)

    return type(f"Grid{parent.__name__}", (parent,), {"set_timesteps": set_timesteps})


def _set_levels(scheduler: Any, times: Times) -> None:
    scale = float(scheduler.config.num_train_timesteps)
    sigmas, timesteps = scheduler.sigmas, scheduler.timesteps
    own = sigmas[: len(timesteps)].double().cpu() * scale
    if len(sigmas) != len(timesteps) + 1 or not np.allclose(own, timesteps.cpu(), atol=1.0):
        raise HostError(
            f"{type(scheduler).__name__} does not count its timesteps by its noise levels: methods "
            "with grids of their own cannot run on it"
        )
    levels = torch.tensor(times, dtype=torch.float64)
    if scheduler.config.get("invert_sigmas"):  # Mochi counts from data to noise
        levels = 1 - levels
    scheduler.sigmas = levels.to(sigmas)
    scheduler.timesteps = (levels[:-1] * scale).to(timesteps)
