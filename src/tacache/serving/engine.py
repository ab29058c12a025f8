"""The engine: one thread that makes the evaluations which requests wait for, batch by batch.

Every request runs in a thread of its own and waits in `Engine.evaluate` for what a network gives.
Only the engine's thread calls the networks, so they are never used by two at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from tacache.errors import HostError
from tacache.serving.costs import Costs, SingleKinds
from tacache.serving.graphs import Graphs
from tacache.serving.joining import CallKeys, JoinableCall, is_close, joinable, joined, parted
from tacache.serving.policy import Situation, goes_first, next_batch
from tacache.serving.request import Cancelled, EvaluationRequest, GenerationRequest

logger = logging.getLogger("tacache.serving")
FULL_BATCH_EVERY = 100  # batches: one has as many rows as fit, to see whether they pay now
COMES_BACK_S = 0.001  # how long a request is waited for before the next one goes on
Batch = list[EvaluationRequest]


class Engine:
    """Collects the evaluations that requests wait for, and answers them batch by batch."""

    def __init__(
        self,
        *,
        max_rows: int,
        max_wait_s: float,
        running: Callable[[], int],
        switch: Callable[[Any], None],
        use_graphs: bool = True,
    ) -> None:
        self.max_rows, self.max_wait_s = max_rows, max_wait_s
        self.costs = Costs()
        self.batches = self.rows = 0  # evaluated so far, and the rows in them
        self._running, self._switch = running, switch
        self._graphs = Graphs() if use_graphs else None
        self._known = CallKeys()
        self._waiting: Batch = []
        self._change = threading.Condition()
        self._single = SingleKinds()
        self._checked: set[Hashable] = set()  # kinds of calls that give the same when joined
        self._is_open = True
        self._last_ended = 0.0  # when the last batch did
        self._current: Batch = []
        self._last: list[GenerationRequest] = []  # of the last batch of evaluations
        self._thread = threading.Thread(target=self._run, name="tacache-engine", daemon=True)
        self._thread.start()

    def evaluate(
        self, generation: GenerationRequest, function: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """Return what a denoiser gives, called in a batch; from the request's own thread."""
        call = joinable(function, args, kw, self._known)
        generation.rows = call.rows
        return self._result(EvaluationRequest(call, generation, "evaluation"))

    def decode(
        self, generation: GenerationRequest, function: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """Return what a decoder gives, called in a batch."""
        call = joinable(function, args, kw, self._known)
        return self._result(EvaluationRequest(call, generation, "decoding"))

    def call_alone(
        self, generation: GenerationRequest, function: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """Return what a function gives that shares no batch."""
        call = JoinableCall(partial(function, *args), kw, 1, None)
        return self._result(EvaluationRequest(call, generation))

    def _result(self, evaluation: EvaluationRequest) -> Any:
        """Wait until it is answered; return its result, or raise its error."""
        with self._change:
            if evaluation.generation.is_cancelled:
                raise Cancelled("the request was cancelled")
            if not self._is_open:
                raise Cancelled("the batcher was closed")
            self._waiting.append(evaluation)
            self._change.notify_all()
        evaluation.done.wait()
        if evaluation.error is not None:
            raise evaluation.error
        return evaluation.result

    @property
    def is_alive(self) -> bool:
        """Return whether its thread is at work."""
        return self._thread.is_alive()

    @property
    def elapsed(self) -> float:
        """Return seconds since the batch that is being made, or waited for, could begin; else 0."""
        with self._change:
            evaluations = self._current or self._waiting
            return time.monotonic() - self._could_begin(evaluations) if evaluations else 0.0

    def notice(self) -> None:
        """Look again at who waits: a request has begun, ended, or was cancelled."""
        with self._change:
            gone = [
                evaluation for evaluation in self._waiting if evaluation.generation.is_cancelled
            ]
            self._waiting = [
                evaluation for evaluation in self._waiting if not evaluation.generation.is_cancelled
            ]
            self._change.notify_all()
        for evaluation in gone:
            evaluation.answer(error=Cancelled("the request was cancelled"))

    def close(self) -> None:
        """Answer nothing more; who still waits is told so."""
        with self._change:
            self._is_open = False
            left, self._waiting = self._waiting, []
            self._change.notify_all()
        for evaluation in left:
            evaluation.answer(error=Cancelled("the batcher was closed"))
        self._thread.join()

    def _run(self) -> None:
        with torch.no_grad():
            while (batch := self._next()) is not None:
                try:
                    self._make(batch)
                except BaseException as error:  # whatever it is, nobody waits for ever
                    for evaluation in batch:
                        if not evaluation.done.is_set():
                            evaluation.answer(error=error)
                with self._change:
                    self._last_ended, self._current = time.monotonic(), []

    def _next(self) -> Batch | None:
        """Return the next batch, once there is reason to start it; None after closing."""
        with self._change:
            while self._is_open:
                wait = None
                if self._waiting:
                    batch, wait = next_batch(self._waiting, self._situation())
                    if wait <= 0:
                        self._waiting = [
                            evaluation for evaluation in self._waiting if evaluation not in batch
                        ]
                        self._current = batch
                        return batch
                self._change.wait(wait)
        return None

    def _situation(self) -> Situation:
        """Return what the policy needs to know of this moment."""
        first = goes_first(self._waiting)
        size = first.generation.size
        fitting = most = self.costs.limits.rows(size, self.max_rows)
        if first.kind == "evaluation" and self.batches % FULL_BATCH_EVERY != FULL_BATCH_EVERY - 1:
            most = self.costs.paying(size, fitting)
        return Situation(
            now=time.monotonic(),
            running=self._running(),
            max_rows=most,
            max_wait_s=self.max_wait_s,
            last_ended=self._last_ended,
            last=self._last,
            full_seconds=self.costs.batch(size, most) if self.costs else 0.0,
            single=self._single,
        )

    def _could_begin(self, batch: Batch) -> float:
        """Return when a batch could begin: the one before had ended, and somebody waited."""
        return max(self._last_ended, min(evaluation.since for evaluation in batch))

    def _make(self, batch: Batch) -> None:
        """Answer a batch; where memory ends, without graphs, and then in halves."""
        self._switch(batch[0].generation.adapters)
        try:
            self._answer(batch)
            return
        except torch.OutOfMemoryError:
            had_graphs = self._graphs is not None and self._graphs.clear()
            if len(batch) == 1 and not had_graphs:
                raise
        torch.cuda.empty_cache()  # here, where the error holds no tensors any more
        if had_graphs:
            self._make(batch)
            return
        rows, size = _rows(batch), batch[0].generation.size
        self.costs.limits.memory_ended(size, rows)
        logger.warning(
            "memory ran out with %d rows: batches of this size have at most %d for a while",
            rows, max(1, rows // 2),
        )  # fmt: skip
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            self._make(part)

    def _answer(self, batch: Batch) -> None:
        try:
            result = self._called(batch)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if len(batch) == 1:
                raise
            logger.exception("a joined evaluation failed: its requests are evaluated one by one")
            if self._answer_one_by_one(batch):  # then it was not one of them that failed
                self._single.joining_failed(batch[0].call.key)
            return
        results = [result]
        if len(batch) > 1:
            results = parted(result, [evaluation.call.rows for evaluation in batch])
            if not self._agrees(batch[0], results[0]):
                self._single.joining_failed(batch[0].call.key)
                self._answer_one_by_one(batch)
                return
        self._hand_out(batch, results)

    def _hand_out(self, batch: Batch, results: Sequence[Any]) -> None:
        """Let every request of a batch go on with its result, and note what the batch took."""
        is_evaluation, rows = batch[0].kind == "evaluation", _rows(batch)
        self.costs.limits.went_well(batch[0].generation.size, rows)
        self._single.made_singly(batch[0].call.key)
        if is_evaluation:
            self.batches, self.rows = self.batches + 1, self.rows + rows
        finished = _recorded(batch)
        if finished is not None and not is_evaluation:
            finished.synchronize()  # what follows in a request is not the device's time
        for evaluation, result in zip(batch, results, strict=True):
            self._go_on(evaluation, result)
        if finished is not None:  # the next step of requests was launched meanwhile
            finished.synchronize()
        self._note(batch, rows)

    def _called(self, batch: Batch) -> Any:
        """Return what the one call of a batch gives."""
        call = batch[0].call
        arguments = joined([evaluation.call for evaluation in batch])
        if self._graphs is None or call.key is None:
            return no_exit(partial(call.function, **arguments))
        function = partial(self._graphs.call, call.function, arguments, call.key, _rows(batch))
        return no_exit(function)

    def _go_on(self, evaluation: EvaluationRequest, result: Any) -> None:
        """Answer one request, and give it a moment to come back before the next one goes on.

        Many threads that wake up at once take turns at the interpreter's lock, which costs more
        than what they do.
        """
        with self._change:
            waiting = len(self._waiting)
            evaluation.answer(result)
            self._change.wait_for(lambda: len(self._waiting) > waiting, COMES_BACK_S)

    def _note(self, batch: Batch, rows: int) -> None:
        """Note what the batch took, from when the one before ended or somebody waited for it."""
        taken = time.monotonic() - self._could_begin(batch)
        generations = [evaluation.generation for evaluation in batch]
        # A size that is the default may have two names.
        sizes = dict.fromkeys(generation.size for generation in generations)
        if batch[0].kind == "evaluation":
            self._last = generations
            for generation in generations:
                generation.answers += 1
            if self._graphs is not None and self._graphs.was_slow:
                return  # captures and timed calls are not what a batch takes
            for size in sizes:
                self.costs.add_batch(size, rows, taken)
        elif batch[0].kind == "decoding":
            for size in sizes:
                self.costs.add_decoding(size, rows, taken)

    def _answer_one_by_one(self, batch: Batch) -> bool:
        """Answer each alone, so that an error of one stays its own; return whether none failed."""
        for evaluation in batch:
            try:
                result = no_exit(partial(evaluation.call.function, **evaluation.call.arguments))
            except Exception as error:
                evaluation.answer(error=error)
            else:
                evaluation.answer(result)
        return all(evaluation.error is None for evaluation in batch)

    def _agrees(self, evaluation: EvaluationRequest, result: Any) -> bool:
        """Return whether a joined result is that of the call alone, tried once for each kind."""
        call = evaluation.call
        if call.key in self._checked:
            return True
        if is_close(result, call.function(**call.arguments)):
            self._checked.add(call.key)
            return True
        logger.warning("evaluations that were joined differ from single ones: made singly for now")
        return False


def no_exit(function: Callable[[], Any]) -> Any:
    """Return what a function gives; where a model ends the process, that is an error of its own.

    Raises:
        HostError: The function raised SystemExit or KeyboardInterrupt, which no thread of a
            server may pass on.

    """
    try:
        return function()
    except (SystemExit, KeyboardInterrupt) as error:
        raise HostError(f"the model raised {type(error).__name__}") from error


def _rows(batch: Batch) -> int:
    return sum(evaluation.call.rows for evaluation in batch)


def _recorded(batch: Batch) -> torch.cuda.Event | None:
    """Return an event that is over once the device has made the batch; None on a processor."""
    tensors = [
        value for value in batch[0].call.arguments.values() if isinstance(value, torch.Tensor)
    ]
    if not tensors or not tensors[0].is_cuda:
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensors[0].device))
    return event
