"""Schedulers that carry a plan: the pipeline's own class, stepping from anchor to anchor.

`set_timesteps` builds the full grid through the parent and then shows the pipeline the anchors
only. `step` advances from one anchor to the next with the parent's own step, giving it the full
grid meanwhile; a fitted plan on Euler takes one step across. The pipeline simply loops fewer times.
"""

import copy
import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import diffusers
import torch

# SchedulerMixin must be found in this module for `from_pretrained` to load these classes.
from diffusers import SchedulerMixin
from torch import Tensor

from tacache.diffusers.beginning import BeginsRun
from tacache.diffusers.checks import Said
from tacache.diffusers.derived import subclass
from tacache.diffusers.matching import check_latent_shape
from tacache.errors import HostError
from tacache.stepper import Stepper
from tacache.velocity import check_finite

PREFIX = "Plan"


class FollowsPlan(BeginsRun):
    """Mixin over a flow scheduler; `plan_scheduler` puts the two together."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with a run of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self._own(), memo))
        copied._source, copied._applied_to = self._source or self, self._applied_to
        copied._is_told = True
        return copied

    def __reduce__(self) -> Any:
        """By the parent, which may be a class of the user's own."""
        return _made_for, (parent_class(type(self)),), self._own()

    @property
    def evaluations(self) -> tuple[int, int] | None:
        """How many evaluations the run has used and how many it has; None before it begins.

        It holds in the middle of a step too, where the parent's own numbers are of the full grid.
        """
        stepper = self._stepper
        if stepper is None:
            return None
        anchors = stepper.plan.anchors
        return sum(n < stepper.step for n in anchors), len(anchors)

    def _walk(self, step: Any, v: Tensor, timestep: Any, x: Tensor, *args: Any, **kw: Any) -> Any:
        """From this anchor to the next, by the parent's `step`."""
        if self._stepper is None:
            return step(self, v, timestep, x, *args, **kw)
        self._check_first_step(self._stepper, timestep, x)
        stepper = self._stepper  # which the first step may have moved to a later start
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

    def _init_step_index(self, timestep: Any) -> None:
        """As the parent, which does this in its `step`: elsewhere another step stands for ours."""
        if self._stepper is not None and not self._is_stepping:
            self._is_told = True
            raise HostError(
                "something else steps in the place of this scheduler, which carries a plan: only "
                "its own step rebuilds what lies between two evaluations. xDiT's wrapper does so "
                "with sequence or pipeline parallelism: run without them, or remove(pipe) first"
            )
        super()._init_step_index(timestep)  # type: ignore[misc]

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
            done = sum(n < stepper.step for n in stepper.plan.anchors)
            self._step_index = self._begun + done

    def _check_first_step(self, stepper: Stepper, timestep: Any, x: Tensor) -> None:
        if isinstance(timestep, Tensor) and timestep.numel() > 1:
            raise HostError(
                "each frame has a timestep of its own in this run (diffusion forcing): steps "
                "cannot be skipped for all of them together"
            )
        if stepper.step != 0:
            return
        if not self._has_noise:
            self._is_told = True
            raise HostError(
                "the pipeline did not mix the picture with noise at the plan's start (strength=1.0 "
                "means noise alone to it): it cannot be started midway under a plan"
            )
        self._follow_edits()
        if self._steps_latents:
            check_latent_shape(stepper.plan, tuple(x.shape[1:]))
        # Where the pipeline did not say where it begins, look once, as the parent would.
        if self._begin_index is None and float(timestep) != float(self.timesteps[0]):
            if self._skips_nothing:
                self._check_begin(self.index_for_timestep(timestep))
                return
            self._is_told = True
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
    """Return the class that follows a plan with `parent`'s own grid and step.

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
        breaks: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        plain_init(self, *args, **kwargs)
        kept = None if breaks is None else list(breaks)
        self.register_to_config(plan=plan, strength=strength, breaks=kept)
        self._load_plan(plan, Said(strength, None if breaks is None else tuple(breaks)))

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        before, self._stepper = self._stepper, None
        plain_set_timesteps(self, *args, **kwargs)
        self._begin_run(before)

    def set_begin_index(self: Any, begin_index: int = 0) -> None:
        self._check_begin(begin_index)
        plain.set_begin_index(self, begin_index)

    def noticing(method: Any) -> Any:
        @functools.wraps(method)
        def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_noise()
            return method(self, *args, **kwargs)

        return noticed

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        self._is_stepping = True
        try:
            result = self._walk(plain_step, model_output, timestep, sample, *args, **kwargs)
        finally:
            self._is_stepping = False
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
    _add_parameters(__init__, "plan", "strength", "breaks")
    made: type = subclass(PREFIX, parent, members, FollowsPlan)
    return made


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
