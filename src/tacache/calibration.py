"""Calibration: full-step runs of a velocity function, measured into a profile."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tacache.decomposition import indicators, norm
from tacache.errors import ProfileError
from tacache.grid import step_lengths
from tacache.profile import Origin, Profile, profile_times
from tacache.velocity import Batch, Condition, Velocity, batches, check_velocity, euler
from tacache.work.progress import track


@torch.no_grad()
def calibrate(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    condition: Condition | None = None,
    batch_size: int | None = None,
    breaks: Sequence[float] = (),
    progress: bool = False,
) -> Profile:
    """The profile of full-step Euler runs from `noise` (samples along dim 0).

    Only two velocities of one batch are held at a time. `condition={"label": y}` is sliced along
    dim 0 with the samples and passed on as `velocity(x, t, label=...)`. For more samples than fit
    in one tensor, calibrate on parts and `Profile.merge` them: the result is the same. `breaks` are
    times below which another model or guidance takes over.
    """
    grid = profile_times(times)
    host = Origin(
        latent_shape=tuple(noise.shape[1:]), dtype=str(noise.dtype).removeprefix("torch.")
    )
    profile: Profile | None = None
    for batch in track(list(batches(noise, condition, batch_size)), "calibrating", progress):
        seen = 0 if profile is None else profile.samples
        velocities = full_step_velocities(velocity, batch, grid)
        measured = measure(velocities, grid, host, breaks, first_sample=seen)
        profile = measured if profile is None else Profile.merge([profile, measured])
    assert profile is not None  # batches() yields at least one
    return profile


def full_step_velocities(
    velocity: Velocity, batch: Batch, times: tuple[float, ...]
) -> Iterator[Tensor]:
    """v_0, v_1, ... along the full-step Euler run of one batch (eq. 1)."""
    x = batch.noise
    for t, t_next in pairwise(times):
        v = check_velocity(velocity(x, t, **batch.condition), x)
        yield v
        x = euler(x, v, t, t_next)


def measure(
    velocities: Iterable[Tensor],
    times: tuple[float, ...],
    host: Origin,
    breaks: Sequence[float] = (),
    first_sample: int = 0,
) -> Profile:
    """The profile of one batch from its velocities, in order; it looks at two at a time."""
    magnitude, direction = [], []
    previous: Tensor | None = None
    for n, v in enumerate(velocities):
        check_measurable(v, n, last=n == len(times) - 2, first_sample=first_sample)
        if previous is not None:
            k, d = indicators(previous, v, step_lengths(times)[n - 1])
            magnitude.append(k)
            direction.append(d)
        previous = v.clone()  # the model may write its next velocity into the same memory
    if len(magnitude) != len(times) - 2:
        raise ProfileError(f"{len(times) - 1} steps gave {len(magnitude) + 1} velocities")
    return Profile.from_samples(times, magnitude, direction, host, breaks)


def check_measurable(v: Tensor, step: int, *, last: bool, first_sample: int = 0) -> None:
    """Raise where a velocity has no magnitude or direction; only the last may be zero."""
    for i, size in enumerate(norm(v).flatten().tolist()):
        if not math.isfinite(size) or (size == 0 and not last):
            raise ProfileError(
                f"the velocity at step {step} of sample {first_sample + i} is zero, infinite or "
                "not a number: check the model and its dtype"
            )
