"""Calls of BAGEL's inferencer as velocity functions, on its own grid and off it.

BAGEL's code for a step takes the time as an argument, so one held call is evaluated at any time. A
call is made once: its steps are bound and its picture waits, and nothing of the model stays
replaced while the velocities are asked for.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.bagel.fitting import Held
from tacache.bagel.host import model_of, replaced, watching
from tacache.bagel.making import Job, Maker, maker_of, pixels_of, quiet
from tacache.bagel.runs import Run, describe, run_times
from tacache.errors import HostError, named
from tacache.grid import as_times
from tacache.lab.bench.seam import Calls, Counted, Subject, Times
from tacache.lab.cost import count_flops
from tacache.profile import Origin
from tacache.storage.atomic import writing

SCALES = ("cfg_text_scale", "cfg_img_scale")


class Holding(Held):
    """A held call that is evaluated at any time, and whose picture waits for its latents."""

    def __init__(self) -> None:
        super().__init__()
        self._shape: tuple[Any, ...] | None = None

    def decode_later(self, latents: Tensor, *shape: Any) -> None:
        """In the place of the inferencer's `decode_image`."""
        self._shape = shape

    def check(self, job: Job) -> None:
        """That the call came by all we count on."""
        if self.run is None or len(self.steps) != len(self.run.times) - 1 or self._shape is None:
            raise HostError(f"{job}: the inferencer made no picture by generate_image")
        for t, step in zip(self.run.times, self.steps, strict=False):
            bound = _arguments(step)
            if {name: bound[name] for name in SCALES} != scales_at(t, self.run):
                raise HostError(
                    f"this BAGEL's guidance at t={t:g} is not that of its cfg_interval: times off "
                    "its grid cannot be evaluated"
                )

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """The velocity at a time off the grid, guided as there."""
        assert self.run is not None
        step = self.steps[0]
        timestep = torch.full_like(_arguments(step)["timestep"], t)
        with self._as_called():
            v: Tensor = step(x_t=x, timestep=timestep, **scales_at(t, self.run))
            return v.to(x.device)

    def decoded(self, inferencer: Any, latents: Tensor) -> NDArray[np.float32]:
        """The inferencer's picture of latents, in [0, 1]."""
        assert self._shape is not None
        with self._as_called():
            pixels = pixels_of(inferencer.decode_image(latents, *self._shape))
        if pixels is None:
            raise HostError("the inferencer's decode_image gave no picture")
        return np.asarray(pixels[0], dtype=np.float32)

    @contextmanager
    def _as_called(self) -> Iterator[None]:
        with torch.no_grad(), ExitStack() as stack:
            for autocast in self._autocasts:
                stack.enter_context(torch.autocast(**autocast))
            yield


class BagelRun:
    """A held call as a run of one sample, on the model's device; BAGEL's own noise may be apart."""

    def __init__(self, inferencer: Any, held: Holding) -> None:
        assert held.run is not None
        assert held.noise is not None
        self._inferencer, self._held, self.home = inferencer, held, held.noise.device
        self.facts: Run = held.run
        self.breaks = held.run.breaks
        self.noise = held.noise.to(device_of(model_of(inferencer)))[None]

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """The velocity at a step of the call's own grid."""
        return self._held.evaluate(x[0].to(self.home), step).to(x.device)[None]

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """The velocity at any time."""
        return self._held.evaluate_at(x[0].to(self.home), t).to(x.device)[None]

    def finish(self, x: Tensor) -> NDArray[np.float32]:
        """The picture of the last state."""
        return self._held.decoded(self._inferencer, x[0].to(self.home))


class BagelCounted(Counted):
    """The velocity function of a held call, at its own steps and between them."""

    run: BagelRun

    def evaluate(self, x: Tensor, t: float) -> Tensor:
        """One call of `_forward_flow`."""
        if t in self._step:
            return self.run.evaluate(x, self._step[t])
        if not 0 < t <= 1:
            raise HostError(f"t={t} is no noise level: they go from 1 down to 0, which is data")
        return self.run.evaluate_at(x, t)

    def finish(self, x: Tensor) -> NDArray[np.float32]:
        """The inferencer's own picture of the last state: 256 values a channel, in [0, 1]."""
        return self.run.finish(x)


class BagelCaller(Calls):
    """Opens calls of BAGEL's InterleaveInferencer with a benchmark's arguments."""

    any_time: ClassVar[bool] = True
    _facts: Run
    _home: torch.device
    _flops: dict[tuple[float, ...], int]  # of an evaluation, by the scales of its guidance

    def _checked(self, call: dict[str, Any]) -> dict[str, Any]:
        maker_of(self.pipe, None, call)  # names
        if "image" in call:
            raise HostError("a benchmark draws prompts: leave image=")
        return call

    def _described(self, velocity: Counted, call: dict[str, Any]) -> Origin:
        """As calibration does, with what else the inferencer was asked for."""
        run: Any = velocity.run
        self._facts, self._home, self._flops = run.facts, run.home, {}
        v = velocity.evaluate(run.noise, velocity.times[0])
        dtype = str(v.dtype).removeprefix("torch.")
        host = describe(model_of(self.pipe), run.facts, dtype=dtype)
        return host.model_copy(update={"call": {**call, **(host.call or {})}})

    def _maker(self, steps: int | None) -> Maker:
        levels = {} if steps is None else {"num_timesteps": steps + 1}
        return maker_of(self.pipe, None, {**self.call, **levels})

    @contextmanager
    def open(
        self, subject: Subject, times: Sequence[float] | None = None, steps: int | None = None
    ) -> Iterator[Counted]:
        """The velocities of one call: on BAGEL's grid of full or so many steps, and off it."""
        job, model, held = Job(*subject), model_of(self.pipe), Holding()
        later = replaced(self.pipe, decode_image=held.decode_later)
        with named(job), quiet(model), watching(model, held), later:
            self._maker(steps)(job)
        held.check(job)
        run = BagelRun(self.pipe, held)
        counted = BagelCounted(run, run.facts.times)
        if times is not None:
            counted.times = as_times(times)
        yield counted

    def grid(self, steps: int) -> Times:
        """The grid a user gets who asks BAGEL for so many steps, with one more timestep."""
        return run_times(steps + 1, self._facts.settings["timestep_shift"], self._home)

    def amount(self, evaluated: Sequence[float]) -> float:
        """What evaluations at these times cost, in those of the first step, by counted FLOPs.

        Where guidance is off, the model makes fewer passes.
        """
        first, *others = (self._flops_at(t) for t in (self.times[0], *evaluated))
        return sum(others) / first if first else float(len(evaluated))

    def _flops_at(self, t: float) -> int:
        kind = tuple(scales_at(t, self._facts).values())
        if kind not in self._flops:
            with torch.no_grad(), self.open(self._first) as velocity:
                evaluate = functools.partial(velocity.evaluate, velocity.run.noise, t)
                self._flops[kind] = count_flops(evaluate)
        return self._flops[kind]

    def plain_call(self, subject: Subject, steps: int) -> None:
        """The inferencer's own call."""
        with quiet(model_of(self.pipe)):
            self._maker(steps)(Job(*subject))

    def inside(self, cache: Any) -> NoReturn:
        """No cache that we have knows BAGEL's layers."""
        raise HostError("caches inside the model run on pipelines of diffusers, not on BAGEL")

    def write(self, pixels: NDArray[np.float32], stem: Path) -> Path:
        """A PNG."""
        from PIL import Image

        target = stem.with_name(f"{stem.name}.png")
        with writing(target) as draft:
            Image.fromarray((pixels * 255).round().astype(np.uint8)).save(draft)
        return target


def scales_at(t: float, run: Run) -> dict[str, float]:
    """The scales of guidance at a time, as BAGEL's loop compares it: in float32."""
    low, high = (np.float32(end) for end in run.settings["cfg_interval"])
    guided = bool(low < np.float32(t) <= high)
    return {name: run.settings[name] if guided else 1.0 for name in SCALES}


def device_of(model: Any) -> torch.device:
    """Where the model computes; what accelerate keeps elsewhere lies on no device."""
    places = (parameter.device for parameter in model.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


def _arguments(step: Any) -> dict[str, Any]:
    """What a held step is bound to."""
    assert isinstance(step, functools.partial)
    return step.keywords
