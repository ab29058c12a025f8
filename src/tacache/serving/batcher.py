"""Continuous batching: requests with plans of their own share every evaluation of one model."""

import copy
import functools
import inspect
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from tacache.diffusers.calls import midway_strength
from tacache.diffusers.host import apply, plain_scheduler
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.serving.adapters import AdapterSwitch
from tacache.serving.asks import Cancelled
from tacache.serving.costs import Costs, size_of
from tacache.serving.load import Job, finish_times
from tacache.serving.request import Request
from tacache.serving.standing import (
    DENOISERS,
    ENCODING,
    StandIn,
    check_shareable,
    forward_of,
    locked,
)
from tacache.serving.waves import Waves


class Batcher:
    """Runs many calls of one diffusers pipeline together; evaluations are joined into waves.

    Every request is a call of the pipeline as it is, in a thread of its own, with a scheduler of
    its own that carries its plan. Only the networks are shared. Requests join and leave at every
    evaluation. Rows are joined where their shapes and all other arguments agree; nothing is padded.

    A wave starts when it has `max_rows` rows, when all running requests wait for it, or when one
    has waited `max_wait_s`. Who came first goes first. Where more rows were measured not to pay,
    as of a large model whose every row takes as long as the first, waves have fewer. At most
    `max_active` requests run at a time; others wait for their turn in the order they came. On a
    GPU, waves whose time goes into launching kernels are replayed from CUDA graphs, unless
    `use_graphs` is False.
    """

    def __init__(
        self,
        pipe: Any,
        *,
        max_rows: int = 16,
        max_active: int = 32,
        max_wait_s: float = 0.01,
        use_graphs: bool = True,
    ) -> None:
        check_shareable(pipe)
        self.pipe = pipe
        self.max_active = max_active
        self._lock = threading.RLock()
        encoding = threading.RLock()
        self._locked = {
            name: locked(part, encoding)
            for name, part in pipe.components.items()
            if part is not None and name.startswith(ENCODING)
        }
        # looked up once: pipelines ask for them in every call, which walks over all layers
        self._places = {
            name: {"device": part.device, "dtype": part.dtype}
            for name, part in pipe.components.items()
            if part is not None and (name in DENOISERS or name == "vae")
        }
        self._forwards = {
            name: forward_of(part)
            for name, part in pipe.components.items()
            if part is not None and name in DENOISERS
        }
        self._numbers = itertools.count()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._adapters = AdapterSwitch(pipe)
        self._is_open = True
        self._waves = Waves(
            max_rows=max_rows,
            max_wait_s=max_wait_s,
            active=self._active,
            switch=self._adapters.use,
            use_graphs=use_graphs,
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
        copied, call = self._following(plan, self._seeded(call))
        request = Request(copied, call, named, next(self._numbers))
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

        All that is known is counted: what is left of each, what waves of these sizes took, what
        comes before and after, and that those who wait begin when others end.
        """
        requests = self._requests()
        if not self.costs:
            return None
        ends = self._ends(map(self._job, requests), self._waves.elapsed)
        return dict(zip(requests, ends, strict=True))

    def finish_in(
        self, evaluations: int, count: int = 1, *, alone: bool = False, **call: Any
    ) -> float | None:
        """Seconds until so many more requests would be done; None before the first wave.

        `call` has the size they ask for. With `alone` as if there were no others; with a `count`
        of 0 it is the time until all that were taken on are done.
        """
        if not self.costs:
            return None
        size, others = size_of(call), [] if alone else self._requests()
        calls, rows = self.costs.shape(size)
        more = Job(evaluations * calls, rows, size, self.costs.before(size), begun=False)
        jobs = [*map(self._job, others), *[more] * count]
        return max(self._ends(jobs, self._waves.elapsed if others else 0.0), default=0.0)

    def _requests(self) -> list[Request]:
        """All that were taken on and are not done, in the order in which they began or wait."""
        with self._lock:
            return [*self._running, *self._waiting]

    def _job(self, request: Request) -> Job:
        """What is left of a request."""
        calls, rows = request.shape(self.costs.shape(request.size))
        ready = request.preparing(self.costs.before(request.size))
        begun = request.started is not None
        return Job(request.calls_left(calls), rows, request.size, ready, begun)

    def _ends(self, jobs: Iterable[Job], elapsed: float) -> list[float]:
        limits = {"most": self._waves.max_rows, "active": self.max_active}
        return finish_times(list(jobs), self.costs, **limits, elapsed=elapsed)

    @property
    def evaluations_queued(self) -> int:
        """All evaluations that the requests taken on still need."""
        return sum(request.remaining for request in self._requests())

    @property
    def is_alive(self) -> bool:
        """Whether the thread that evaluates the model is at work."""
        return self._waves.is_alive

    @property
    def costs(self) -> Costs:
        """The seconds that waves and the rest of requests take, as measured last."""
        return self._waves.costs

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
            requests = self._requests()
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

    def _seeded(self, call: dict[str, Any]) -> dict[str, Any]:
        """The call with a generator of its own on a GPU, whose own one may be part of a capture."""
        takes = "generator" in inspect.signature(self.pipe.__call__).parameters
        if call.get("generator") is not None or not takes or self.pipe.device.type != "cuda":
            return call
        generator = torch.Generator()
        generator.seed()
        return {**call, "generator": generator}

    def _stand_ins(self, request: Request) -> dict[str, Any]:
        """What stands in the request's pipeline for the parts it shares with others."""
        found: dict[str, Any] = {}
        for name, part in self.pipe.components.items():
            if part is None:
                continue
            if name in DENOISERS:
                call = self._evaluating(request, self._forwards[name])
                found[name] = StandIn(part, {"__call__": call, **self._places[name]})
            elif name == "vae":
                decode = functools.partial(self._waves.decode, request, part.decode)
                encode = functools.partial(self._waves.ask_alone, request, part.encode)
                found[name] = StandIn(
                    part, {"decode": decode, "encode": encode, **self._places[name]}
                )
        return {**self._locked, **found}

    def _evaluating(self, request: Request, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if request.first_asked is None:
                request.first_asked = time.monotonic()
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
            request.started = time.monotonic()
            threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: Request) -> None:
        """Make one request's call; its error is its own."""
        result, error = None, None
        try:
            result = request.pipe(**request.call)
            self._note(request)
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

    def _note(self, request: Request) -> None:
        """Note what a request took that was no wave."""
        started, first, answered = request.started, request.first_asked, request.answered
        if started is not None and first is not None and answered is not None:
            shape = request.shape(self.costs.shape(request.size))
            rest = time.monotonic() - answered
            self.costs.add_request(request.size, first - started, rest, shape)
