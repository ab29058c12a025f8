"""Full runs of a pipeline, measured from inside its scheduler as they go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tacache.calibration import Recorder
from tacache.diffusers.applying import plain_scheduler
from tacache.diffusers.calls import run_breaks, running_call
from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.diffusers.stepping import run_times


class RunWatcher:
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
            call = running_call(scheduler)
            self.call, self.breaks = call.arguments, run_breaks(call.pipeline, call.arguments)
            self.walks.append(Recorder(run_times(scheduler)[step:]))
        self.walks[-1].add(v)
        self._expected = step + 1


@contextmanager
def recording(pipe: Any) -> Iterator[RunWatcher]:
    """Watch the velocities of the pipeline's calls, from its own scheduler's `step`."""
    before, plain, watcher = pipe.scheduler, plain_scheduler(pipe), RunWatcher()
    pipe.scheduler = hooked_like(plain, RecordingHooks)
    pipe.scheduler.watcher = watcher
    try:
        yield watcher
    finally:
        pipe.scheduler = before


class RecordingHooks(SchedulerHooks):
    """Hooks whose `step` also tells a watcher."""

    watcher: RunWatcher

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: dict[str, Any]
    ) -> Any:
        result = step(v, timestep, x, **options)
        self.watcher.see(self, v)
        return result
