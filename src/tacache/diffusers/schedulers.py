"""Schedulers that carry a plan: the pipeline's own class, stepping from anchor to anchor.

`set_timesteps` builds the full grid through the parent and then shows the pipeline the anchors
only. `step` advances from one anchor to the next with the parent's own step, giving it the full
grid meanwhile; a fitted plan on Euler takes one step across. The pipeline simply loops fewer times.
"""

import copy
import functools
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import diffusers
import torch

# SchedulerMixin must be found in this module for `from_pretrained` to load these classes.
from diffusers import SchedulerMixin
from torch import Tensor

from tacache.diffusers.calls import calling_pipeline, check_call, run_breaks, start_step
from tacache.diffusers.fingerprint import check_architecture
from tacache.diffusers.flow import check_flow_scheduler, run_times
from tacache.diffusers.matching import check_latent_shape, fit_to_run, warn_of_guidance, with_parts
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.stepper import Stepper
from tacache.velocity import check_finite

PREFIX = "Plan"


class FullGrid(NamedTuple):
    """What the parent's `set_timesteps` prepared, and what the steps walk on."""

    timesteps: Tensor
    sigmas: Tensor


class FollowsPlan:
    """Mixin over a flow scheduler; `plan_scheduler` puts the two together."""

    # The parent's attributes, seen as K anchors outside `step` and as N steps inside.
    timesteps: Tensor
    sigmas: Tensor
    num_inference_steps: int
    config: Any
    _step_index: int | None
    _begin_index: int | None

    # Set before the parent's __init__, which may prepare a run already.
    plan: Plan | None = None
    strength: float | None = None
    _stepper: Stepper | None = None
    _is_copy = False

    def _load_plan(self, plan: dict[str, Any] | None, strength: float | None) -> None:
        """Take the plan out of the configuration; without one the scheduler acts as its parent."""
        check_flow_scheduler(self)
        self.plan = None if plan is None else Plan.from_json(json.dumps(plan), "the plan")
        self.strength = strength

    def _begin_run(self) -> None:
        """Fit the plan to the grid that was just built, and show the pipeline its anchors."""
        if self.plan is None:
            return
        pipeline, call = calling_pipeline(self)
        if pipeline is not None:
            check_architecture(pipeline, self.plan)
        times = run_times(self)
        check_call(pipeline, call, self.plan, self.strength)
        warn_of_guidance(self.plan, call)
        start = start_step(pipeline, len(times) - 1, self.strength)
        plan = fit_to_run(self.plan, times, start)
        plan = with_parts(plan, run_breaks(pipeline, call))
        self._has_noise = start == 0
        self._stepper, self._start = Stepper(plan), start
        # A copy of a pipeline's scheduler may step something beside the latents (LTX2's audio).
        self._steps_latents = pipeline is not None or not self._is_copy
        anchors = [start + n for n in plan.anchors]
        with torch.inference_mode(False):  # a tensor made in that mode does not count its edits
            self._full = FullGrid(self.timesteps, self.sigmas.clone())
            self.sigmas = self._full.sigmas[[*anchors, len(times) - 1]]
        self.timesteps = self._full.timesteps[anchors]
        self.num_inference_steps = len(anchors)
        self._sigmas_version = self.sigmas._version

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with a run of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied._is_copy = True
        return copied

    def __reduce__(self) -> Any:
        """By the parent, which may be a class of the user's own."""
        return _made_for, (parent_class(type(self)),), self.__dict__

    @property
    def run_plan(self) -> Plan | None:
        """The plan as it fits the run that `set_timesteps` last prepared."""
        return None if self._stepper is None else self._stepper.plan

    def _check_begin(self, begin: int) -> None:
        """A pipeline that starts in mid-run would count its start in anchors."""
        if self._stepper is not None and begin != 0:
            raise HostError(
                "the pipeline wants to start in the middle of the run, at its own count of steps "
                "(strength below 1): apply(pipe, plan, strength=...) starts the plan at that noise "
                "level; then call the pipeline with strength=1.0"
            )

    def _walk(self, step: Any, v: Tensor, timestep: Any, x: Tensor, *args: Any, **kw: Any) -> Any:
        """From this anchor to the next, by the parent's `step`."""
        stepper = self._stepper
        if stepper is None:
            return step(self, v, timestep, x, *args, **kw)
        self._check_first_step(stepper, timestep, x)
        tokens = kw.get("per_token_timesteps")
        is_euler = isinstance(self, diffusers.FlowMatchEulerDiscreteScheduler)
        if stepper.plan.weights is not None and is_euler and tokens is None:
            average = stepper.jump(x, lambda: v)  # the shown grid has the anchors only
            return step(self, average, timestep, x, *args, **kw)
        with self._full_view(stepper):
            while True:
                n = self._start + stepper.step
                now = self._full.timesteps[n]
                if tokens is not None:  # a token never lies above the level the walk has reached
                    kw["per_token_timesteps"] = torch.minimum(tokens, now.to(tokens))
                self._step_index = n
                result = step(self, stepper.velocity(x, lambda: v), now, x, *args, **kw)
                x = result[0]
                if stepper.step >= stepper.plan.steps or stepper.evaluates:
                    return result

    @contextmanager
    def _full_view(self, stepper: Stepper) -> Iterator[None]:
        """The parent's view of the run while it steps; the pipeline's view again afterwards."""
        shown = self.timesteps, self.sigmas, self.num_inference_steps, self._begin_index
        self.timesteps, self.sigmas = self._full
        self.num_inference_steps = len(self._full.timesteps)
        try:
            yield
        finally:
            self.timesteps, self.sigmas, self.num_inference_steps, self._begin_index = shown
            self._step_index = sum(n < stepper.step for n in stepper.plan.anchors)

    def _check_first_step(self, stepper: Stepper, timestep: Any, x: Tensor) -> None:
        if isinstance(timestep, Tensor) and timestep.numel() > 1:
            raise HostError(
                "each frame has a timestep of its own in this run (diffusion forcing): steps "
                "cannot be skipped for all of them together"
            )
        if stepper.step != 0:
            return
        if not self._has_noise:
            raise HostError(
                "the pipeline did not mix the picture with noise at the plan's start (strength=1.0 "
                "means noise alone to it): it cannot be started midway under a plan"
            )
        self._follow_edits()
        if self._steps_latents:
            check_latent_shape(stepper.plan, tuple(x.shape[1:]))
        # Where the pipeline did not say where it begins, look once, as the parent would.
        if self._begin_index is None and float(timestep) != float(self.timesteps[0]):
            raise HostError(
                f"the pipeline starts at timestep {float(timestep):g}, the plan at "
                f"{float(self.timesteps[0]):g}: apply(pipe, plan, strength=...) sets the start"
            )

    def _follow_edits(self) -> None:
        """Cosmos 2 writes its last noise level after `set_timesteps`: so does the full grid."""
        if self.sigmas._version == self._sigmas_version:
            return
        stays = len(self.sigmas) > 1 and bool(self.sigmas[-1] == self.sigmas[-2])
        self._full.sigmas[-1] = self._full.sigmas[-2] if stays else self.sigmas[-1]
        self.sigmas[-1] = self._full.sigmas[-1]  # where one step crosses the last interval


@functools.cache
def plan_scheduler(parent: type) -> type:
    """The class that follows a plan with `parent`'s own grid and step.

    The signatures that pipelines and `from_config` inspect stay the parent's.
    """
    plain: Any = parent
    plain_init, plain_set_timesteps, plain_step = plain.__init__, plain.set_timesteps, plain.step

    @functools.wraps(plain_init)
    def __init__(  # noqa: N807
        self: Any,
        *args: Any,
        plan: dict[str, Any] | None = None,
        strength: float | None = None,
        **kwargs: Any,
    ) -> None:
        plain_init(self, *args, **kwargs)
        self.register_to_config(plan=plan, strength=strength)
        self._load_plan(plan, strength)

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        self._stepper = None
        plain_set_timesteps(self, *args, **kwargs)
        self._begin_run()

    def set_begin_index(self: Any, begin_index: int = 0) -> None:
        self._check_begin(begin_index)
        plain.set_begin_index(self, begin_index)

    def noticing(method: Any) -> Any:
        @functools.wraps(method)
        def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._has_noise = True
            return method(self, *args, **kwargs)

        return noticed

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = self._walk(plain_step, model_output, timestep, sample, *args, **kwargs)
        if self._stepper is not None and self._stepper.is_done:
            check_finite(result[0])
        return result

    members: dict[str, Any] = {
        "__doc__": f"{parent.__name__} that follows a plan.",
        "__module__": __name__,
        "__init__": __init__,
        "set_timesteps": set_timesteps,
        "set_begin_index": set_begin_index,
        "step": step,
    }
    for name in ("scale_noise", "add_noise"):
        if hasattr(plain, name):
            members[name] = noticing(getattr(plain, name))
    if not hasattr(parent, "scale_model_input"):  # Bria calls it on every class but the plain one
        members["scale_model_input"] = lambda self, sample, *args, **kwargs: sample
    _add_parameters(__init__, "plan", "strength")
    return type(f"{PREFIX}{parent.__name__}", (FollowsPlan, parent), members)


def parent_class(scheduler_class: type) -> type:
    """The plain scheduler class behind a class that follows a plan."""
    bases = (base for base in scheduler_class.__mro__ if issubclass(base, SchedulerMixin))
    return next(base for base in bases if not issubclass(base, FollowsPlan))


def _made_for(parent: type) -> Any:
    """An object that follows a plan, before it has any attributes."""
    made: Any = plan_scheduler(parent)
    return made.__new__(made)


def _add_parameters(function: Any, *names: str) -> None:
    """Keyword parameters at the end of a wrapped signature, where `from_config` looks for them."""
    signature = inspect.signature(function)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names
    ]
    function.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])


PlanFlowMatchEulerDiscreteScheduler = plan_scheduler(diffusers.FlowMatchEulerDiscreteScheduler)
PlanUniPCMultistepScheduler = plan_scheduler(diffusers.UniPCMultistepScheduler)
PlanDPMSolverMultistepScheduler = plan_scheduler(diffusers.DPMSolverMultistepScheduler)


def __getattr__(name: str) -> Any:
    """Classes made for other parents, by name: what `from_pretrained` asks for."""
    parent = (
        getattr(diffusers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    )
    if not (isinstance(parent, type) and issubclass(parent, SchedulerMixin)):
        reason = f"module {__name__!r} has no attribute {name!r}"
        if name.startswith(PREFIX):
            reason += ": its parent is not of diffusers; save it plain, and apply the plan again"
        raise AttributeError(reason)
    return plan_scheduler(parent)
