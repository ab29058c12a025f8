"""One line for a pipeline: its scheduler chooses a plan at each call, and learns a better one.

`accelerate` puts in a scheduler that carries no plan of its own. When a call prepares its run, and
size and steps are known, it asks a `Chooser` which plan to follow, and then acts as a scheduler
that carries this plan. In a full run it acts as its parent, bit for bit.
"""

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from tacache.diffusers.applying import plain_scheduler, put_each, run_grids
from tacache.diffusers.calls import (
    RunningCall,
    can_start_midway,
    frame_runs,
    logger,
    midway_strength,
    run_breaks,
    start_step,
)
from tacache.diffusers.checks import ApplyOptions, check_caches, check_call
from tacache.diffusers.fingerprint import (
    check_architecture,
    check_host,
    running_origin,
    warn_of_guidance,
    warn_of_solver,
)
from tacache.diffusers.hooks import ShownTimesteps, hooked_like, like
from tacache.diffusers.joint import plan_of_latent
from tacache.diffusers.kept_calls import RunningSource
from tacache.diffusers.plan_run import CALLED_AGAIN, PlanRun, fit_to_run, own_plan, with_parts
from tacache.diffusers.schedulers import PlanSchedulerMixin, parent_class
from tacache.diffusers.stepping import run_times, velocity_factor
from tacache.errors import HostError, TACacheError
from tacache.fitting.quality_goal import Measure
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.hosts.choosing import Chooser
from tacache.hosts.learning import RunRecord
from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.storage.signature import RunSignature
from tacache.velocity import check_full_run

_CLAIMING = threading.Lock()


def accelerate(
    pipe: Any,
    *,
    speedup: float | None = None,
    evaluations: int | None = None,
    like_steps: int | None = None,
    min_psnr: float | None = None,
    psnr_of: Measure = "mean",
    learn: int = 0,
    plan: Plan | str | Path | None = None,
) -> None:
    """Make the calls of `pipe` faster: `speedup` times, or to so many `evaluations`.

    In their place `like_steps=28` asks for a result as near to the flow as 28 Euler steps, and
    `min_psnr=35` for pictures with this PSNR to those of the full run. Without any of the four, a
    run has the fewest evaluations that keep its pictures near to those of the full run, by their
    number of steps (`tacache.instant.default_evaluations`): 13 of 28 or 50.

    Call the pipeline as before, with its own strength in image to image. Each call follows the
    stored plan that was fitted for just such a call; of those that promise a quality by their
    certificates, the one with the fewest evaluations. If there is none, it follows an instant plan,
    for which nothing was measured on this model; no such plan is known to have a PSNR, so that
    `min_psnr` then makes all steps. A log line says which.

    `remove(pipe)` undoes it. `pipe.scheduler.run_plan` is the plan that the last call followed; it
    is None after a full run.

    Args:
        pipe: A flow pipeline of diffusers.
        speedup: Steps for each evaluation.
        evaluations: How often the model is evaluated in a call, in place of a speedup.
        like_steps: The Euler steps that are as near to the flow as the result shall be.
        min_psnr: The PSNR in dB that pictures shall have to those of the full run.
        psnr_of: Whether that is the mean over pictures, or with "p5" their 5th percentile.
        learn: How many samples of a setting run in full first, for a plan that is fitted to them
            and stored; 0 for none. For a quality it is the smallest budget that reaches it.
        plan: A plan or the path of its file, which every run that has its steps follows.

    Raises:
        HostError: The pipeline's scheduler cannot carry a plan.
        PlanError: An option makes no sense.

    """
    options = AccelerateOptions(
        speedup=speedup,
        evaluations=evaluations,
        like_steps=like_steps,
        min_psnr=min_psnr,
        psnr_of=psnr_of,
        learn=learn,
        plan=plan,
    )
    plain = plain_scheduler(pipe)
    if options.own_plan is not None:
        check_host(pipe, options.own_plan)
        warn_of_solver(options.own_plan, plain)
    if isinstance(pipe.scheduler, PlanSchedulerMixin):
        pipe.scheduler.leave()
    chooser = Chooser(options, logger)

    def choosing(plain: Any) -> Any:
        scheduler = hooked_like(plain, AcceleratedSchedulerMixin)
        scheduler.chooser = chooser
        return scheduler

    put_each(pipe, choosing)


class AcceleratedSchedulerMixin(PlanSchedulerMixin):
    """Hooks over a flow scheduler that choose a plan for each run.

    The class has the parent's name and configuration, so that a saved pipeline has the plain
    scheduler.
    """

    PREFIX: ClassVar[str] = ""

    chooser: Chooser | None = None  # shared with copies; without one it acts as its parent
    _record: RunRecord | None = None
    _setting: RunSignature | None = None
    _cut_at: int | None = None  # the step at which the pipeline has cut its timesteps
    _owner: int | None = None  # the thread of the run
    _preparing: Callable[[], None] | None = None  # how the run is prepared, while it is

    @classmethod
    def class_members(cls, parent: Any) -> dict[str, Any]:
        """Return what makes the class look like the parent where it is saved."""
        doc = f"{parent.__name__} that chooses a plan for each run."
        return {"__doc__": doc, "__module__": parent.__module__}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with a run of its own, which chooses as this one does."""
        copied = super().__deepcopy__(memo)
        copied.chooser = self.chooser
        return copied

    def __reduce__(self) -> Any:
        """Reduce as the plain scheduler, which is what `save_pretrained` saves as well."""
        return _same, (like(self, parent_class(type(self))),)

    def _own(self) -> dict[str, Any]:
        apart = ("chooser", "_record", "_owner", "_plain", "_preparing")
        return {name: value for name, value in super()._own().items() if name not in apart}

    def leave(self) -> None:
        """Let another process go on learning: the pipeline gets its own scheduler back."""
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
        """Return whether a call of a pipeline with this scheduler is running in that thread."""
        frame = sys._current_frames().get(thread or 0)
        while frame is not None:
            if frame_runs(frame, self):
                return True
            frame = frame.f_back
        return False

    @property
    def _is_over(self) -> bool:
        """Return whether the run that was prepared has made its last step."""
        if self._run is not None:
            return self._run.stepper.is_done
        return self._step_index is not None and self._step_index >= len(self.timesteps)

    def _prepare(self, prepare: Callable[[], None]) -> None:
        self._claim()
        self._preparing = prepare
        try:
            super()._prepare(prepare)
        finally:
            self._preparing = None

    def _begin_run(self, before: PlanRun | None) -> None:
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
        check_caches(call.pipeline)
        times = run_times(self)
        start = _start_of(call, len(times) - 1)
        breaks = run_breaks(call.pipeline, call.arguments)
        own = plain_scheduler(call.pipeline)
        origin = running_origin(call.pipeline, own, call.arguments)
        first, latents = run_grids(call, own, self._preparing, times)
        cut = {name: grid[start:] for name, grid in latents.items()}
        run = RunSignature(origin, first[start:], breaks, len(first) - 1, cut)
        self._check(chooser, call, run)
        chosen = chooser.choose(run, RunningSource(call))
        if getattr(call.pipeline, "scheduler", None) is self:
            self._record, self._setting = chosen.record, run
        if chosen.plan is None:
            return
        check_architecture(call.pipeline, chosen.plan)
        for name in latents:  # or none of them follows it
            plan_of_latent(chosen.plan, name, call.pipeline)
        warn_of_guidance(chosen.plan, call.arguments)
        plan = fit_to_run(own_plan(self, chosen.plan, call), times, start)
        plan = plan if call.latent is not None else with_parts(plan, breaks)
        self.plan = chosen.plan
        if not start:
            self._run = PlanRun(self, plan, call, ApplyOptions())
            return
        about = replace(call, arguments={})  # what is kept until the pipeline cuts holds no states
        begin = functools.partial(self._begin_midway, plan, start, about)
        self.timesteps = CutTimesteps.of(self.timesteps, start=start, begin=begin)

    @staticmethod
    def _check(chooser: Chooser, call: RunningCall, run: RunSignature) -> None:
        """Stop where the pipeline counts something in turns of its loop, whatever the plan."""
        evaluations = chooser.options.budget(run.steps, run.whole, run.parts)
        if evaluations < run.steps:
            if can_start_midway(call.pipeline):  # where its own strength is followed
                call = replace(call, arguments={**call.arguments, "strength": None})
            check_call(
                call, instant_plan(run.times, evaluations, breaks=run.breaks), ApplyOptions()
            )

    def _begin_midway(self, plan: Plan, start: int, call: RunningCall) -> Tensor:
        """Begin the plan where the pipeline has just cut its timesteps."""
        if self._cut_at is None:
            self.timesteps = self.timesteps.as_subclass(Tensor)
            self._run = PlanRun(self, plan, call, ApplyOptions(), start)
            self._cut_at = start
            if self._begin_index == start:
                self._begin_index = 0
        return self.timesteps

    def _begin_at(self, set_begin_index: Callable[[int], None], index: int) -> None:
        is_cut = self._cut_at is not None and index == self._cut_at
        super()._begin_at(set_begin_index, 0 if is_cut else index)

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: dict[str, Any]
    ) -> Any:
        if self._owner not in (None, threading.get_ident()):
            raise HostError("another thread has begun a run with this scheduler: one at a time")
        if isinstance(self.timesteps, CutTimesteps):
            self._stay_full()
        if self._run is None and self._is_over:
            raise HostError(CALLED_AGAIN)
        result = super()._step(step, v, timestep, x, options)
        if self._run is None and self._is_over:
            check_full_run(result[0])
        first = self if self._beside is None else self._beside()
        if isinstance(first, AcceleratedSchedulerMixin) and first._record is not None:
            first._see(first._record, self, v, x, result[0], options)
        return result

    def _stay_full(self) -> None:
        """Make the full steps of a run that should have started midway and did not."""
        self.timesteps, self.plan = self.timesteps.as_subclass(Tensor), None
        if self.chooser is not None:
            self.chooser.say(
                "midway",
                "this run stays full: the pipeline does not start at the step that its strength "
                "says, so a plan cannot start there",
            )

    def _see(
        self, record: RunRecord, by: Any, v: Tensor, x: Tensor, x_next: Tensor, options: Any
    ) -> None:
        """Record a full step that a scheduler made; what goes wrong with that stops no run."""
        try:
            if options.get("per_token_timesteps") is not None:
                raise HostError("each token has a timestep of its own")
            factor = velocity_factor(by)
            v = v if factor == 1 else v * factor
            latents = () if self._setting is None else self._setting.latents
            if latents:
                record.see_latent(by._latent, 1 + len(latents), x, v, x_next)
            else:
                record.see(x, v, x_next)
        except (TACacheError, OSError) as error:
            self._record = None
            if self.chooser is not None and self._setting is not None:
                self.chooser.give_up(self._setting, str(error))


def _start_of(call: RunningCall, steps: int) -> int:
    """Return the step that the strength of a call starts at."""
    return start_step(call.pipeline, steps, midway_strength(call.pipeline, call.arguments))


class CutTimesteps(ShownTimesteps):
    """The full timesteps of a run that starts midway; `timesteps[start:]` is what `begin` gives.

    Pipelines cut the timesteps at the step where they start, counted in those they see. They see
    all of them here, and where they cut, they get the anchors from there on.
    """

    start: int
    begin: Callable[[], Tensor]

    def __getitem__(self, index: Any) -> Tensor:
        at_start = isinstance(index, slice) and index == slice(self.start, None, None)
        return self.begin() if at_start else self.plain[index]


def _same(scheduler: Any) -> Any:
    return scheduler
