"""The interface of a host: what calibrate, fit and generate ask of whatever runs a model."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacache.fitting.integrators import Integrator
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.storage.origin import Origin
from tacache.work.processes import Processes

Call = dict[str, Any]  # what a host is called with beside its prompt and seed
Pixels = NDArray[np.float32]  # (height, width, channels) in [0, 1]; a clip has frames first


class Trajectory(Protocol):
    """One sample's call, held in its loop: velocities at any state and step, in any order.

    A fit, a benchmark and a certificate see every model through this one interface.
    """

    @property
    def times(self) -> tuple[float, ...]:
        """Return the noise levels of its N steps, N + 1 numbers."""

    @property
    def breaks(self) -> tuple[float, ...]:
        """Return the levels below which another expert or guidance takes over."""

    @property
    def noise(self) -> Tensor:
        """Return the state it starts from, with the one sample along dim 0."""

    @property
    def state(self) -> Tensor | None:
        """Return the last evaluation's state as the model saw it; None where that is the same."""

    @property
    def settings(self) -> object:
        """Return what all runs of one fit must have in common beside grid and size."""

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        """Return the guided velocity at a state and step."""

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """Return the guided velocity at any time; asked only of a host with `any_time`."""

    @property
    def guidance(self) -> Callable[[float], object]:
        """Return the guidance at a time; evaluations with equal guidance cost the same."""

    @property
    def grid(self) -> tuple[float, ...]:
        """Return the noise levels that `evaluate` counts its steps by."""

    def finish(self, x: Tensor) -> Pixels | None:
        """Return what the host makes of the last state; None where that is no picture."""

    def origin(self) -> Origin:
        """Return what the run says of the model and of how it was called."""


class Host(Protocol):
    """What runs a model on prompts."""

    @property
    def any_time(self) -> bool:
        """Return whether an open run is evaluated off its grid too."""

    @property
    def family(self) -> str:
        """Return the name of the class that a method's published settings are listed under."""

    @property
    def pipe(self) -> Any:
        """Return what it runs: a pipeline or an inferencer."""

    def check(self, call: Call, *, fitting: bool = False) -> None:
        """Raise with the reason, before any work, if the call cannot be calibrated or fitted."""

    def processes(self) -> Processes:
        """Return the processes that share the work; a host that runs in one refuses a launcher."""

    def identity(self, call: Call) -> object:
        """Return what results depend on beside samples and arguments, as a value for JSON."""

    def quiet(self) -> AbstractContextManager[None]:
        """Switch off the host's own progress bars for the length of a `with` block."""

    def record(self, samples: Sequence[Sample], call: Call) -> Profile:
        """Return the profile of one call with full steps, which makes these samples together."""

    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> AbstractContextManager[Trajectory]:
        """Open one sample's call, held in its loop, on the host's own grid or on these times.

        Several may be open at once. The same seed gives the same noise, whatever the grid.
        """

    def integrator(self, runs: Sequence[Any], times: tuple[float, ...]) -> Integrator:
        """Return what moves these trajectories on from step 0, as the host itself steps."""

    def follow(self, plan: Plan | None, call: Call) -> AbstractContextManager[Call]:
        """Make calls follow the plan in a `with` block; None keeps what the host carries.

        The block's value is the call to make.
        """

    def full(self) -> AbstractContextManager[None]:
        """Make calls take full steps in a `with` block, whatever plan the host carries."""

    @property
    def run_plan(self) -> Plan | None:
        """Return the plan that the latest call followed, moved to its grid; None without a plan."""

    def draw(self, sample: Sample, call: Call) -> Pixels:
        """Return the picture or clip of one sample, by a plain call."""

    def with_steps(self, call: Call, steps: int) -> Call:
        """Return the same call with so many steps."""
