"""The call of a driven pipeline: its scheduler, its copy, and the thread it runs in."""

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from tacache.diffusers.calls import calling_pipeline, run_breaks
from tacache.diffusers.derived import like, subclass
from tacache.diffusers.driving.loop import (
    Abandoned,
    Failed,
    Held,
    Loop,
    LoopTimesteps,
    Returned,
)
from tacache.diffusers.host import plain_scheduler
from tacache.errors import HostError


@functools.cache
def driven_scheduler(parent: type) -> Any:
    """`parent` with a `step` that hands its velocity over and takes the next state instead."""
    plain: Any = parent
    plain_set_timesteps, plain_step = plain.set_timesteps, plain.step

    @functools.wraps(plain_set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_set_timesteps(self, *args, **kwargs)
        if self.loop is not None:
            self.timesteps = LoopTimesteps.of(self.timesteps, self.loop)

    @functools.wraps(plain_step)
    def step(
        self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        bound = inspect.signature(plain_step).bind(
            self, model_output, timestep, sample, *args, **kwargs
        )
        options = dict(list(bound.arguments.items())[4:])
        request = self.loop.hold(_held(self, model_output, sample, options))
        self._step_index = self.loop.start + request.n  # as the parent leaves it
        if options.get("return_dict", True):
            return SchedulerOutput(prev_sample=request.x)
        return (request.x,)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:  # noqa: N807
        raise HostError(
            "the pipeline steps something beside its latents with a copy of its scheduler (sound "
            "with pictures): one state does not say what its velocity is, so it cannot be driven"
        )

    members = {
        "loop": None,
        "set_timesteps": set_timesteps,
        "step": step,
        "plain_step": plain_step,
        "__deepcopy__": __deepcopy__,
    }
    return subclass("Driven", parent, members)


def _held(scheduler: Any, v: Tensor, x: Tensor, options: dict[str, Any]) -> Held:
    """What is handed over at a step; the running call is read at the first, as in calibration."""
    if not scheduler.loop.seen[0]:
        pipeline, call = calling_pipeline(scheduler)
        scheduler.loop.seen = call, run_breaks(pipeline, call)
    negated = bool(scheduler.config.get("invert_sigmas")) or (
        options.get("per_token_timesteps") is not None
    )
    return Held(v.detach().clone(), x.detach().clone(), options, negated)


def scheduler_like(pipe: Any, kind: Any) -> Any:
    """The pipeline's own scheduler, without a plan, as one that `kind` makes of its class."""
    plain = plain_scheduler(pipe)
    return like(plain, kind(plain.__class__))


def pipeline_with(pipe: Any, scheduler: Any) -> Any:
    """Copy the pipeline object, with the same modules, this scheduler and no progress bar."""
    copied = copy.copy(pipe)
    copied.scheduler = scheduler
    shown = getattr(pipe, "_progress_bar_config", {})
    copied._progress_bar_config = {**shown, "disable": True}
    return copied


def run_call(pipe: Any, call: dict[str, Any], loop: Loop, settings: list[Any]) -> None:
    """Make the pipeline's call in its thread, and put how it ended into the loop's replies."""
    try:
        with ExitStack() as stack:
            for setting in settings:
                stack.enter_context(setting)
            with freeing_hooks(pipe):
                output = _counted_by(loop, type(pipe).__call__)(pipe, **call)
        loop.replies.put(Returned(output))
    except Abandoned:
        pass
    except BaseException as error:
        loop.replies.put(Failed(error))


@contextmanager
def freeing_hooks(pipe: Any) -> Iterator[None]:
    """Offload models again if a call fails; a call itself does so only at its end."""
    try:
        yield
    except BaseException:
        if hasattr(pipe, "maybe_free_model_hooks"):  # modular pipelines have none
            pipe.maybe_free_model_hooks()
        raise


def _counted_by(loop: Loop, function: Any) -> Callable[..., Any]:
    """Copy a function so that `enumerate` in its code is the loop's; the original stays."""
    plain = inspect.unwrap(function)
    names = {**plain.__globals__, "enumerate": loop.enumerate}
    counted = types.FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )
    counted.__kwdefaults__ = plain.__kwdefaults__
    return counted


def thread_settings() -> list[Any]:
    """Contexts that give another thread the settings that PyTorch keeps for this one."""
    inference = torch.is_inference_mode_enabled()
    settings: list[Any] = [torch.inference_mode() if inference else torch.no_grad()]
    device = torch.empty(0).device  # torch.get_default_device() misses a `with` of torch 2.7
    if device != torch.device("cpu"):
        settings.append(device)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        settings.append(torch.cuda.stream(torch.cuda.current_stream()))  # and its device
    kinds = {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
    for kind in sorted(kinds):
        if torch.is_autocast_enabled(kind):
            dtype, cached = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
            settings.append(torch.autocast(kind, dtype=dtype, cache_enabled=cached))
    return settings
