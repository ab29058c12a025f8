"""Waves: evaluations that several requests wait for, joined where they may be and made at once.

Every request runs in a thread of its own and waits in `Waves.ask` for what it needs of a network.
One thread makes the waves, so that the networks are never used by two at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from tacache.serving.asks import Ask, Cancelled, goes_first, is_alone, wave_of
from tacache.serving.costs import Costs
from tacache.serving.graphs import Graphs
from tacache.serving.joining import Comparison, JoinableCall, is_close, joinable, joined, parted

logger = logging.getLogger("tacache.serving")
LOOKS_AGAIN = 100  # waves, of which one has as many rows as it may, to see whether they pay now
PATIENCE = 0.05  # of a wave's time: how long it waits for one that came before
COMES_BACK_S = 0.001  # how long a request is waited for before the next one goes on


class Waves:
    """Collects what requests ask for, and answers it wave by wave in a thread of its own."""

    def __init__(
        self,
        *,
        max_rows: int,
        max_wait_s: float,
        active: Callable[[], int],
        switch: Callable[[Any], None],
        use_graphs: bool = True,
    ) -> None:
        self.max_rows, self.max_wait_s = max_rows, max_wait_s
        self.costs = Costs()
        self.made = self.rows = 0  # waves, and the rows in them
        self._active, self._switch = active, switch
        self._graphs = Graphs() if use_graphs else None
        self._known = Comparison()
        self._pending: list[Ask] = []
        self._change = threading.Condition()
        self._alone: set[Hashable] = set()  # keys whose calls must not be joined
        self._checked: set[Hashable] = set()
        self._is_open = True
        self._ended = 0.0  # when the last wave did
        self._making: list[Ask] = []  # the wave in progress
        self._last: list[Any] = []  # the requests of the last evaluation
        self._thread = threading.Thread(target=self._run, name="tacache-waves", daemon=True)
        self._thread.start()

    def evaluate(self, request: Any, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """What a denoiser returns, which is called in a wave; called from a request's thread."""
        call = joinable(function, args, kw, self._known)
        request.rows = call.rows
        return self._asked(Ask(call, request, "evaluation"))

    def decode(self, request: Any, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """What a decoder returns, which is called in a wave."""
        return self._asked(Ask(joinable(function, args, kw, self._known), request, "decoding"))

    def ask_alone(self, request: Any, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """What a function returns that shares no wave."""
        return self._asked(Ask(JoinableCall(partial(function, *args), kw, 1, None), request))

    def _asked(self, asked: Ask) -> Any:
        request = asked.request
        with self._change:
            if request.is_cancelled:
                raise Cancelled("the request was cancelled")
            if not self._is_open:
                raise Cancelled("the batcher was closed")
            self._pending.append(asked)
            self._change.notify_all()
        asked.done.wait()
        if asked.error is not None:
            raise asked.error
        return asked.result

    @property
    def is_alive(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    @property
    def elapsed(self) -> float:
        """Seconds since the wave that is being made, or waited for, could begin; else 0."""
        with self._change:
            asks = self._making or self._pending
            return time.monotonic() - self._begun(asks) if asks else 0.0

    def _begun(self, wave: Sequence[Ask]) -> float:
        """When a wave could begin: the one before had ended, and somebody asked for it."""
        return max(self._ended, min(ask.since for ask in wave))

    def notice(self) -> None:
        """Look again at who waits: a request has begun, ended, or was cancelled."""
        with self._change:
            gone = [ask for ask in self._pending if ask.request.is_cancelled]
            self._pending = [ask for ask in self._pending if not ask.request.is_cancelled]
            self._change.notify_all()
        for ask in gone:
            ask.answer(error=Cancelled("the request was cancelled"))

    def close(self) -> None:
        """Answer nothing more; who still waits is told so."""
        with self._change:
            self._is_open = False
            left, self._pending = self._pending, []
            self._change.notify_all()
        for ask in left:
            ask.answer(error=Cancelled("the batcher was closed"))
        self._thread.join()

    def _run(self) -> None:
        with torch.no_grad():
            while (wave := self._next_wave()) is not None:
                try:
                    self._make(wave)
                except BaseException as error:  # whatever it is, nobody waits for ever
                    for ask in wave:
                        if not ask.done.is_set():
                            ask.answer(error=error)
                with self._change:
                    self._ended, self._making = time.monotonic(), []

    def _next_wave(self) -> list[Ask] | None:
        """The asks of the next wave, once there is reason to start it; None after closing."""
        with self._change:
            while self._is_open:
                most = self._most()
                wave = wave_of(self._pending, most, self._alone)
                if wave and (wait := self._wait_for(wave, most)) <= 0:
                    self._pending = [ask for ask in self._pending if ask not in wave]
                    self._making = wave
                    return wave
                self._change.wait(wait if wave else None)
        return None

    def _most(self) -> int:
        """The rows that the next wave may have: as many as fit, or as pay."""
        if not self._pending or self.made % LOOKS_AGAIN == LOOKS_AGAIN - 1:
            return self.max_rows
        first = min(self._pending, key=goes_first)
        if first.what != "evaluation":
            return self.max_rows
        return self.costs.paying(first.request.size, self.max_rows)

    def _wait_for(self, wave: Sequence[Ask], most: int) -> float:
        """Seconds until this wave starts: none where it is full or nobody else can come."""
        if is_alone(wave[0], self._alone) or len(self._pending) >= self._active():
            return 0.0
        full = sum(ask.call.rows for ask in wave) >= most
        wait = self._patience(wave) if full else self.max_wait_s
        since = max(wave[0].since, self._ended)  # those of the last wave may come again
        return wait - (time.monotonic() - since)

    def _patience(self, wave: Sequence[Ask]) -> float:
        """How long a full wave waits, where one of the last wave that came before is to come."""
        here = {id(ask.request) for ask in self._pending}
        number, size = wave[0].request.number, wave[0].request.size
        late = [one for one in self._last if one.number < number and id(one) not in here]
        if wave[0].what != "evaluation" or not any(one.comes_back for one in late):
            return 0.0
        expected = self.costs.wave(size, sum(ask.call.rows for ask in wave)) if self.costs else 0.0
        return min(self.max_wait_s, PATIENCE * expected)

    def _make(self, wave: list[Ask]) -> None:
        """Answer the asks of a wave; where memory ends, without graphs, and then in halves."""
        self._switch(wave[0].request.adapters)
        try:
            self._answer(wave)
            return
        except torch.OutOfMemoryError:
            had_graphs = self._graphs is not None and self._graphs.clear()
            if len(wave) == 1 and not had_graphs:
                raise
        torch.cuda.empty_cache()  # here, where the error holds no tensors any more
        if had_graphs:
            self._make(wave)
            return
        half = len(wave) // 2
        self.max_rows = max(1, sum(ask.call.rows for ask in wave[:half]))
        logger.warning(
            "memory ran out with %d rows: waves have at most %d from now on",
            sum(ask.call.rows for ask in wave), self.max_rows,
        )  # fmt: skip
        for part in (wave[:half], wave[half:]):
            self._make(part)

    def _answer(self, wave: list[Ask]) -> None:
        rows = [ask.call.rows for ask in wave]
        try:
            result = self._called(wave)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if len(wave) == 1:
                raise
            logger.exception("a joined evaluation failed: its requests are evaluated one by one")
            self._one_by_one(wave)
            return
        results = parted(result, rows) if len(wave) > 1 else [result]
        if len(wave) > 1 and not self._agrees(wave[0], results[0]):
            self._one_by_one(wave)
            return
        if wave[0].what == "evaluation":
            self.made, self.rows = self.made + 1, self.rows + sum(rows)
        finished = _recorded(wave)
        if finished is not None and wave[0].what != "evaluation":
            finished.synchronize()  # what follows in a request is not the device's time
        for ask, one in zip(wave, results, strict=True):
            self._go_on(ask, one)
        if finished is not None:  # the next step of requests was launched meanwhile
            finished.synchronize()
        self._note(wave, sum(rows))

    def _called(self, wave: list[Ask]) -> Any:
        """What the wave's one call returns."""
        first = wave[0].call
        arguments = joined([ask.call for ask in wave])
        if self._graphs is None or first.key is None:
            return first.function(**arguments)
        rows = sum(ask.call.rows for ask in wave)
        return self._graphs.call(first.function, arguments, first.key, rows)

    def _go_on(self, ask: Ask, result: Any) -> None:
        """Answer one request, and give it a moment to come back before the next one goes on.

        Many threads that wake up at once take turns at the interpreter's lock, which costs more
        than what they do.
        """
        with self._change:
            waiting = len(self._pending)
            ask.answer(result)
            self._change.wait_for(lambda: len(self._pending) > waiting, COMES_BACK_S)

    def _note(self, wave: list[Ask], rows: int) -> None:
        """Note what the wave took, from when the one before ended or somebody asked for it."""
        taken = time.monotonic() - self._begun(wave)
        sizes = dict.fromkeys(ask.request.size for ask in wave)  # a default may have two names
        if wave[0].what == "evaluation":
            self._last = [ask.request for ask in wave]
            for ask in wave:
                ask.request.answers += 1
            for size in sizes:
                self.costs.add_wave(size, rows, taken)
        elif wave[0].what == "decoding":
            for size in sizes:
                self.costs.add_decoding(size, rows, taken)

    def _one_by_one(self, wave: list[Ask]) -> None:
        """Each ask alone: an error of one stays its own."""
        self._alone.add(wave[0].call.key)
        for ask in wave:
            try:
                ask.answer(ask.call.function(**ask.call.arguments))
            except Exception as error:
                ask.answer(error=error)

    def _agrees(self, ask: Ask, found: Any) -> bool:
        """Whether a joined result is that of the call alone, tried once for every kind of call."""
        key = ask.call.key
        if key in self._checked:
            return True
        if is_close(found, ask.call.function(**ask.call.arguments)):
            self._checked.add(key)
            return True
        logger.warning("evaluations that were joined differ from single ones: not joined any more")
        return False


def _recorded(wave: Sequence[Ask]) -> torch.cuda.Event | None:
    """An event that is over once the device has made the wave; None where it has none."""
    tensors = [one for one in wave[0].call.arguments.values() if isinstance(one, torch.Tensor)]
    if not tensors or not tensors[0].is_cuda:
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensors[0].device))
    return event
