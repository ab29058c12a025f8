"""What a call of a pipeline will be, known from one that ends before its first evaluation."""

import copy
import functools
from typing import Any

from tacache.diffusers.calls import run_breaks, running_call
from tacache.diffusers.derived import like, subclass
from tacache.diffusers.fingerprint import running_origin
from tacache.diffusers.flow import run_times
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import check_call_names, run_arguments
from tacache.errors import HostError
from tacache.host.settings import Setting
from tacache.prompts import Sample


class _Known(Exception):  # noqa: N818 - it ends a call that has told enough
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting


def setting_of(pipe: Any, call: dict[str, Any]) -> Setting:
    """The origin, the times and the breaks of runs of `pipe(prompt=..., **call)`.

    The pipeline encodes an empty prompt and prepares its steps; the network is not evaluated.
    """
    check_call_names(pipe, call)
    plain, looking = plain_scheduler(pipe), copy.copy(pipe)
    scheduler = like(plain, _looking_scheduler(plain.__class__))
    scheduler.plain = plain
    looking.__dict__["scheduler"] = scheduler
    looking._progress_bar_config = {"disable": True}
    try:
        looking(**run_arguments([Sample("", 0)], call))
    except _Known as known:
        return known.setting
    raise HostError(f"{type(pipe).__name__} never prepared the steps of its run")


@functools.cache
def _looking_scheduler(parent: type) -> Any:
    plain: Any = parent

    @functools.wraps(plain.set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        plain.set_timesteps(self, *args, **kwargs)
        call, times = running_call(self), run_times(self)
        if call.pipeline is None:
            return  # a pipeline that prepares no run yet
        origin = running_origin(call.pipeline, self.plain, call.arguments)
        breaks = run_breaks(call.pipeline, call.arguments)
        raise _Known(Setting(origin, times, breaks, len(times) - 1))

    return subclass("Looking", parent, {"set_timesteps": set_timesteps, "plain": None})
