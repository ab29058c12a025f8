"""Calls of one pipeline as velocity functions on its own grid, or on any other."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacache.diffusers.driving import drive
from tacache.diffusers.fingerprint import describe, settings
from tacache.diffusers.generation import Request, write
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import Run, check_call_names, run_arguments
from tacache.errors import HostError
from tacache.grid import as_times
from tacache.lab.bench.seam import Calls, Counted, Subject, Times
from tacache.lab.methods.inside import BlockMeter, Cache, check_supported, metered, placed
from tacache.models import frame_rate
from tacache.profile import Origin

SMALL = 256  # pixels to a side


class Caller(Calls):
    """Opens calls of a pipeline of diffusers with a benchmark's arguments."""

    def __init__(self, pipe: Any, call: dict[str, Any], first: Subject) -> None:
        self._placing: Callable[[], AbstractContextManager[BlockMeter]] | None = None
        super().__init__(pipe, call, first)

    def _checked(self, call: dict[str, Any]) -> dict[str, Any]:
        """What the pipeline is called with; a misspelt argument is an error."""
        asked = {**call, "output_type": "np", "return_dict": False}
        check_call_names(self.pipe, asked)
        return asked

    def _described(self, velocity: Counted, call: dict[str, Any]) -> Origin:
        """What an open call says of the model and how it is called."""
        run: Any = velocity.run
        return describe(
            self.pipe,
            plain_scheduler(self.pipe),
            call | settings(run.call),
            latent_shape=tuple(run.noise.shape[1:]),
            dtype=str(run.noise.dtype).removeprefix("torch."),
        )

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

    def plain_call(self, subject: Subject, steps: int) -> None:
        """The pipeline's own call, in this thread."""
        pipe: Any = copy.copy(self.pipe)
        pipe.scheduler = copy.deepcopy(plain_scheduler(self.pipe))
        pipe.set_progress_bar_config(disable=True)
        call = {**self.call, "num_inference_steps": steps}
        pipe(**run_arguments(Run((subject.prompt,), (subject.seed,)), call))

    def write(self, pixels: NDArray[np.float32], stem: Path) -> Path:
        """A PNG, or a clip: a small one as WebP, as an MP4 would blur what is compared."""
        suffix = ".webp" if max(pixels.shape[-3:-1]) <= SMALL else ".mp4"
        fps = frame_rate(self.host.model)
        return write(pixels, stem, Request(None, {}, clip_suffix=suffix, fps=fps))


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
