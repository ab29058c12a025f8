"""Held calls of BAGEL: their steps are bound once and evaluated at any state and time.

BAGEL's code for a step takes the time as an argument, so one held call is evaluated off its grid
too. A call is made once: its steps are bound and its picture waits, and nothing of the model stays
replaced while velocities are asked for.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from tacache.bagel.host import Evaluate
from tacache.bagel.maker import pixels_of
from tacache.bagel.runs import (
    SCALES,
    BagelRun,
    bound_arguments,
    changes_at,
    describe,
    device_of,
    scales_at,
)
from tacache.errors import HostError
from tacache.fitting.integrators import EulerIntegrator
from tacache.hosts import Call, Pixels
from tacache.storage.origin import Origin


class HeldCall:
    """Watches one call and binds its steps without evaluating them."""

    def __init__(self) -> None:
        self.run: BagelRun | None = None
        self.steps: list[Evaluate] = []
        self.noise: Tensor | None = None
        self.shape: tuple[Any, ...] | None = None  # what `decode_image` gets beside the latents
        self._autocasts: list[dict[str, Any]] = []

    def start(self, run: BagelRun) -> None:
        """Begin the call's run; there is one, with one image."""
        if self.run is not None or len(run.lengths) != 1:
            raise HostError("a fit counts one sample a prompt and seed: make one image a call")
        self.run, self._autocasts = run, _autocasts()

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Keep the step and evaluate nothing: the state stays the noise."""
        self.noise = x
        self.steps.append(evaluate)
        return torch.zeros_like(x)

    def decode_later(self, latents: Tensor, *shape: Any) -> None:
        """Stand in for the inferencer's `decode_image` while the call is held."""
        self.shape = shape

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """Restore the autocast that the call was made with."""
        with torch.no_grad(), ExitStack() as stack:
            for autocast in self._autocasts:
                stack.enter_context(torch.autocast(**autocast))
            yield


class BagelTrajectory:
    """A held call as a run of one sample, on the model's device; BAGEL's own noise may be apart."""

    state: Tensor | None = None  # BAGEL evaluates the state it is given

    def __init__(
        self, model: Any, held: HeldCall, decode: Callable[[Tensor], Any], called_with: Call
    ) -> None:
        if held.run is None or held.noise is None or len(held.steps) != len(held.run.times) - 1:
            raise HostError("generate_image of the model was not called, or left its loop")
        self._model, self._held, self._decode = model, held, decode
        self._called_with = called_with
        self._dtype: torch.dtype | None = None  # of velocities
        self._guidance_is_known = False
        self.home, self.run = held.noise.device, held.run
        self.times, self.breaks, self.settings = held.run.times, held.run.breaks, held.run
        self.noise = held.noise.to(device_of(model))[None]

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """Return the guided velocity at a step of the call's own grid."""
        return self._evaluated(x, self._held.steps[step])

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """Return the velocity at a time off the grid, guided as there."""
        if not 0 < t <= 1:
            raise HostError(f"t={t} is no noise level: they go from 1 down to 0, which is data")
        self._check_guidance()
        step = self._held.steps[0]
        return self._evaluated(x, step, **changes_at(t, step, self.run))

    def _evaluated(self, x: Tensor, step: Evaluate, **changes: Any) -> Tensor:
        with self._held.as_called():
            v = step(x_t=x[0].to(self.home), **changes).to(x.device)[None]
        self._dtype = v.dtype
        return v

    def _check_guidance(self) -> None:
        """Refuse times off the grid where guidance does not follow `cfg_interval`."""
        if self._guidance_is_known:
            return
        for t, step in zip(self.run.times, self._held.steps, strict=False):
            bound = bound_arguments(step)
            if {name: bound[name] for name in SCALES} != scales_at(t, self.run):
                raise HostError(
                    f"this BAGEL's guidance at t={t:g} is not that of its cfg_interval: times off "
                    "its grid cannot be evaluated"
                )
        self._guidance_is_known = True

    @property
    def grid(self) -> tuple[float, ...]:
        """Return the levels of the call's own steps."""
        return self.run.times

    @property
    def guidance(self) -> Callable[[float], object]:
        """Return the scales of guidance: where it is off, the model makes fewer passes."""
        self._check_guidance()
        return functools.partial(_scales, run=self.run)  # which holds no contexts

    def finish(self, x: Tensor) -> Pixels | None:
        """Return the picture of the last state."""
        with self._held.as_called():
            return pixels_of(self._decode(x[0].to(self.home)))

    def origin(self) -> Origin:
        """Return the model, its size and guidance, and the inferencer's other plain arguments."""
        if self._dtype is None:
            self.evaluate(self.noise, 0)
        dtype = str(self._dtype).removeprefix("torch.")
        return describe(self._model, self.run, dtype=dtype, called_with=self._called_with)


class BagelEuler(EulerIntegrator):
    """BAGEL's own steps: each adds a product that is rounded to the velocity's dtype."""

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Make every step on the way with the same velocity, as the model's loop makes them."""
        levels = torch.tensor(self.times[n : m + 1], dtype=torch.float32)
        for length in levels[:-1] - levels[1:]:
            x = x - v * length
        return x


def _scales(t: float, run: BagelRun) -> tuple[float, ...]:
    return tuple(scales_at(t, run).values())


def _autocasts() -> list[dict[str, Any]]:
    """Return the autocasts in force here, as arguments to bring them back with."""
    return [
        {"device_type": kind, "dtype": torch.get_autocast_dtype(kind)}
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    ]
