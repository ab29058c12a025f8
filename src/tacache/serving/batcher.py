"""Continuous batching: requests with plans of their own share every evaluation of one model."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tacache.errors import HostError
from tacache.plan import Plan
from tacache.serving.costs import Costs, size_of
from tacache.serving.engine import Engine, no_exit
from tacache.serving.finish_times import RemainingWork, finish_times
from tacache.serving.request import Cancelled, GenerationRequest
from tacache.serving.shared_pipeline import AdapterSwitch, SharedPipeline


class Batcher:
    """Runs many calls of one diffusers pipeline together; evaluations are joined into batches.

    Every request is a call of the pipeline as it is, in a thread of its own, with a scheduler of
    its own that carries its plan. Only the networks are shared. Requests join and leave at every
    evaluation. Rows are joined where their shapes and all other arguments agree.

    A batch starts when it has `max_rows` rows, when all running requests wait for it, or when one
    has waited `max_wait_s`. Who came first goes first. Where more rows were measured not to pay,
    as of a large model whose every row takes as long as the first, batches have fewer; so they do
    at sizes where memory ended, for a while. At most `max_active` requests run at a time; others
    wait for their turn in the order they came. On a GPU, batches whose time goes into launching
    kernels are replayed from CUDA graphs, unless `use_graphs` is False.
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
        self.pipe, self.max_active = pipe, max_active
        self._pipeline = SharedPipeline(pipe)
        self._adapters = AdapterSwitch(pipe)
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[GenerationRequest] = []
        self._is_open = True
        self._engine = Engine(
            max_rows=max_rows,
            max_wait_s=max_wait_s,
            running=lambda: len(self._running),
            switch=self._adapters.use,
            use_graphs=use_graphs,
        )

    def submit(
        self,
        *,
        plan: Plan | None = None,
        adapters: Sequence[tuple[str, float]] | None = None,
        **call: Any,
    ) -> GenerationRequest:
        """Take on one call of the pipeline, which follows `plan`; None runs all its steps.

        `call` has the arguments of the pipeline's call; a call from a picture brings its
        `strength`. `adapters` are names and weights of LoRA adapters that were loaded before, ()
        for none. Without it, the request uses those that the pipeline had when the batcher was
        made. Requests with different adapters share no batch. A plan for another model is refused.
        """
        named = None if adapters is None else tuple((name, float(w)) for name, w in adapters)
        if named:
            self._adapters.check(named)
        copied, call = self._pipeline.following(plan, call)
        request = GenerationRequest(copied, call, named, next(self._numbers))
        self._pipeline.share(request, self._engine)
        with self._lock:
            if not self._is_open:
                raise HostError("the batcher was closed: make another one")
            self._waiting.append(request)
            self._start_next()
        return request

    @property
    def shared(self) -> Any:
        """Return the pipeline with tokenizers and encoders that other threads may use meanwhile."""
        return self._pipeline.with_locked_encoders()

    def cancel(self, request: GenerationRequest) -> bool:
        """Stop a request at its next evaluation, or before it begins; False if it is done."""
        with self._lock:
            request.is_cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)
                request._future.set_exception(Cancelled("the request was cancelled"))
                return True
        self._engine.notice()
        return not request.is_done

    def finish_estimates(self) -> dict[GenerationRequest, float] | None:
        """Return in how many seconds each request is expected to be done; None before any batch.

        All that is known is counted: what is left of each, what batches of these sizes took, what
        comes before and after, and that those who wait begin when others end.
        """
        requests = self._requests()
        if not self.costs:
            return None
        ends = self._ends(map(self._job, requests), self._engine.elapsed)
        return dict(zip(requests, ends, strict=True))

    def finish_in(
        self, evaluations: int, count: int = 1, *, alone: bool = False, **call: Any
    ) -> float | None:
        """Return seconds until so many more requests would be done; None before the first batch.

        `call` has the size they ask for. With `alone` as if there were no others; with a `count`
        of 0 it is the time until all that were taken on are done.
        """
        if not self.costs:
            return None
        size, others = size_of(call), [] if alone else self._requests()
        calls, rows = self.costs.shape(size)
        more = RemainingWork(evaluations * calls, rows, size, self.costs.before(size), begun=False)
        jobs = [*map(self._job, others), *[more] * count]
        return max(self._ends(jobs, self._engine.elapsed if others else 0.0), default=0.0)

    def _requests(self) -> list[GenerationRequest]:
        """Return all that were taken on and are not done, in the order in which they began."""
        with self._lock:
            return [*self._running, *self._waiting]

    def _job(self, request: GenerationRequest) -> RemainingWork:
        """Return what is left of a request."""
        calls, rows = request.shape(self.costs.shape(request.size))
        ready = request.preparing(self.costs.before(request.size))
        begun = request.started is not None
        return RemainingWork(request.calls_left(calls), rows, request.size, ready, begun)

    def _ends(self, jobs: Iterable[RemainingWork], elapsed: float) -> list[float]:
        limits = {"most": self._engine.max_rows, "active": self.max_active}
        return finish_times(list(jobs), self.costs, **limits, elapsed=elapsed)

    @property
    def evaluations_queued(self) -> int:
        """Return all evaluations that the requests taken on still need."""
        return sum(request.remaining for request in self._requests())

    @property
    def is_alive(self) -> bool:
        """Return whether the thread that evaluates the model is at work."""
        return self._engine.is_alive

    @property
    def costs(self) -> Costs:
        """Return the seconds that batches and the rest of requests take, as measured last."""
        return self._engine.costs

    @property
    def max_rows(self) -> int:
        """Return the rows that a batch may have, where they fit."""
        return self._engine.max_rows

    @property
    def batches(self) -> tuple[int, int]:
        """Return how many batches of evaluations were made, and how many rows they had in all."""
        return self._engine.batches, self._engine.rows

    def close(self, *, finish: bool = True) -> None:
        """Take on nothing more; finish what was taken on, or stop it."""
        with self._lock:
            self._is_open = False
            requests = self._requests()
        for request in requests:
            if not finish:
                self.cancel(request)
            request._future.exception()  # waits
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(finish=error is None)

    def _start_next(self) -> None:
        """Begin requests that wait, as far as more may run; the lock is held."""
        while self._waiting and len(self._running) < self.max_active:
            request = self._waiting.popleft()
            self._running.append(request)
            request.started = time.monotonic()
            threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: GenerationRequest) -> None:
        """Make one request's call; its error is its own."""
        result, error = None, None
        try:
            result = no_exit(lambda: request.pipe(**request.call))
            self._note(request)
        except BaseException as raised:
            error = raised
        with self._lock:
            self._running.remove(request)
            self._start_next()
        self._engine.notice()
        if error is None:
            request._future.set_result(result)
        else:
            request._future.set_exception(error)

    def _note(self, request: GenerationRequest) -> None:
        """Note what a request took that was no batch."""
        started, first, answered = request.started, request.first_asked, request.answered
        if started is not None and first is not None and answered is not None:
            shape = request.shape(self.costs.shape(request.size))
            rest = time.monotonic() - answered
            self.costs.add_request(request.size, first - started, rest, shape)
