"""A call of a pipeline as a velocity function: its loop is held and driven from outside.

The call runs in a thread of its own, on a copy of the pipeline object with a scheduler of its own.
That scheduler's `step` hands the velocity over and waits for the state and the step to go on with,
and the loop's `enumerate` then yields that step: the loop's count, its timestep and its state are
those of the step that was asked for. Everything else is the pipeline's own code, unpatched, and
the user's pipeline is not touched. Caller and thread take turns; they never work at the same time.

It checks itself: the first driven call of a kind of pipeline must make its first step as a plain
call does, bit for bit.
"""

import contextvars
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import ModularPipeline
from torch import Tensor

from tacache.diffusers.applying import plain_scheduler
from tacache.diffusers.calls import check_call_names, has_pixels, pixels_of, sounds_of
from tacache.diffusers.checks import check_caches
from tacache.diffusers.driven_call import (
    DrivenHooks,
    FirstStep,
    Repeatable,
    check_same,
    pipeline_with,
    run_call,
    thread_settings,
)
from tacache.diffusers.driven_loop import (
    AnyHeldStep,
    HeldStep,
    JointHeldStep,
    Loop,
    NextStep,
    Returned,
)
from tacache.diffusers.fingerprint import describe, has_negative, settings
from tacache.diffusers.grids import on_grid
from tacache.diffusers.guiders import has_momentum
from tacache.diffusers.hooks import hooked_like
from tacache.diffusers.joint import scheduler_names
from tacache.diffusers.solving import Solver, copy_run
from tacache.diffusers.stepping import run_times
from tacache.errors import HostError, TACacheError
from tacache.fitting.latents import Latents
from tacache.grid import break_steps
from tacache.hosts import Call, Pixels
from tacache.storage.origin import Origin

CHECKED: set[tuple[type, type]] = set()  # kinds of pipelines and schedulers that were compared


@contextmanager
def drive(pipe: Any, **call: Any) -> Iterator["PipelineTrajectory"]:
    """Hold `pipe(**call)` in its loop for the length of a `with` block, to ask for velocities.

    Several runs of one pipeline may be open at a time. Leaving the block ends the call, finished or
    not. Autocast, inference mode, default device and CUDA stream are those where the block began.

    Args:
        pipe: A pipeline of diffusers whose `__call__` loops over its scheduler's timesteps.
        call: The arguments of its call.

    Yields:
        The run, held at its first step.

    Raises:
        HostError: The pipeline cannot be driven; the message says why.

    """
    with held_call(pipe, call) as run:
        yield run


@contextmanager
def held_call(
    pipe: Any,
    arguments: Call,
    *,
    asked: Call | None = None,
    times: tuple[float, ...] | None = None,
) -> Iterator["PipelineTrajectory"]:
    """Open a call as `drive`; the origin names what was `asked`, the grid may be these times."""
    check_call_names(pipe, arguments)
    plain = plain_scheduler(pipe)  # refuses before any work
    _check_is_function(pipe, arguments)
    driven = pipe if times is None else on_grid(pipe, plain, times)
    run, again = PipelineTrajectory(pipe, driven, arguments, asked, times), Repeatable(arguments)
    kind = type(pipe), type(plain_scheduler(driven))
    try:
        run._begin()
        if kind not in CHECKED:
            check_same(type(pipe).__name__, run._first_step(), again.first_step(driven))
            CHECKED.add(kind)
        yield run
    finally:
        run.close()


class PipelineTrajectory:
    """A pipeline's call, held in its denoising loop (`tacache.hosts.Trajectory`).

    `times` are the noise levels of its N steps as calibration sees them, `breaks` those where
    another expert or guidance takes over, and `call` is what the pipeline was called with,
    defaults filled in. v has this project's sign: x_next = x - (t - t_next) v.
    """

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    call: Call
    settings: object = None  # levels and size say all that runs of one latent must share
    latents: Latents = ()  # of a joint model, whose states hold them one behind the other
    sounds: Mapping[str, Tensor] = {}  # that the pipeline made of the last state, by latent
    other_noise: Tensor | None = None  # to walk from, where the pipeline draws its own instead

    def __init__(
        self,
        pipe: Any,
        driven: Any,
        arguments: Call,
        asked: Call | None,
        times: tuple[float, ...] | None,
    ) -> None:
        self._pipe, self._asked, self._grid = pipe, asked or {}, times
        self._name, self._loop = type(pipe).__name__, Loop(isinstance(pipe, ModularPipeline))
        self._scheduler, *beside = (
            hooked_like(plain_scheduler(driven, part), DrivenHooks)
            for part in scheduler_names(driven)
        )
        for scheduler in (self._scheduler, *beside):
            scheduler.loop, scheduler.is_beside = self._loop, scheduler is not self._scheduler
        further = dict(zip(scheduler_names(driven)[1:], beside, strict=True))
        copied = pipeline_with(driven, self._scheduler, **further)
        target = functools.partial(run_call, copied, arguments, self._loop)
        target = functools.partial(contextvars.copy_context().run, target, thread_settings())
        self._thread = threading.Thread(target=target, daemon=True, name=f"driven {self._name}")
        self._over: str | None = None

    def _begin(self) -> None:
        """Run to the first step: the pipeline's own noise becomes known with its velocity."""
        self._thread.start()
        self._first = self._held = self._receive()
        if isinstance(self._first, JointHeldStep):
            self.latents = self._first.latents
        start, (self.call, self.breaks) = self._loop.start, self._loop.seen
        own = run_times(self._scheduler)[start : start + self.steps + 1]
        self.times = self._grid or own
        self._fresh, self._origin = True, copy_run(self._scheduler)
        if self.latents:
            self._place_latents()

    def _place_latents(self) -> None:
        """Give further latents the breaks of the first, which begin parts at the same steps."""
        first, *others = self.latents
        if self._grid is not None:
            raise HostError("a joint model is driven on its own grids only")
        parts = break_steps(self.times, self.breaks)
        moved = (
            latent._replace(breaks=tuple(latent.times[n - 1] for n in parts)) for latent in others
        )
        self.latents = self.settings = (first._replace(breaks=self.breaks), *moved)

    def _first_step(self) -> FirstStep:
        """Return the step that the run begins with, by its own solver."""
        first = self._first.each[0] if isinstance(self._first, JointHeldStep) else self._first
        solver = Solver(self._origin, first, self._loop)
        return FirstStep(first.x, first.v, solver.step(first.velocity, first.x))

    @property
    def steps(self) -> int:
        """Return how many steps the grid has, N."""
        return self._loop.steps

    @property
    def has_own_times(self) -> bool:
        """Return whether it was opened on times that are not the pipeline's."""
        return self._grid is not None

    @property
    def noise(self) -> Tensor:
        """Return the state it starts from."""
        return (self._first.x if self.other_noise is None else self.other_noise).clone()

    @property
    def state(self) -> Tensor:
        """Return the state of the last evaluation, as the model saw it.

        It is the x that was given, but where the pipeline edits its states: inpainting puts the
        known part back.
        """
        return self._held.x.clone()

    def evaluate(self, x: Tensor, n: int) -> Tensor:
        """Return the guided velocity at state x and step n; in any order, any number of times."""
        self._check_open()
        if not 0 <= n < self.steps:
            raise HostError(f"the run has steps 0 to {self.steps - 1}, not {n}")
        x = self._as_state(x)
        if not (self._fresh and n == 0 and torch.equal(x, self._first.x)):  # that one is known
            self._loop.requests.put(NextStep(x, n))
            self._held = self._receive()
        self._fresh = False
        return self._held.velocity

    def evaluate_at(self, x: Tensor, t: float) -> Tensor:
        """Return the same by the time of a step: a pipeline has velocities at its own steps."""
        if t not in self.times[:-1]:
            raise HostError(f"t={t} is no step of the run: the pipeline has velocities at its own")
        return self.evaluate(x, self.times.index(t))

    @property
    def grid(self) -> tuple[float, ...]:
        """Return the levels of its steps: a pipeline is evaluated nowhere else."""
        return self.times

    @property
    def guidance(self) -> Callable[[float], object]:
        """Return one cost at all times: evaluations are taken to cost the same."""
        return lambda t: None

    def solver(self) -> Solver:
        """Return the pipeline's own solver at the start of the run, to walk the steps with."""
        if isinstance(self._first, JointHeldStep):
            raise HostError("each latent of a joint model has a solver of its own: none steps all")
        return Solver(self._origin, self._first, self._loop)

    def output(self, x: Tensor) -> Any:
        """End the loop with x as its latents, and return what the pipeline returns."""
        self._check_open()
        self._loop.requests.put(NextStep(self._as_state(x), self.steps))
        reply = self._reply()  # the loop holds no more
        self._over = "is finished"
        return reply.output

    def finish(self, x: Tensor) -> Pixels | None:
        """Return what the pipeline makes of x; None where that is no picture to compare with.

        So it is where latents were asked for, with blocks of a modular pipeline that make none, and
        where the pipeline draws from other noise, unless it is a joint one, which is led by hand.
        """
        if self.call.get("output_type") == "latent":
            return None
        if self.other_noise is not None and not self.latents:
            return None
        output = self.output(x)
        if isinstance(self._pipe, ModularPipeline) and not has_pixels(output):
            return None
        self.sounds = sounds_of(output)
        return pixels_of(output)

    def origin(self) -> Origin:
        """Return the pipeline, with what its call was really made with."""
        noise = self.noise
        return describe(
            self._pipe,
            plain_scheduler(self._pipe),
            self._asked | settings(self._pipe, self.call),
            latent_shape=self.latents[0].shape if self.latents else tuple(noise.shape[1:]),
            dtype=str(noise.dtype).removeprefix("torch."),
            negative=has_negative(self.call),
        )

    def close(self) -> None:
        """End the call where it stands, and wait until its thread is gone."""
        self._over = self._over or "is closed"
        if self._thread.ident is not None:
            self._loop.requests.put(None)
            self._thread.join()

    def _receive(self) -> AnyHeldStep:
        reply = self._reply()
        if isinstance(reply, HeldStep | JointHeldStep):
            return reply
        self._over = "has ended"
        raise HostError(f"{self._name} left its loop by itself, before its last step")

    def _reply(self) -> Any:
        over, self._over = self._over, "was interrupted"  # unless a reply comes
        reply = self._loop.replies.get()
        self._over = over
        if isinstance(reply, HeldStep | JointHeldStep):
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
        """Return a copy of x, in a dtype that the pipeline's own steps give."""
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
    check_caches(pipe)
