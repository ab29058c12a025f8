"""Schedulers that carry a plan: the pipeline's own class, stepping from anchor to anchor.

`set_timesteps` builds the full grid through the parent, and a `PlanRun` takes over from there: the
scheduler only delegates to it. The pipeline simply loops fewer times.
"""

import copy
import functools
import inspect
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import diffusers

# SchedulerMixin must be found in this module for `from_pretrained` to load these classes.
from diffusers import SchedulerMixin
from torch import Tensor

from tacache.diffusers.calls import RunningCall, repeats, running_call
from tacache.diffusers.checks import ApplyOptions, warn_unread
from tacache.diffusers.hooks import SchedulerHooks, hooked
from tacache.diffusers.plan_run import PlanRun
from tacache.diffusers.stepping import check_flow_scheduler
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.velocity import check_finite

CONFIG_FIELDS = ("plan", "strength", "breaks")  # what these classes add to the configuration


class PlanSchedulerMixin(SchedulerHooks):
    """Hooks over a flow scheduler that follow a plan; without one it acts as its parent."""

    PREFIX: ClassVar[str] = "Plan"

    # Set before the parent's __init__, which may prepare a run already.
    plan: Plan | None = None
    options = ApplyOptions()
    _run: PlanRun | None = None
    _place: Any = None  # of the call that prepared the run, in its code
    _has_warned = False  # of a call that cannot be read
    _is_stepping = False  # our own step is under way
    _source: Any = None  # the scheduler this one is a copy of
    _applied_to: Any = None  # a weak reference to the pipeline that `apply` was given
    _watch: Any = None  # what says that it was replaced by hand
    _beside: Any = None  # a weak reference to the scheduler of the first latent, for a further one
    _latent: str | None = None  # the name of that further one
    _is_copied_run = False  # prepared by the scheduler that this one is a copy of

    @classmethod
    def class_members(cls, parent: Any) -> dict[str, Any]:
        """Return a constructor that takes a plan, and where `from_pretrained` finds the class."""
        return {
            "__doc__": f"{parent.__name__} that follows a plan.",
            "__module__": __name__,
            "__init__": _constructor(parent.__init__),
        }

    @property
    def strength(self) -> float | None:
        """Return the strength that `apply` was given: where the plan starts."""
        return self.options.strength

    @property
    def run_plan(self) -> Plan | None:
        """Return the plan as it fits the run that `set_timesteps` last prepared."""
        return None if self._run is None else self._run.plan

    @property
    def evaluations(self) -> tuple[int, int] | None:
        """Return how many evaluations the run has used and how many it has; None before it begins.

        It holds in the middle of a step too, where the parent's own numbers are of the full grid.
        """
        run = self._run
        return None if run is None else (run.evaluated, run.plan.evaluations)

    def tell_unfinished(self) -> str | None:
        """Warn once if the last run ended before its plan did, and return the warning."""
        return None if self._run is None else self._run.tell_unfinished()

    def leave(self) -> None:
        """Say what is unfinished: the pipeline gets its own scheduler back."""
        self.tell_unfinished()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with a run of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self._own(), memo))
        copied._source, copied._applied_to = self._source or self, self._applied_to
        copied._is_copied_run = True
        if copied._run is not None:
            copied._run.is_told = True
        return copied

    def __reduce__(self) -> Any:
        """Reduce by the parent, which may be a class of the user's own."""
        return _without_attributes, (parent_class(type(self)),), self._own()

    def _own(self) -> dict[str, Any]:
        """Return the attributes that belong to a copy too."""
        apart = (
            "_source",
            "_applied_to",
            "_place",
            "_watch",
            "_beside",
            "_latent",
            "_is_copied_run",
        )
        return {name: value for name, value in self.__dict__.items() if name not in apart}

    def _load_plan(self, plan: dict[str, Any] | None, options: ApplyOptions) -> None:
        """Take the plan out of the configuration."""
        check_flow_scheduler(self)
        self.plan = None if plan is None else Plan.from_json(json.dumps(plan), "the plan")
        self.options = options

    def _prepare(self, prepare: Callable[[], None]) -> None:
        before, place, self._run = self._run, self._place, None
        self._is_copied_run = False
        prepare()
        self._begin_run(before)
        if self._run is not None and before is not None and self._place is not None:
            # WanAnimate prepares a run after each of its parts, the last one too.
            self._run.is_spare = before.stepper.is_done and not repeats(place, self._place)

    def _begin_run(self, before: PlanRun | None) -> None:
        """Follow the plan on the grid that was just built."""
        if self.plan is not None:
            self._run = PlanRun.of_call(self, self.plan, self._read_call(before), self.options)

    def _read_call(self, before: PlanRun | None) -> RunningCall:
        """Read the call that prepared this run; warn if the run before it was cut short."""
        call, place = running_call(self), self._place
        if before is not None and (before.stepper.step or repeats(place, call.place)):
            before.tell_unfinished()
        self._place = call.place
        if call.pipeline is None and self._applied_to is not None:
            call = replace(call, pipeline=self._applied_to())
        self._step_beside(call)
        if self.plan is not None and not self.plan.is_full:
            self._has_warned = self._has_warned or warn_unread(call, self.options)
        return call

    def _begin_at(self, set_begin_index: Callable[[int], None], index: int) -> None:
        if self._run is not None:
            self._run.check_begin(index)
        set_begin_index(index)

    def _mix(self) -> None:
        if self._run is not None:
            self._run.note_noise()

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: dict[str, Any]
    ) -> Any:
        if self._is_copied_run:
            self._find_latent()
        if self._beside is not None:
            self._check_together()
        run = self._run
        if run is None:
            return step(v, timestep, x, **options)
        self._is_stepping = True
        try:
            result = run.step(self, step, v, timestep, x, options)
        finally:
            self._is_stepping = False
        if run.stepper.is_done:
            check_finite(result[0])
        return result

    def _find_latent(self) -> None:
        """Follow the plan of the latent that a call steps with this copy."""
        self._is_copied_run = False
        call = running_call(self)
        self._step_beside(call)
        if self._run is None or self.plan is None:
            return
        if call.latent is not None or self.plan.latents is not None:
            self._run.step_latent(self, self.plan, call)

    def _step_beside(self, call: RunningCall) -> None:
        """Note which latent of a joint model is stepped, and the scheduler of the first."""
        self._latent = call.latent
        self._beside = None if call.latent is None else weakref.ref(call.pipeline.scheduler)

    def _check_together(self) -> None:
        """Stop where the latents of one loop would be evaluated at other steps."""
        runs = self._run, getattr(self._beside(), "_run", None)
        anchors = [None if run is None else run.plan.anchors for run in runs]
        if anchors[0] != anchors[1]:
            raise HostError(
                "the latents of this run are evaluated at other steps, since one of their "
                "schedulers was prepared or replaced by itself: put the plan in anew with "
                "apply(pipe, plan) or accelerate(pipe)"
            )

    def _init_step_index(self, timestep: Any) -> None:
        """Do as the parent does in its `step`: elsewhere another step stands for ours."""
        if self._run is not None and not self._is_stepping:
            self._run.refuse(
                "something else steps in the place of this scheduler, which carries a plan: only "
                "its own step rebuilds what lies between two evaluations. xDiT's wrapper does so "
                "with sequence or pipeline parallelism: run without them, or remove(pipe) first"
            )
        super()._init_step_index(timestep)  # type: ignore[misc]


def plan_scheduler(parent: type) -> Any:
    """Return the class that follows a plan with `parent`'s own grid and step.

    Args:
        parent: A scheduler class of diffusers, or one with its interface.

    Returns:
        The class. The signatures that pipelines and `from_config` inspect stay the parent's; its
        constructor takes `plan`, `strength` and `breaks` beside the parent's arguments.

    """
    return hooked(parent, PlanSchedulerMixin)


def parent_class(scheduler_class: type) -> Any:
    """Return the plain scheduler class behind a class that follows a plan."""
    bases = (base for base in scheduler_class.__mro__ if issubclass(base, SchedulerMixin))
    return next(base for base in bases if not issubclass(base, PlanSchedulerMixin))


def _without_attributes(parent: type) -> Any:
    """Return an object that follows a plan, before it has any attributes."""
    carrier = plan_scheduler(parent)
    return carrier.__new__(carrier)


def _constructor(plain_init: Any) -> Any:
    """Return the parent's constructor with a plan and what `apply` was told."""

    @functools.wraps(plain_init)
    def __init__(  # noqa: N807
        self: Any,
        *args: Any,
        plan: dict[str, Any] | None = None,
        strength: float | None = None,
        breaks: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        plain_init(self, *args, **kwargs)
        levels = None if breaks is None else list(breaks)
        self.register_to_config(plan=plan, strength=strength, breaks=levels)
        self._load_plan(plan, ApplyOptions(strength, None if breaks is None else tuple(breaks)))

    signature = inspect.signature(__init__)  # the parent's, to whose end `from_config` looks
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in CONFIG_FIELDS
    ]
    __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added]
    )
    return __init__


PlanFlowMatchEulerDiscreteScheduler = plan_scheduler(diffusers.FlowMatchEulerDiscreteScheduler)
PlanUniPCMultistepScheduler = plan_scheduler(diffusers.UniPCMultistepScheduler)
PlanDPMSolverMultistepScheduler = plan_scheduler(diffusers.DPMSolverMultistepScheduler)


def __getattr__(name: str) -> Any:
    """Return the class made for another parent, by name: what `from_pretrained` asks for."""
    prefix = PlanSchedulerMixin.PREFIX
    parent = (
        getattr(diffusers, name.removeprefix(prefix), None) if name.startswith(prefix) else None
    )
    if not (isinstance(parent, type) and issubclass(parent, SchedulerMixin)):
        reason = f"module {__name__!r} has no attribute {name!r}"
        if name.startswith(prefix):
            reason += ": its parent is not of diffusers; save it plain, and apply the plan again"
        raise AttributeError(reason)
    return plan_scheduler(parent)
