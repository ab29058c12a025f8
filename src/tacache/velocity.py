"""What a velocity function is, and how a batch of samples reaches it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.errors import HostError

# velocity(x, t, **condition): the guided velocity at state x and time t, a float
Velocity = Callable[..., Tensor]
# name -> one entry a sample, along dim 0
Condition = Mapping[str, Any]


class Batch(NamedTuple):
    """Some samples' noise with the condition that belongs to them."""

    noise: Tensor
    condition: dict[str, Any]


def batches(
    noise: Tensor, condition: Condition | None = None, batch_size: int | None = None
) -> Iterator[Batch]:
    """Cut noise along dim 0, and its condition with it; without a size there is one batch."""
    check_noise(noise)
    if batch_size is not None and batch_size < 1:
        raise HostError(f"batch_size is at least 1, not {batch_size}")
    condition = dict(condition or {})
    for name, values in condition.items():
        if _length(values) != len(noise):
            raise HostError(
                f"condition {name!r} must have one entry a sample, {len(noise)}; "
                f"it has {_length(values) or 'no length'}"
            )
    size = batch_size or len(noise)
    for start in range(0, len(noise), size):
        chosen = slice(start, start + size)
        yield Batch(noise[chosen], {name: values[chosen] for name, values in condition.items()})


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def check_noise(noise: Tensor) -> None:
    """Check that samples lie along dim 0 and are floating-point."""
    if noise.ndim < 1 or not noise.numel():
        raise HostError(f"noise needs samples along dim 0; its shape is {tuple(noise.shape)}")
    if not noise.is_floating_point():
        raise HostError(f"noise must be floating-point, not {noise.dtype}")


def check_velocity(v: Tensor, x: Tensor) -> Tensor:
    """Return `v` if it is a tensor with the shape of the state it was evaluated at."""
    if not isinstance(v, Tensor):
        raise HostError(f"the velocity must be a tensor, not {type(v).__name__}: unpack it first")
    if v.shape != x.shape:
        raise HostError(f"the velocity has shape {tuple(v.shape)}, but the state {tuple(x.shape)}")
    return v


def check_finite(x: Tensor) -> Tensor:
    """Return `x` if all of it is finite. Call it at the end of a run: it waits for the device.

    What is not finite on the way stays so to the end, so that one look is enough.
    """
    return _finite(
        x,
        "run's",
        "run it without the plan; if that is finite, the plan's numbers are not this model's, so "
        "make it again",
    )


def check_full_run(x: Tensor) -> Tensor:
    """Return `x`, the result of a run without a plan, if all of it is finite."""
    hint = "the model itself gives it, as in a dtype that is too narrow for it"
    return _finite(x, "full run's", hint)


def _finite(x: Tensor, whose: str, hint: str) -> Tensor:
    if x.device.type == "meta" or bool(torch.isfinite(x).all()):
        return x
    dtype = str(x.dtype).removeprefix("torch.")
    raise HostError(f"the {whose} result in {dtype} is not finite: {hint}")


def euler(x: Tensor, v: Tensor, t: float, t_next: float) -> Tensor:
    """Return the state at t_next (eq. 1), in the state's dtype."""
    return (x - (t - t_next) * v).to(x.dtype)


def adams_bashforth(v: Tensor, before: Tensor, ratio: float) -> Tensor:
    """Return the average velocity of a step, by Adams-Bashforth of order 2 (Hairer et al., III.5).

    `before` is the velocity at the start of the step before; `ratio` says how many times as long as
    that one this step is.
    """
    return (1 + ratio / 2) * v - ratio / 2 * before
