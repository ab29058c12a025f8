"""Continuous batching: requests with plans of their own share every evaluation of one model."""

import copy
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tacache.diffusers.calls import midway_strength
from tacache.diffusers.host import apply, plain_scheduler
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.serving.adapters import Adapters, AdapterSwitch
from tacache.serving.load import WaveTimes, finish_times
from tacache.serving.standing import StandIn, locked
from tacache.serving.waves import Cancelled, Waves

DENOISERS = ("transformer", "transformer_2", "unet", "prior")
ENCODING = ("tokenizer", "text_encoder", "image_encoder", "processor")  # begin their names
STEPS = 50  # of a call that does not say how many


class Request:
    """One call of the pipeline on its way: what it still needs, its result, and how to stop it."""

    def __init__(self, pipe: Any, call: dict[str, Any], adapters: Adapters | None) -> None:
        self.pipe, self.call, self.adapters = pipe, call, adapters
        self.is_cancelled = False
        self.calls = 0  # of the denoiser in the first evaluation: one, or two with two branches
        self.rows = 1
        plan = getattr(pipe.scheduler, "plan", None)
        steps = call.get("num_inference_steps", STEPS)
        self._left = int(steps if plan is None else plan.evaluations)
        self._future: Future[Any] = Future()

    def result(self, timeout: float | None = None) -> Any:
        """What the pipeline's call returned; waits for it. An error of the call is raised here."""
        return self._future.result(timeout)

    @property
    def is_done(self) -> bool:
        """Whether it has a result, has failed, or was cancelled."""
        return self._future.done()

    def when_done(self, function: Callable[["Request"], None]) -> None:
        """Call the function once the request is done, with it."""
        self._future.add_done_callback(lambda _: function(self))

    @property
    def evaluated(self) -> int:
        """How many evaluations were made."""
        scheduler = self.pipe.scheduler
        index = getattr(scheduler, "step_index", None)
        return 0 if index is None else int(index) - int(getattr(scheduler, "begin_index", 0) or 0)

    @property
    def remaining(self) -> int:
        """How many evaluations are still to be made: exact, since the plan says it."""
        if not self.is_done:
            self._left = min(self._left, self._counted())
        return 0 if self.is_done else self._left

    def _counted(self) -> int:
        """What is left by the scheduler, or by the plan while the run has not begun."""
        scheduler = self.pipe.scheduler
        if getattr(scheduler, "num_inference_steps", None) is not None:
            first = int(getattr(scheduler, "begin_index", 0) or 0)
            return max(0, len(scheduler.timesteps) - first - self.evaluated)
        return self._left

    @property
    def calls_each(self) -> int:
        """How often an evaluation calls the denoiser: twice with two guidance branches."""
        return max(1, self.calls) if self.evaluated else 1


class Batcher:
    """Runs many calls of one diffusers pipeline together; evaluations are joined into waves.

    Every request is a call of the pipeline as it is, in a thread of its own, with a scheduler of
    its own that carries its plan. Only the networks are shared. Requests join and leave at every
    evaluation. Rows are joined where their shapes and all other arguments agree; nothing is padded.

    A wave starts when it has `max_rows` rows, when all running requests wait for it, or when one
    has waited `max_wait_s`. At most `max_active` requests run at a time; others wait for their
    turn in the order they came.
    """

    def __init__(
        self, pipe: Any, *, max_rows: int = 16, max_active: int = 32, max_wait_s: float = 0.01
    ) -> None:
        _check(pipe)
        self.pipe = pipe
        self.max_active = max_active
        self._lock = threading.RLock()
        encoding = threading.RLock()
        self._locked = {
            name: locked(part, encoding)
            for name, part in pipe.components.items()
            if part is not None and name.startswith(ENCODING)
        }
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._adapters = AdapterSwitch(pipe)
        self._is_open = True
        self._waves = Waves(
            max_rows=max_rows, max_wait_s=max_wait_s, active=self._active, switch=self._adapters.use
        )

    def submit(
        self,
        *,
        plan: Plan | None = None,
        adapters: Sequence[tuple[str, float]] | None = None,
        **call: Any,
    ) -> Request:
        """Take on one call of the pipeline, which follows `plan`; None runs all its steps.

        `call` has the arguments of the pipeline's call; a call from a picture brings its
        `strength`. `adapters` are names and weights of LoRA adapters that were loaded before, ()
        for none. Without it, the request uses those that the pipeline had when the batcher was
        made. Requests with different adapters share no wave. A plan for another model is refused.
        """
        named = None if adapters is None else tuple((name, float(w)) for name, w in adapters)
        if named:
            self._adapters.check(named)
        copied, call = self._following(plan, call)
        request = Request(copied, call, named)
        request.pipe.__dict__.update(self._stand_ins(request))
        with self._lock:
            if not self._is_open:
                raise HostError("the batcher was closed: make another one")
            self._waiting.append(request)
            self._start_next()
        return request

    @property
    def shared(self) -> Any:
        """The pipeline with tokenizers and encoders that other threads may use meanwhile."""
        copied = copy.copy(self.pipe)
        copied.__dict__.update(self._locked)
        return copied

    def cancel(self, request: Request) -> bool:
        """Stop a request at its next evaluation, or before it begins; False if it is done."""
        with self._lock:
            request.is_cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)
                request._future.set_exception(Cancelled("the request was cancelled"))
                return True
        self._waves.notice()
        return not request.is_done

    def finish_estimates(self) -> dict[Request, float] | None:
        """In how many seconds each request is expected to be done; None before the first wave.

        Requests that wait are counted, too: they begin when others end.
        """
        with self._lock:
            requests = [*self._running, *self._waiting]
        if not self._waves.times:
            return None
        each = max((request.calls_each for request in requests), default=1)
        left = [request.remaining * each for request in requests]
        rows = [request.rows for request in requests]
        ends = finish_times(left, rows, self._waves.times.of, self._waves.max_rows)
        return dict(zip(requests, ends, strict=True))

    @property
    def evaluations_queued(self) -> int:
        """All evaluations that the requests taken on still need."""
        with self._lock:
            return sum(request.remaining for request in (*self._running, *self._waiting))

    @property
    def is_alive(self) -> bool:
        """Whether the thread that evaluates the model is at work."""
        return self._waves.is_alive

    @property
    def wave_times(self) -> WaveTimes:
        """The seconds that waves take by their rows, as measured last."""
        return self._waves.times

    @property
    def max_rows(self) -> int:
        """The rows that a wave may have; fewer than at first where memory ran out."""
        return self._waves.max_rows

    @property
    def waves(self) -> tuple[int, int]:
        """How many waves of evaluations were made, and how many rows they had in all."""
        return self._waves.made, self._waves.rows

    def close(self, *, finish: bool = True) -> None:
        """Take on nothing more; finish what was taken on, or stop it."""
        with self._lock:
            self._is_open = False
            requests = [*self._running, *self._waiting]
        for request in requests:
            if not finish:
                self.cancel(request)
            request._future.exception()  # waits
        self._waves.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(finish=error is None)

    def _following(self, plan: Plan | None, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The pipeline with a scheduler of its own that carries the plan, and the call to make."""
        copied = copy.copy(self.pipe)
        copied.__dict__["scheduler"] = copy.deepcopy(plain_scheduler(self.pipe))
        copied._progress_bar_config = {"disable": True}
        if plan is None:
            return copied, call
        strength = midway_strength(copied, call)
        apply(copied, plan, strength=strength)
        return copied, call if strength is None else {**call, "strength": 1.0}

    def _stand_ins(self, request: Request) -> dict[str, Any]:
        """What stands in the request's pipeline for the parts it shares with others."""
        found: dict[str, Any] = {}
        for name, part in self.pipe.components.items():
            if part is None:
                continue
            if name in DENOISERS:
                found[name] = StandIn(part, {"__call__": self._evaluating(request, part)})
            elif name == "vae":
                decode = functools.partial(self._waves.ask, request, part.decode)
                encode = functools.partial(self._waves.ask_alone, request, part.encode)
                found[name] = StandIn(part, {"decode": decode, "encode": encode})
        return {**self._locked, **found}

    def _evaluating(self, request: Request, network: Any) -> Callable[..., Any]:
        forward = _forward_of(network)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not request.evaluated:
                request.calls += 1
            return self._waves.evaluate(request, forward, *args, **kwargs)

        return call

    def _active(self) -> int:
        return len(self._running)

    def _start_next(self) -> None:
        """Begin requests that wait, as far as more may run; the lock is held."""
        while self._waiting and len(self._running) < self.max_active:
            request = self._waiting.popleft()
            self._running.append(request)
            threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: Request) -> None:
        """Make one request's call; its error is its own."""
        result, error = None, None
        try:
            result = request.pipe(**request.call)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._running.remove(request)
            self._start_next()
        self._waves.notice()
        if error is None:
            request._future.set_result(result)
        else:
            request._future.set_exception(error)


def _forward_of(network: Any) -> Callable[..., Any]:
    """The network's call with the signature of its `forward`, by which arguments are named."""

    @functools.wraps(network.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    forward.__self__ = network  # type: ignore[attr-defined]
    return forward


def _check(pipe: Any) -> None:
    """Refuse a pipeline whose parts cannot be shared by several calls."""
    plain_scheduler(pipe)
    name = type(pipe).__name__
    for part_name, part in pipe.components.items():
        if getattr(part, "_hf_hook", None) is not None:
            raise HostError(
                f"{name} moves its {part_name} to the device and back (offloading): a batcher "
                "needs the whole pipeline on the device, with pipe.to(device)"
            )
        if getattr(part, "is_cache_enabled", False):
            raise HostError(
                f"the {part_name} of {name} has a cache that keeps state between evaluations, "
                "which several requests would mix: call disable_cache() on it first"
            )
