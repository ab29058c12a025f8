"""What a benchmark knows of a model: calls that are opened as counted velocity functions."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacache.errors import HostError
from tacache.profile import Origin

if TYPE_CHECKING:
    from tacache.lab.methods.inside import BlockMeter, Cache

Times = tuple[float, ...]


class Subject(NamedTuple):
    """What is drawn: a prompt and the seed of its noise."""

    prompt: str
    seed: int


class OpenRun(Protocol):
    """A model's run that is held in its loop: one sample, along dim 0."""

    @property
    def noise(self) -> Tensor:
        """The state it starts from."""

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """The guided velocity at a state and step."""

    def finish(self, x: Tensor) -> Any:
        """What the model's host makes of the last state."""


class Counted:
    """The velocity function of an open call, and the times at which the model was evaluated.

    With a cache inside the model that is where its blocks really ran, as the meter says.
    """

    def __init__(self, run: OpenRun, times: Times, meter: "BlockMeter | None" = None) -> None:
        self.run, self.times, self.meter = run, times, meter
        self.evaluated: list[float] = []
        self._step = {t: n for n, t in enumerate(times[:-1])}

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The velocity by the model."""
        v = self.evaluate(x, t)
        if self.meter is None or self.meter.took():
            self.evaluated.append(t)
        return v

    def evaluate(self, x: Tensor, t: float) -> Tensor:
        """The same, uncounted; t is a time of the call's grid."""
        if t not in self._step:
            raise HostError(f"t={t} is not on the grid of the call")
        return self.run.evaluate(x, self._step[t])

    def finish(self, x: Tensor) -> NDArray[np.float32]:
        """What the model's host makes of the last state: values in [0, 1], channels last."""
        return np.asarray(self.run.finish(x)[0][0], dtype=np.float32)

    @property
    def equivalent_evaluations(self) -> float | None:
        """With a cache inside the model, the evaluations that its blocks' work amounts to."""
        return None if self.meter is None else self.meter.equivalent_evaluations

    @property
    def noise_sha256(self) -> str:
        """A hash of the noise the call starts from."""
        return hashlib.sha256(self.run.noise.float().cpu().numpy().tobytes()).hexdigest()


class Calls(ABC):
    """Opens calls of a model's host, such as a pipeline, with a benchmark's arguments.

    `times` is the grid of its full steps and `host` what it is; both are read off a first call,
    which also pays the costs that come only once.
    """

    any_time: ClassVar[bool] = False  # whether an open call is evaluated off its grid, too

    def __init__(self, pipe: Any, call: dict[str, Any], first: Subject) -> None:
        self.pipe, self._first = pipe, first
        self.call = self._checked(call)
        self._grids: dict[int, Times] = {}
        with torch.no_grad(), self.open(first) as velocity:
            run: Any = velocity.run
            self.times, self.breaks = velocity.times, tuple(run.breaks)
            self.device: torch.device = run.noise.device
            self.host = self._described(velocity, call)

    @abstractmethod
    def _checked(self, call: dict[str, Any]) -> dict[str, Any]:
        """What the host is called with; a misspelt argument is an error."""

    @abstractmethod
    def _described(self, velocity: Counted, call: dict[str, Any]) -> Origin:
        """What an open call says of the model and how it is called."""

    @abstractmethod
    def open(
        self, subject: Subject, times: Sequence[float] | None = None, steps: int | None = None
    ) -> AbstractContextManager[Counted]:
        """The velocities of one call: on the host's grid of full or so many steps, or on these.

        The same seed gives the same noise, whatever the grid.
        """

    @abstractmethod
    def inside(self, cache: "Cache") -> AbstractContextManager[None]:
        """Every call that is opened meanwhile has this cache, in a new state, inside the model."""

    @abstractmethod
    def plain_call(self, subject: Subject, steps: int) -> None:
        """The host's own call, in this thread."""

    @abstractmethod
    def write(self, pixels: NDArray[np.float32], stem: Path) -> Path:
        """A picture or clip, channels last, in a file; complete or not there."""

    @property
    def steps(self) -> int:
        """N, the number of full steps."""
        return len(self.times) - 1

    def key(self, *more: Any) -> str:
        """A hash of the model, its arguments and `more`: the name of what was made with them."""
        content = [self.host.model_dump(mode="json"), *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    def grid(self, steps: int) -> Times:
        """The grid a user gets who asks the host for so many steps."""
        if steps not in self._grids:
            with self.open(self._first, steps=steps) as velocity:
                self._grids[steps] = velocity.times
        return self._grids[steps]

    def amount(self, evaluated: Sequence[float]) -> float:
        """What evaluations at these times cost, in those of the first step."""
        return float(len(evaluated))


class SampleVelocity:
    """velocity(x, t, sample=numbers): each sample in a call of its own, open until the end.

    Off the grid of full steps, further calls are opened, one for each time, where they must be.
    """

    def __init__(self, caller: Calls, subjects: Sequence[Subject], stack: ExitStack) -> None:
        self._caller, self._subjects, self._stack = caller, subjects, stack
        self._calls: dict[tuple[int, float | None], Counted] = {}
        self._known = frozenset(caller.times[:-1])

    def __call__(self, x: Tensor, t: float, sample: Sequence[int]) -> Tensor:
        """The velocities of these samples, one after the other."""
        rows = [self._call(i, t)(x[k : k + 1], t) for k, i in enumerate(sample)]
        return torch.cat(rows)

    def _call(self, i: int, t: float) -> Counted:
        fits = self._caller.any_time or t in self._known
        place = (i, None if fits else t)
        if place not in self._calls:
            end = self._caller.times[-1]
            # Two steps: Mochi cannot count to one.
            times = None if fits else (t, (t + end) / 2, end)
            opened = self._caller.open(self._subjects[i], times)
            self._calls[place] = self._stack.enter_context(opened)
        return self._calls[place]
