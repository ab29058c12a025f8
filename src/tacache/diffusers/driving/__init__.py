"""A call of a pipeline as a velocity function: its loop is held and driven from outside.

The call runs in a thread of its own, on a copy of the pipeline object with a scheduler of its own.
That scheduler's `step` hands the velocity over and waits for the state and the step to go on with,
and the loop's `enumerate` then yields that step: the loop's count, its timestep and its state are
those of the step that was asked for. Everything else is the pipeline's own code, unpatched, and
the user's pipeline is not touched. Caller and thread take turns; they never work at the same time.

Nothing outside this folder knows how calls are held. It checks itself: the first driven call of a
kind of pipeline must make its first step as a plain call does, bit for bit.
"""

import contextvars
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tacache.diffusers.driving.call import (
    driven_scheduler,
    pipeline_with,
    run_call,
    scheduler_like,
    thread_settings,
)
from tacache.diffusers.driving.first_step import FirstStep, Repeatable, check_same
from tacache.diffusers.driving.loop import Held, Loop, NextStep, Returned
from tacache.diffusers.flow import run_times
from tacache.diffusers.guiders import has_momentum
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import check_call_names
from tacache.diffusers.solving import Solver, copy_run
from tacache.errors import HostError, TACacheError

CHECKED: set[tuple[type, type]] = set()  # kinds of pipelines and schedulers that were compared


@contextmanager
def drive(pipe: Any, **call: Any) -> Iterator["DrivenRun"]:
    """Hold `pipe(**call)` in its loop for the length of a `with` block, to ask for velocities.

    Several runs of one pipeline may be open at a time. Leaving the block ends the call, finished or
    not. Autocast, inference mode, default device and CUDA stream are those where the block began.
    """
    check_call_names(pipe, call)
    plain_scheduler(pipe)  # refuse before any work
    _check_is_function(pipe, call)
    run, again = DrivenRun(pipe, call), Repeatable(call)
    kind = type(pipe), type(plain_scheduler(pipe))
    try:
        run._begin()
        if kind not in CHECKED:
            check_same(type(pipe).__name__, run._first_step(), again.first_step(pipe))
            CHECKED.add(kind)
        yield run
    finally:
        run.close()


class DrivenRun:
    """A pipeline's call, held in its denoising loop; `drive` opens one.

    `times` are the noise levels of its N steps as calibration sees them, `breaks` those where
    another expert or guidance takes over, and `call` is what the pipeline was called with,
    defaults filled in. v has this project's sign: x_next = x - (t - t_next) v.
    """

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    call: dict[str, Any]

    def __init__(self, pipe: Any, call: dict[str, Any]) -> None:
        self._name, self._loop = type(pipe).__name__, Loop()
        self._scheduler = scheduler_like(pipe, driven_scheduler)
        self._scheduler.loop = self._loop
        target = functools.partial(run_call, pipeline_with(pipe, self._scheduler), call, self._loop)
        target = functools.partial(contextvars.copy_context().run, target, thread_settings())
        self._thread = threading.Thread(target=target, daemon=True, name=f"driven {self._name}")
        self._over: str | None = None

    def _begin(self) -> None:
        """Run to the first step: the pipeline's own noise becomes known with its velocity."""
        self._thread.start()
        self._first = self._held = self._receive()
        start, (self.call, self.breaks) = self._loop.start, self._loop.seen
        self.times = run_times(self._scheduler)[start : start + self.steps + 1]
        self._fresh, self._origin = True, copy_run(self._scheduler)

    def _first_step(self) -> FirstStep:
        """The step that the run begins with, by its own solver."""
        first = self._first
        return FirstStep(first.x, first.v, self.solver().step(first.velocity, first.x))

    @property
    def steps(self) -> int:
        """How many steps the grid has, N."""
        return self._loop.steps

    @property
    def noise(self) -> Tensor:
        """The state the loop starts from."""
        return self._first.x.clone()

    @property
    def state(self) -> Tensor:
        """The state of the last evaluation, as the model saw it.

        It is the x that was given, but where the pipeline edits its states: inpainting puts the
        known part back.
        """
        return self._held.x.clone()

    def evaluate(self, x: Tensor, n: int) -> Tensor:
        """The guided velocity at state x and step n; in any order, any number of times."""
        self._check_open()
        if not 0 <= n < self.steps:
            raise HostError(f"the run has steps 0 to {self.steps - 1}, not {n}")
        x = self._as_state(x)
        if not (self._fresh and n == 0 and torch.equal(x, self._first.x)):  # that one is known
            self._loop.requests.put(NextStep(x, n))
            self._held = self._receive()
        self._fresh = False
        return self._held.velocity

    def velocity(self, x: Tensor, t: float) -> Tensor:
        """The same by the time of a step: a velocity function that is defined on the run's grid."""
        if t not in self.times[:-1]:
            raise HostError(f"t={t} is no step of the run: the pipeline has velocities at its own")
        return self.evaluate(x, self.times.index(t))

    def solver(self) -> Solver:
        """The pipeline's own solver at the start of the run, to walk the steps with."""
        return Solver(self._origin, self._first, self._loop)

    def finish(self, x: Tensor) -> Any:
        """End the loop with x as its latents, and return what the pipeline returns."""
        self._check_open()
        self._loop.requests.put(NextStep(self._as_state(x), self.steps))
        reply = self._reply()  # the loop holds no more
        self._over = "is finished"
        return reply.output

    def close(self) -> None:
        """End the call where it stands, and wait until its thread is gone."""
        self._over = self._over or "is closed"
        if self._thread.ident is not None:
            self._loop.requests.put(None)
            self._thread.join()

    def _receive(self) -> Held:
        reply = self._reply()
        if isinstance(reply, Held):
            return reply
        self._over = "has ended"
        raise HostError(f"{self._name} left its loop by itself, before its last step")

    def _reply(self) -> Any:
        over, self._over = self._over, "was interrupted"  # unless a reply comes
        reply = self._loop.replies.get()
        self._over = over
        if isinstance(reply, Held):
            return reply
        self._thread.join()
        if isinstance(reply, Returned):
            return reply
        self._over = "has failed"
        if isinstance(reply.error, TACacheError):
            raise reply.error
        raise HostError(
            f"{self._name} failed: {type(reply.error).__name__}: {reply.error}"
        ) from reply.error

    def _check_open(self) -> None:
        if self._over is not None:
            raise HostError(f"the run {self._over}: open another with drive(...)")

    def _as_state(self, x: Tensor) -> Tensor:
        """A copy of x, in a dtype that the pipeline's own steps give."""
        if x.shape != self._first.x.shape:
            shapes = tuple(x.shape), tuple(self._first.x.shape)
            raise HostError("the state has shape {}, but the run's {}".format(*shapes))
        own = (self._first.x.dtype, self._first.v.dtype)
        dtype = x.dtype if x.dtype in own else own[0]
        return x.detach().to(self._first.x.device, dtype, copy=True)


def _check_is_function(pipe: Any, call: dict[str, Any]) -> None:
    """Stop where a velocity would depend on more than its state and step."""
    if call.get("image_cond_noise_scale"):
        raise HostError(
            "the pipeline draws noise in every turn of its loop (image_cond_noise_scale="
            f"{call['image_cond_noise_scale']:g}): leave it at 0 to drive it"
        )
    if has_momentum(pipe):
        raise HostError(
            f"the guidance of {type(pipe).__name__} has a momentum, so its velocity depends on the "
            "steps before: give the guider none (adaptive_projected_guidance_momentum=None), or "
            "calibrate and make a plan by a rule"
        )
    for name, component in getattr(pipe, "components", {}).items():
        if getattr(component, "is_cache_enabled", False):
            raise HostError(
                f"the pipeline's {name} has a cache of diffusers enabled, so its velocity depends "
                f"on what ran before: pipe.{name}.disable_cache() first"
            )
