"""How a run begins under a plan: its call is read and checked, and the plan fitted to its grid."""

import json
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.diffusers.calls import RunningCall, run_breaks, running_call, start_step
from tacache.diffusers.checks import Said, check_call, warn_unread
from tacache.diffusers.endings import repeats, tell_unfinished
from tacache.diffusers.fingerprint import check_architecture
from tacache.diffusers.flow import check_flow_scheduler, run_times
from tacache.diffusers.matching import fit_to_run, warn_of_guidance, with_parts
from tacache.errors import HostError
from tacache.moving import from_step
from tacache.plan import Plan
from tacache.stepper import Stepper


class FullGrid(NamedTuple):
    """What the parent's `set_timesteps` prepared, and what the steps walk on."""

    timesteps: Tensor
    sigmas: Tensor


class BeginsRun:
    """The part of a scheduler with a plan that prepares a run; `FollowsPlan` has the rest."""

    # The parent's attributes, seen as K anchors outside `step` and as N steps inside.
    timesteps: Tensor
    sigmas: Tensor
    num_inference_steps: int
    config: Any
    index_for_timestep: Any
    _step_index: int | None
    _begin_index: int | None

    # Set before the parent's __init__, which may prepare a run already.
    plan: Plan | None = None
    said = Said()
    _stepper: Stepper | None = None
    _is_read = False  # the call that runs the plan
    _place: Any = None  # of that call in its code
    _is_told = False  # how the last run ended
    _has_warned = False  # of a call that cannot be read
    _source: Any = None  # the scheduler this one is a copy of
    _applied_to: Any = None  # a weak reference to the pipeline that `apply` was given

    def _load_plan(self, plan: dict[str, Any] | None, said: Said) -> None:
        """Take the plan out of the configuration; without one the scheduler acts as its parent."""
        check_flow_scheduler(self)
        self.plan = None if plan is None else Plan.from_json(json.dumps(plan), "the plan")
        self.said = said

    def _begin_run(self, before: Stepper | None) -> None:
        """Fit the plan to the grid that was just built, and show the pipeline its anchors."""
        if self.plan is None:
            return
        call, times = self._read_call(before), run_times(self)
        if call.pipeline is not None:
            check_architecture(call.pipeline, self.plan)
        check_call(call, self.plan, self.said)
        warn_of_guidance(self.plan, call.arguments)
        start = start_step(call.pipeline, len(times) - 1, self.said.strength)
        breaks = {*run_breaks(call.pipeline, call.arguments), *(self.said.breaks or ())}
        plan = fit_to_run(self.plan, times, start)
        self._follow(with_parts(plan, tuple(sorted(breaks, reverse=True))), start, call.pipeline)

    def _follow(self, plan: Plan, start: int, pipeline: Any) -> None:
        """Show the pipeline the anchors of a plan that begins at step `start` of the full grid."""
        self._has_noise, self._is_told = start == 0, False
        self._stepper, self._start, self._begun = Stepper(plan), start, 0
        # A copy of a pipeline's scheduler may step something beside the latents (LTX2's audio).
        own = getattr(pipeline, "scheduler", None)
        self._steps_latents = self._source is None or own is self
        anchors = [start + n for n in plan.anchors]
        with torch.inference_mode(False):  # a tensor made in that mode does not count its edits
            self._full = FullGrid(self.timesteps, self.sigmas.clone())
            self.sigmas = self._full.sigmas[[*anchors, start + plan.steps]]
        self.timesteps = self._full.timesteps[anchors]
        self.num_inference_steps = len(anchors)
        self._sigmas_version = self.sigmas._version

    def _read_call(self, before: Stepper | None) -> RunningCall:
        """Read the call that prepared this run; warn if the run before it was cut short."""
        call, place = running_call(self), self._place
        if before is not None and not self._is_told and (before.step or repeats(place, call.place)):
            tell_unfinished(before)
        self._is_read, self._place = call.is_read, call.place
        if call.pipeline is None and self._applied_to is not None:
            call = replace(call, pipeline=self._applied_to())
        if self.plan is not None and self.plan.evaluations < self.plan.steps:
            self._has_warned = self._has_warned or warn_unread(call, self.said)
        return call

    def _own(self) -> dict[str, Any]:
        """The attributes that belong to a copy too."""
        others = ("_source", "_applied_to", "_place")
        return {name: value for name, value in self.__dict__.items() if name not in others}

    @property
    def strength(self) -> float | None:
        """The strength that `apply` was given: where the plan starts."""
        return self.said.strength

    @property
    def run_plan(self) -> Plan | None:
        """The plan as it fits the run that `set_timesteps` last prepared."""
        return None if self._stepper is None else self._stepper.plan

    def tell_unfinished(self) -> str | None:
        """Warn once if the last run ended before its plan did, and return the warning."""
        if self._stepper is None or self._is_told:
            return None
        self._is_told = True
        return tell_unfinished(self._stepper)

    def leave(self) -> None:
        """The pipeline gets its own scheduler back."""
        self.tell_unfinished()

    def _check_begin(self, begin: int) -> None:
        """Refuse a start in mid-run: the pipeline would count its start in anchors."""
        if self._stepper is None or begin == self._begun:
            return
        if not self._skips_nothing:
            self._is_told = True
            raise HostError(
                "the pipeline wants to start in the middle of the run, at its own count of steps "
                "(strength below 1): apply(pipe, plan, strength=...) starts the plan at that noise "
                "level; then call the pipeline with strength=1.0"
            )
        later = from_step(self._stepper.plan, begin - self._begun)
        self._stepper, self._start, self._begun = Stepper(later), begin, begin

    @property
    def _skips_nothing(self) -> bool:
        """Whether every step is an anchor, so that the pipeline may start where it likes."""
        plan = self.run_plan
        skips = plan is None or plan.evaluations < plan.steps
        return not skips and not self.said.is_midway

    def _note_noise(self) -> None:
        """Note that the pipeline mixes a picture with noise, so that it may start midway."""
        self._has_noise = True
        unsaid = not self._is_read and self.strength is None
        if self._stepper is not None and unsaid and not self._skips_nothing:
            self._is_told = True
            raise HostError(
                "the loop mixes a picture with noise, and its call cannot be read, so it may start "
                "midway, at its own count of steps: say where, apply(pipe, plan, strength=...), or "
                "strength=1.0 for a start from noise alone"
            )
