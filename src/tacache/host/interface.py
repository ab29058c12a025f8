"""The interface of a host: what each verb asks of whatever runs the model."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacache.fitting.walking import Walk
from tacache.plan import Plan
from tacache.profile import Origin, Profile
from tacache.prompts import Sample
from tacache.work.processes import Processes

Call = dict[str, Any]  # what a host is called with beside its prompt and seed
Pixels = NDArray[np.float32]  # (height, width, channels) in [0, 1]; a clip has frames first


class OpenRun(Protocol):
    """One sample's call, held in its loop: its velocities at any state, in any order."""

    @property
    def times(self) -> tuple[float, ...]:
        """The noise levels of its N steps, N + 1 numbers."""

    @property
    def breaks(self) -> tuple[float, ...]:
        """The levels below which another expert or guidance takes over."""

    @property
    def noise(self) -> Tensor:
        """The state it starts from, with the one sample along dim 0."""

    @property
    def state(self) -> Tensor | None:
        """The state of the last evaluation as the model saw it; None where it is the one given."""

    @property
    def settings(self) -> object:
        """What all runs of one fit must have in common beside grid and size."""

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """The guided velocity at a state and step."""

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """The guided velocity at any time; asked only of a host with `any_time`."""

    @property
    def guidance(self) -> Callable[[float], object]:
        """What guidance is at a time: evaluations with the same cost the same."""

    @property
    def grid(self) -> tuple[float, ...]:
        """The noise levels that `evaluate` counts its steps by."""

    def finish(self, x: Tensor) -> Pixels | None:
        """What the host makes of the last state; None where that is no picture."""

    def origin(self) -> Origin:
        """What the run says of the model and of how it was called."""


class Host(Protocol):
    """What runs a model on prompts."""

    @property
    def any_time(self) -> bool:
        """Whether an open run is evaluated off its grid too."""

    @property
    def family(self) -> str:
        """The class that published settings of methods go by."""

    @property
    def pipe(self) -> Any:
        """What it runs: a pipeline, an inferencer."""

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Refuse with a reason, before any work, what cannot be calibrated or fitted."""

    def processes(self) -> Processes:
        """The processes that share the work out; a host that runs in one refuses a launcher."""

    def identity(self, call: Call) -> object:
        """What results depend on beside samples and arguments, as JSON can hold it."""

    def quiet(self) -> AbstractContextManager[None]:
        """No progress bars of the host's own meanwhile."""

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """The profile of one call with full steps, which makes these samples together."""

    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> AbstractContextManager[OpenRun]:
        """One sample's call, held in its loop, on the host's own grid or on these times.

        Several may be open at once. The same seed gives the same noise, whatever the grid.
        """

    def walk(self, runs: Sequence[Any], times: tuple[float, ...]) -> Walk:
        """These open runs at step 0, to step on as the host itself does."""

    def follow(self, plan: Plan | None, call: Call) -> AbstractContextManager[Call]:
        """Calls follow the plan meanwhile, or what the host carries where it is None.

        The block's value is what to call the host with.
        """

    def full(self) -> AbstractContextManager[None]:
        """Calls make full steps meanwhile, whatever plan the host carries."""

    @property
    def run_plan(self) -> Plan | None:
        """The plan as the latest call took it, while one is followed."""

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """The picture or clip of one sample, by a plain call."""

    def with_steps(self, call: Call, steps: int) -> Call:
        """The same call with so many steps."""
