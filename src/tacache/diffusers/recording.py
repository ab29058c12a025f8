"""Full runs of a pipeline, measured from inside its scheduler as they go."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tacache.calibration import Recorder
from tacache.diffusers.calls import calling_pipeline, run_breaks
from tacache.diffusers.derived import like, subclass
from tacache.diffusers.flow import run_times
from tacache.diffusers.host import plain_scheduler


class Watcher:
    """What a scheduler saw in a call of its pipeline, which may walk the levels repeatedly."""

    def __init__(self) -> None:
        self.walks: list[Recorder] = []
        self.call: dict[str, Any] = {}
        self.breaks: tuple[float, ...] = ()
        self._expected = -1

    def see(self, scheduler: Any, v: Tensor) -> None:
        """Take in the velocity of the step that the scheduler has just made."""
        step = scheduler.step_index - 1
        if step != self._expected:  # another walk begins
            pipeline, self.call = calling_pipeline(scheduler)
            self.breaks = run_breaks(pipeline, self.call)
            self.walks.append(Recorder(run_times(scheduler)[step:]))
        self.walks[-1].add(v)
        self._expected = step + 1


@contextmanager
def recording(pipe: Any) -> Iterator[Watcher]:
    """Watch the velocities of the pipeline's calls, from its own scheduler's `step`."""
    before, plain, watcher = pipe.scheduler, plain_scheduler(pipe), Watcher()
    watched = like(plain, recording_scheduler(plain.__class__))
    watched.watcher = watcher
    pipe.scheduler = watched
    try:
        yield watcher
    finally:
        pipe.scheduler = before


@functools.cache
def recording_scheduler(parent: type) -> Any:
    """`parent` with a `step` that also tells a watcher."""
    plain_step: Any = parent.step  # type: ignore[attr-defined]

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = plain_step(self, model_output, timestep, sample, *args, **kwargs)
        self.watcher.see(self, model_output)
        return result

    return subclass("Recording", parent, {"step": step, "watcher": Watcher()})
