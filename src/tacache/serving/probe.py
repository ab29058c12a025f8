"""What a call of a pipeline will be, known from one that ends before its first evaluation."""

import copy
from collections.abc import Callable
from typing import Any

from tacache.diffusers.applying import plain_scheduler, run_grids
from tacache.diffusers.calls import check_call_names, run_arguments, run_breaks, running_call
from tacache.diffusers.fingerprint import running_origin
from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.diffusers.stepping import run_times
from tacache.errors import HostError, TACacheError
from tacache.prompts import Sample
from tacache.storage.signature import RunSignature


class _Known(Exception):  # noqa: N818 - it ends a call that has told enough
    def __init__(self, run: RunSignature) -> None:
        super().__init__()
        self.run = run


def signature_of(pipe: Any, call: dict[str, Any]) -> RunSignature:
    """Return the origin, the times and the breaks of runs of `pipe(prompt=..., **call)`.

    The pipeline encodes an empty prompt and prepares its steps; the network is not evaluated.
    """
    check_call_names(pipe, call)
    plain, looking = plain_scheduler(pipe), copy.copy(pipe)
    scheduler = hooked_like(plain, _LookingHooks)
    scheduler.plain = plain
    looking.__dict__["scheduler"] = scheduler
    looking._progress_bar_config = {"disable": True}
    try:
        looking(**run_arguments([Sample("", 0)], call))
    except _Known as known:
        return known.run
    raise HostError(f"{type(pipe).__name__} never prepared the steps of its run")


class _LookingHooks(SchedulerHooks):
    """Hooks that end a call when its run is prepared, with what the run is."""

    plain: Any = None

    def _prepare(self, prepare: Callable[[], None]) -> None:
        prepare()
        call = running_call(self)
        try:
            times = run_times(self)
        except TACacheError as error:
            raise HostError("at this size the steps of a run fall together") from error
        if call.pipeline is None:
            return  # a pipeline that prepares no run yet
        origin = running_origin(call.pipeline, self.plain, call.arguments)
        breaks = run_breaks(call.pipeline, call.arguments)
        first, latents = run_grids(call, self.plain, prepare, times)
        raise _Known(RunSignature(origin, first, breaks, len(first) - 1, latents))
