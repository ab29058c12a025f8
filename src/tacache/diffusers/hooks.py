"""Scheduler classes with hooks around the methods that a pipeline's loop calls.

There is one factory, `hooked`. What a class does in a run is a mixin's: to follow a plan, to choose
one, to record a run, to hold one, to end one, or to walk on a grid of its own.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

Options = dict[str, Any]  # of a step beside velocity, timestep and state


class SchedulerHooks:
    """A mixin over a scheduler class: each hook is given the parent's own method to call."""

    PREFIX: ClassVar[str] = "Hooked"  # of the class's name, which goes on with the parent's

    # The parent's attributes.
    config: Any
    timesteps: Tensor
    sigmas: Tensor
    num_inference_steps: int
    _step_index: int | None
    _begin_index: int | None

    @classmethod
    def class_members(cls, parent: Any) -> dict[str, Any]:
        """Return what the class over `parent` has beside its hooks."""
        return {}

    def _prepare(self, prepare: Callable[[], None]) -> None:
        """Prepare a run: `set_timesteps`."""
        prepare()

    def _begin_at(self, set_begin_index: Callable[[int], None], index: int) -> None:
        """Begin at a timestep: `set_begin_index`."""
        set_begin_index(index)

    def _mix(self) -> None:
        """Notice that a picture is mixed with noise: `scale_noise` and `add_noise`."""

    def _hand_on(self, scheduler: Any) -> None:
        """Give a scheduler that has more hooks around these what these hold."""

    def _step(
        self, step: Callable[..., Any], v: Tensor, timestep: Any, x: Tensor, options: Options
    ) -> Any:
        """Make a step."""
        return step(v, timestep, x, **options)


@functools.cache
def hooked(parent: type, hooks: Any) -> Any:
    """Return the class with `parent`'s own methods and these hooks, a mixin, around them.

    Pipelines take it for its parent: the signatures that they inspect are the parent's.
    """
    plain: Any = parent
    options = list(inspect.signature(plain.step).parameters)[4:]

    @functools.wraps(plain.set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        hooks._prepare(self, functools.partial(plain.set_timesteps, self, *args, **kwargs))

    def set_begin_index(self: Any, begin_index: int = 0) -> None:
        hooks._begin_at(self, functools.partial(plain.set_begin_index, self), begin_index)

    @functools.wraps(plain.step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        named = {**dict(zip(options, args, strict=False)), **kwargs}
        own = functools.partial(plain.step, self)
        return hooks._step(self, own, model_output, timestep, sample, named)

    def mixing(method: Any) -> Any:
        @functools.wraps(method)
        def mix(self: Any, *args: Any, **kwargs: Any) -> Any:
            hooks._mix(self)
            return method(self, *args, **kwargs)

        return mix

    members: dict[str, Any] = {"set_timesteps": set_timesteps, "step": step}
    if hasattr(plain, "set_begin_index"):
        members["set_begin_index"] = set_begin_index
    for name in ("scale_noise", "add_noise"):
        if hasattr(plain, name):
            members[name] = mixing(getattr(plain, name))
    if not hasattr(plain, "scale_model_input"):  # Bria calls it on every class but the plain one
        members["scale_model_input"] = lambda self, sample, *args, **kwargs: sample
    members |= hooks.class_members(parent)
    return type(f"{hooks.PREFIX}{parent.__name__}", (hooks, parent), members)


def like(plain: Any, kind: Any, **more: Any) -> Any:
    """Return a scheduler of the class `kind` with the configuration of another, and `more`."""
    scheduler = kind.from_config(plain.config, **more)
    copy_shift(plain, scheduler)
    return scheduler


def hooked_like(plain: Any, hooks: Any) -> Any:
    """Return a scheduler as this one, with hooks; those it has already run inside of them."""
    scheduler = like(plain, hooked(plain.__class__, hooks))
    if isinstance(plain, SchedulerHooks):
        plain._hand_on(scheduler)
    return scheduler


def copy_shift(source: Any, target: Any) -> None:
    """Give a scheduler the shift and levels of another, which its configuration does not have."""
    for name in ("_shift", "levels"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


class ShownTimesteps(Tensor):
    """A run's timesteps as its pipeline sees them; a subclass answers what the loop asks of them.

    Operations on them give plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, timesteps: Tensor, **attributes: Any) -> Any:
        """Return a view of these timesteps, with the attributes that the subclass answers by."""
        view = timesteps.as_subclass(cls)
        vars(view).update(attributes)
        return view

    @property
    def plain(self) -> Tensor:
        """Return the same as a tensor like any other."""
        return self.as_subclass(Tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain.clone()
