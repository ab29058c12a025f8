"""A pipeline on noise levels of our choice, in place of those its scheduler would make."""

import copy
import functools
from typing import Any

import numpy as np
import torch

from tacache.diffusers.derived import like, subclass
from tacache.diffusers.host import plain_scheduler
from tacache.errors import HostError

Times = tuple[float, ...]


def on_grid(pipe: Any, times: Times) -> Any:
    """Copy the pipeline object, with the same modules and with these noise levels."""
    plain, copied = plain_scheduler(pipe), copy.copy(pipe)
    copied.scheduler = like(plain, grid_scheduler(plain.__class__, times))
    return copied


@functools.cache
def grid_scheduler(parent: type, times: Times) -> Any:
    """`parent` with these noise levels in place of its own, whatever it is asked for."""
    plain_set_timesteps: Any = parent.set_timesteps  # type: ignore[attr-defined]

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_set_timesteps(self, *args, **kwargs)
        _set_levels(self, times)

    return subclass("Grid", parent, {"set_timesteps": set_timesteps})


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
