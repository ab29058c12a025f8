"""One line for a pipeline: its scheduler chooses a plan at each call, and learns a better one.

`accelerate` puts in a scheduler that carries no plan of its own. When a call prepares its run, and
size and steps are known, it asks a `Chooser` which plan to follow, and then acts as a scheduler
that carries this plan. In a full run it acts as its parent, bit for bit.
"""

import functools
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tacache.diffusers.calls import (
    RunningCall,
    can_start_midway,
    frame_runs,
    logger,
    midway_strength,
    run_breaks,
    start_step,
)
from tacache.diffusers.checks import Said, check_call
from tacache.diffusers.derived import like, subclass
from tacache.diffusers.fingerprint import check_architecture, check_host, running_origin
from tacache.diffusers.flow import run_times
from tacache.diffusers.host import plain_scheduler, put
from tacache.diffusers.keeping import RunningSource
from tacache.diffusers.matching import fit_to_run, warn_of_guidance, warn_of_solver, with_parts
from tacache.diffusers.midway import CutTimesteps
from tacache.diffusers.schedulers import FollowsPlan, parent_class, plan_scheduler
from tacache.errors import HostError, TACacheError
from tacache.host.accelerating import Chooser
from tacache.host.learning import RunRecord
from tacache.host.settings import Setting
from tacache.host.wish import wish_of
from tacache.instant import instant_plan
from tacache.plan import Plan

_CLAIMING = threading.Lock()


def accelerate(
    pipe: Any,
    *,
    speedup: float | None = None,
    evaluations: int | None = None,
    learn: int = 0,
    plan: Plan | str | Path | None = None,
) -> None:
    """Make the calls of `pipe` faster: `speedup` times (4 unless told), or to `evaluations`.

    Call the pipeline as before, with its own strength in image to image. Each call follows the
    stored plan that was fitted for just such a call. If there is none, it follows an instant plan,
    for which nothing was measured. A log line says which. With `learn=8` the first eight samples of
    a setting run in full; a plan is fitted to them and stored. With `plan`, a plan or the path of
    its file, every run that has its steps follows that plan.

    `remove(pipe)` undoes it. `pipe.scheduler.run_plan` is the plan that the last call followed; it
    is None after a full run.
    """
    wish = wish_of(speedup, evaluations, learn, plan)
    plain = plain_scheduler(pipe)
    if wish.plan is not None:
        check_host(pipe, wish.plan)
        warn_of_solver(wish.plan, plain)
    if isinstance(pipe.scheduler, FollowsPlan):
        pipe.scheduler.leave()
    scheduler = like(plain, accelerating_scheduler(plain.__class__))
    scheduler.chooser = Chooser(wish, logger)
    scheduler._plain, scheduler._applied_to = plain, weakref.ref(pipe)
    put(pipe, scheduler)


class Accelerates(FollowsPlan):
    """Mixin over a flow scheduler that chooses a plan for each run."""

    chooser: Chooser | None = None  # shared with copies; without one it acts as its parent
    _record: RunRecord | None = None
    _setting: Setting | None = None
    _cut_at: int | None = None  # the step at which the pipeline has cut its timesteps
    _owner: int | None = None  # the thread of the run

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with a run of its own, which chooses as this one does."""
        copied = super().__deepcopy__(memo)
        copied.chooser = self.chooser
        return copied

    def __reduce__(self) -> Any:
        """As the plain scheduler, which is what `save_pretrained` saves as well."""
        return _same, (like(self, parent_class(type(self))),)

    def _own(self) -> dict[str, Any]:
        others = ("chooser", "_record", "_owner", "_plain")
        return {name: value for name, value in super()._own().items() if name not in others}

    def leave(self) -> None:
        """The pipeline gets its own scheduler back; another process may go on learning."""
        super().leave()
        if self.chooser is not None:
            self.chooser.close()

    def _claim(self) -> None:
        """Refuse a run while another thread is in one: they would share one scheduler."""
        with _CLAIMING:
            other, mine = self._owner, threading.get_ident()
            if other not in (None, mine) and not self._is_over and self._runs_in(other):
                raise HostError(
                    "another thread is in a call of this pipeline, and both would share its "
                    "scheduler: make one call at a time, or give each thread a pipeline of its own"
                )
            self._owner = mine

    def _runs_in(self, thread: int | None) -> bool:
        """Whether a call of a pipeline with this scheduler is running in that thread."""
        frame = sys._current_frames().get(thread or 0)
        while frame is not None:
            if frame_runs(frame, self):
                return True
            frame = frame.f_back
        return False

    @property
    def _is_over(self) -> bool:
        """Whether the run that was prepared has made its last step."""
        if self._stepper is not None:
            return self._stepper.is_done
        return self._step_index is not None and self._step_index >= len(self.timesteps)

    def _begin_run(self, before: Any) -> None:
        """Choose for the run that was just prepared; where that fails, make its full steps."""
        self.plan, self._record, self._setting, self._cut_at = None, None, None, None
        if self.chooser is None:
            return
        call = self._read_call(before)
        if not call.is_read:
            self.chooser.say(
                "unread",
                "the call that runs this scheduler cannot be read, so its runs stay full: put a "
                "plan in with apply(pipe, plan, strength=1.0, breaks=()), which says what is "
                "not seen",
            )
            return
        try:
            self._choose(self.chooser, call)
        except TACacheError as error:
            self.chooser.say(str(error), "this run stays full: %s", error)
            self.plan = None

    def _choose(self, chooser: Chooser, call: RunningCall) -> None:
        times = run_times(self)
        start = _start_of(call, len(times) - 1)
        breaks = run_breaks(call.pipeline, call.arguments)
        origin = running_origin(call.pipeline, plain_scheduler(call.pipeline), call.arguments)
        run = Setting(origin, times[start:], breaks, len(times) - 1)
        self._check(chooser, call, run)
        chosen = chooser.choose(run, RunningSource(call))
        own = getattr(call.pipeline, "scheduler", None)
        if self._source is None or own is self:
            self._record, self._setting = chosen.record, run
        if chosen.plan is None:
            return
        check_architecture(call.pipeline, chosen.plan)
        warn_of_guidance(chosen.plan, call.arguments)
        plan = with_parts(fit_to_run(chosen.plan, times, start), breaks)
        self.plan = chosen.plan
        if not start:
            self._follow(plan, 0, call.pipeline)
            return
        begin = functools.partial(self._begin_midway, plan, start, call.pipeline)
        self.timesteps = CutTimesteps.of(self.timesteps, start, begin)

    @staticmethod
    def _check(chooser: Chooser, call: RunningCall, run: Setting) -> None:
        """Stop where the pipeline counts something in turns of its loop, whatever the plan."""
        evaluations = chooser.wish.budget(run.steps, run.whole, run.parts)
        if evaluations < run.steps:
            if can_start_midway(call.pipeline):  # where its own strength is followed
                call = replace(call, arguments={**call.arguments, "strength": None})
            check_call(call, instant_plan(run.times, evaluations, breaks=run.breaks), Said())

    def _begin_midway(self, plan: Plan, start: int, pipeline: Any) -> Tensor:
        """Begin the plan where the pipeline has just cut its timesteps."""
        if self._cut_at is None:
            self.timesteps = self.timesteps.as_subclass(Tensor)
            self._follow(plan, start, pipeline)
            self._cut_at = start
            if self._begin_index == start:
                self._begin_index = 0
        return self.timesteps

    def _stay_full(self) -> None:
        """Make the full steps of a run that should have started midway and did not."""
        self.timesteps, self.plan = self.timesteps.as_subclass(Tensor), None
        if self.chooser is not None:
            self.chooser.say(
                "midway",
                "this run stays full: the pipeline does not start at the step that its strength "
                "says, so a plan cannot start there",
            )

    def _see(self, record: RunRecord, v: Tensor, x: Tensor, x_next: Tensor, options: Any) -> None:
        """Record a full step; what goes wrong with that stops no run."""
        try:
            if options.get("per_token_timesteps") is not None:
                raise HostError("each token has a timestep of its own")
            record.see(x, -v if self.config.get("invert_sigmas") else v, x_next)
        except (TACacheError, OSError) as error:
            self._record = None
            if self.chooser is not None and self._setting is not None:
                self.chooser.give_up(self._setting, str(error))


@functools.cache
def accelerating_scheduler(parent: type) -> Any:
    """The class that chooses a plan for each run, with `parent`'s own grid and step.

    It has the parent's name and configuration, so that a saved pipeline has the plain scheduler.
    """
    carrier: Any = plan_scheduler(parent)
    plain: Any = parent

    @functools.wraps(plain.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain.__init__(self, *args, **kwargs)
        self._load_plan(None, Said())

    @functools.wraps(plain.set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        self._claim()
        carrier.set_timesteps(self, *args, **kwargs)

    def set_begin_index(self: Any, begin_index: int = 0) -> None:
        cut = self._cut_at is not None and begin_index == self._cut_at
        carrier.set_begin_index(self, 0 if cut else begin_index)

    @functools.wraps(plain.step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if self._owner not in (None, threading.get_ident()):
            raise HostError("another thread has begun a run with this scheduler: one at a time")
        if isinstance(self.timesteps, CutTimesteps):
            self._stay_full()
        result = carrier.step(self, model_output, timestep, sample, *args, **kwargs)
        if self._record is not None:
            self._see(self._record, model_output, sample, result[0], kwargs)
        return result

    members = {
        "__doc__": f"{parent.__name__} that chooses a plan for each run.",
        "__init__": __init__,
        "__module__": parent.__module__,
        "set_timesteps": set_timesteps,
        "set_begin_index": set_begin_index,
        "step": step,
    }
    return subclass("", parent, members, Accelerates, carrier)


def _start_of(call: RunningCall, steps: int) -> int:
    """The step that the strength of a call starts at."""
    return start_step(call.pipeline, steps, midway_strength(call.pipeline, call.arguments))


def _same(scheduler: Any) -> Any:
    return scheduler
