"""Runs on noise levels of our choice."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.errors import HostError

Times = tuple[float, ...]


class GridHooks(SchedulerHooks):
    """Hooks that give a run these noise levels, whatever its scheduler is asked for."""

    levels: Times

    def _prepare(self, prepare: Callable[[], None]) -> None:
        prepare()
        set_levels(self, self.levels)

    def _hand_on(self, scheduler: Any) -> None:
        scheduler.levels = self.levels


def on_grid(pipe: Any, plain: Any, times: Times) -> Any:
    """Return a copy of the pipeline object, with the same modules and with these noise levels."""
    copied = copy.copy(pipe)
    copied.scheduler = hooked_like(plain, GridHooks)
    copied.scheduler.levels = times
    return copied


def set_levels(scheduler: Any, times: Times) -> None:
    """Put these noise levels in the place of those that the scheduler has just made."""
    sigmas, timesteps = scheduler.sigmas, scheduler.timesteps
    clock = _clock(scheduler)
    levels = torch.tensor(times, dtype=torch.float64)
    if sigmas[0] < sigmas[-1]:  # Mochi counts from data to noise
        levels = 1 - levels
    scheduler.sigmas = levels.to(sigmas)
    scheduler.timesteps = clock(levels[:-1]).to(timesteps)


def _clock(scheduler: Any) -> Callable[[Tensor], Tensor]:
    """Return how this scheduler counts its timesteps by its noise levels."""
    sigmas, timesteps = scheduler.sigmas, scheduler.timesteps
    scale = float(scheduler.config.get("num_train_timesteps", 1))
    clocks: list[Callable[[Tensor], Tensor]] = [lambda s: s * scale, lambda s: 1 - s]
    if len(sigmas) == len(timesteps) + 1:
        own = sigmas[:-1].double().cpu()
        for clock in clocks:  # some cut their timesteps to integers
            near = max(1e-3 * scale, 1e-5)
            if np.allclose(clock(own), timesteps.double().cpu(), rtol=0, atol=near):
                return clock
    raise HostError(
        f"{type(scheduler).__name__} does not count its timesteps by its noise levels: methods "
        "with grids of their own cannot run on it"
    )
