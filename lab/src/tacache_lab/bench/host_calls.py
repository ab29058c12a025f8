"""What a benchmark knows of a model: calls of its host, opened as counted velocity functions."""

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacache.errors import HostError, named
from tacache.hosts import Call, Host, Pixels, Trajectory, write
from tacache.models import frame_rate
from tacache.prompts import Sample
from tacache_lab.flops import count_flops
from tacache_lab.methods.seam import Evaluations, SamplingProblem

if TYPE_CHECKING:
    from tacache_lab.methods.inside import BlockMeter, Cache

Times = tuple[float, ...]
SMALL = 256  # pixels to a side


class Counted:
    """The velocity function of an open call, with a count of the evaluations of the model.

    With a cache inside the model, `meter` says at which steps the blocks of the model really ran:
    only these count. `spent` counts every call of the function.
    """

    def __init__(
        self,
        run: Trajectory,
        spent: Evaluations,
        *,
        any_time: bool = False,
        meter: "BlockMeter | None" = None,
    ) -> None:
        self.run, self.times, self.meter = run, run.times, meter
        self._evaluations, self._spent = Evaluations(), spent
        self._any_time = any_time
        self._step = {t: n for n, t in enumerate(run.grid[:-1])}

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """Return the velocity by the model."""
        v = self.evaluate(x, t)
        if self.meter is None or self.meter.took():
            self._evaluations.note(t)
        self._spent.note(t)
        return v

    @property
    def evaluated(self) -> Times:
        """Return the times at which the model was evaluated, in order."""
        return self._evaluations.times[0]

    def evaluate(self, x: Tensor, t: float) -> Tensor:
        """Return the same, uncounted.

        T is a time of the call's grid, or any where the host has it.
        """
        if t in self._step:
            return self.run.evaluate(x, self._step[t])
        if not self._any_time:
            raise HostError(f"t={t} is not on the grid of the call")
        return self.run.evaluate_at(x, t)

    def finish(self, x: Tensor) -> Pixels:
        """Return what the model's host makes of the last state."""
        pixels = self.run.finish(x)
        if pixels is None:
            raise HostError("the host made no picture of the last state")
        return pixels

    @property
    def equivalent_evaluations(self) -> float | None:
        """Return the evaluations that the work of a cache inside the model amounts to."""
        return None if self.meter is None else self.meter.equivalent_evaluations

    @property
    def noise_sha256(self) -> str:
        """Return a hash of the noise the call starts from."""
        return hashlib.sha256(self.run.noise.float().cpu().numpy().tobytes()).hexdigest()


class Calls:
    """Opens calls of a host with a benchmark's arguments.

    `times` is the grid of its full steps and `host` its origin; both are read off a first call,
    which also pays the costs that come only once.
    """

    def __init__(self, source: Host, call: Call, first: Sample) -> None:
        self.source, self.call, self._first = source, dict(call), first
        self._placing: Callable[[], AbstractContextManager[BlockMeter]] | None = None
        self._spent = Evaluations()
        self._grids: dict[int, Times] = {}
        self._flops: dict[object, int] = {}  # of an evaluation, by its guidance
        source.check(self.call)
        with torch.no_grad(), self.open(first) as velocity:
            run = velocity.run
            self.times, self.breaks = velocity.times, tuple(run.breaks)
            unsaid = {"weights": None, "negative": None}  # which earlier records do not say
            self.device, self.host = run.noise.device, run.origin().model_copy(update=unsaid)
            self._guidance = run.guidance

    @property
    def pipe(self) -> Any:
        """Return what the host runs: a pipeline, or an inferencer."""
        return self.source.pipe

    @property
    def any_time(self) -> bool:
        """Return whether an open call is evaluated off its grid, too."""
        return self.source.any_time

    @property
    def steps(self) -> int:
        """Return N, the number of full steps."""
        return len(self.times) - 1

    @contextmanager
    def open(
        self, sample: Sample, times: Sequence[float] | None = None, steps: int | None = None
    ) -> Iterator[Counted]:
        """Open one call as a velocity function, on the host's grid or on these times.

        The same seed gives the same noise, whatever the grid.
        """
        call = self.call if steps is None else self.source.with_steps(self.call, steps)
        with ExitStack() as stack:
            meter = stack.enter_context((self._placing or nullcontext)())
            with named(sample):
                run = stack.enter_context(self.source.open(sample, call, times))
            if len(run.noise) != 1:
                raise HostError(f"a call makes {len(run.noise)} samples: ask for one")
            yield Counted(run, self._spent, any_time=self.any_time, meter=meter)

    @contextmanager
    def counting(self, told: Callable[[], None]) -> Iterator[Evaluations]:
        """Count what all calls that are opened meanwhile evaluate; `told` is called after each."""
        before, self._spent = self._spent, Evaluations(told=told)
        try:
            yield self._spent
        finally:
            self._spent = before

    @contextmanager
    def inside(self, cache: "Cache") -> Iterator[None]:
        """Put a cache, in a new state, inside the model of every call that is opened meanwhile."""
        from tacache_lab.methods.inside import placed

        if self._placing is not None:
            raise HostError("there is a cache inside the model already: one at a time")
        self._placing = functools.partial(placed, self.pipe, cache, self.steps, self._branches)
        try:
            yield
        finally:
            self._placing = None

    @functools.cached_property
    def _branches(self) -> int:
        """Return how often a step calls the model: once for each branch of its guidance."""
        from tacache_lab.methods.inside import check_supported, metered

        check_supported(self.pipe)
        with metered(self.pipe.transformer) as meter, self.open(self._first):
            return len(meter.branches)

    def plain_call(self, sample: Sample, steps: int) -> None:
        """Run the host's own call, in this thread."""
        with self.source.quiet(), self.source.full():
            self.source.draw(sample, self.source.with_steps(self.call, steps))

    def key(self, *more: Any) -> str:
        """Return a hash of the model, its arguments and `more`.

        The name of what was made with them.
        """
        content = [self.host.model_dump(mode="json"), *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    def grid(self, steps: int) -> Times:
        """Return the grid a user gets who asks the host for so many steps."""
        if steps not in self._grids:
            with self.open(self._first, steps=steps) as velocity:
                self._grids[steps] = velocity.times
        return self._grids[steps]

    def grid_for(self, sample: Callable[[SamplingProblem], Tensor]) -> Times | None:
        """Return the times that a method is going to ask for.

        None where the full grid has them all.
        """
        asked: set[float] = set()

        def rehearsed(x: Tensor, t: float) -> Tensor:
            asked.add(t)
            return x

        sample(
            SamplingProblem(
                rehearsed, torch.linspace(-1.0, 1.0, 8)[None], self.times, grid=self.grid
            )
        )
        if asked <= set(self.times[:-1]):
            return None
        return (*sorted(asked, reverse=True), self.times[-1])

    def amount(self, evaluated: Sequence[float]) -> float:
        """Return what evaluations at these times cost, in those of the first step.

        Where guidance is off the model may make fewer passes: operations are counted once for each
        kind of guidance.
        """
        kinds = [self._guidance(t) for t in (self.times[0], *evaluated)]
        if len(set(kinds)) == 1:
            return float(len(evaluated))
        first, *costs = (
            self._flops_of(kind, t)
            for kind, t in zip(kinds, (self.times[0], *evaluated), strict=True)
        )
        return sum(costs) / first if first else float(len(evaluated))

    def _flops_of(self, kind: object, t: float) -> int:
        if kind not in self._flops:
            with torch.no_grad(), self.open(self._first) as velocity:
                evaluate = functools.partial(velocity.evaluate, velocity.run.noise, t)
                self._flops[kind] = count_flops(evaluate)
        return self._flops[kind]

    def write(self, pixels: Pixels, stem: Path) -> Path:
        """Return a PNG, or a clip: a small one as WebP, as an MP4 would blur what is compared."""
        suffix = ".webp" if max(pixels.shape[-3:-1]) <= SMALL else ".mp4"
        return write(pixels, stem, suffix, frame_rate(self.host.model))


# what a model has that a host knows it by -> where that host is
KNOWN_BY = {
    "interleave_inference": ("tacache.bagel.inferencer", "BagelHost"),
    "scheduler": ("tacache.diffusers.pipeline", "PipelineHost"),
}


def host_of(model: Any) -> Host:
    """Return the host that runs a model."""
    if hasattr(model, "with_steps"):  # a host already
        host: Host = model
        return host
    for name, (module, kind) in KNOWN_BY.items():
        if hasattr(model, name):
            host = getattr(importlib.import_module(module), kind)(model)
            return host
    raise HostError(
        f"{type(model).__name__} is neither a pipeline of diffusers nor BAGEL's inferencer: give "
        "one of these, or a tacache.hosts.Host"
    )
