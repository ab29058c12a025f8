"""One model that answers requests: a batcher, the plans it may follow, and what it has counted."""

import asyncio
import logging
import tempfile
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from tacache.diffusers.applying import check_finished
from tacache.diffusers.calls import giving, pixels_of, run_arguments
from tacache.errors import HostError, TACacheError, first_line
from tacache.hosts.generation import write
from tacache.prompts import Sample
from tacache.serving.batcher import Batcher
from tacache.serving.budgets import Budgets, Offer, busy, chosen
from tacache.serving.engine import no_exit
from tacache.serving.probe import signature_of
from tacache.serving.protocol import Limits, Refused, RequestBody
from tacache.serving.request import Cancelled, GenerationRequest
from tacache.storage.signature import RunSignature

logger = logging.getLogger("tacache.serving")
LOOKS = 0.1  # seconds between two looks at a request's progress
MAX_KNOWN_SIZES = 64  # whose signatures are kept
WARM_UP = 6  # evaluations: the first ones of a process are slower than all others
OUTCOMES = ("done", "failed", "refused", "cancelled")
MEDIA = {".png": "image/png", ".mp4": "video/mp4"}


@dataclass(frozen=True)
class Progress:
    """How many of a request's evaluations are made, over all its outputs."""

    evaluated: int
    of: int


@dataclass(frozen=True)
class OutputFile:
    """One picture or clip, as a file would hold it, and what made it."""

    data: bytes
    media_type: str
    seed: int
    evaluations: int


Event = Progress | tuple[OutputFile, ...]  # outputs come last


class Backend(Protocol):
    """What the HTTP application asks for outputs: a worker of its process, or replicas."""

    def run(self, wanted: RequestBody) -> AsyncGenerator[Event, None]:
        """Return what a request asks for: its progress, and its outputs at the end, or Refused."""

    async def check(self) -> None:
        """Raise if requests cannot be answered now."""

    async def snapshots(self) -> Mapping[str, Mapping[str, float]]:
        """Return what each replica has counted, by its name."""

    async def close(self) -> None:
        """End what was taken on."""


class Worker:
    """Answers requests with one pipeline, whose evaluations they share (a `Backend`).

    `call` has the arguments of the pipeline's calls that no request sets. `run` is for one event
    loop; `snapshot` and `warm_up` may be called from any thread.
    """

    def __init__(
        self,
        pipe: Any,
        call: dict[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        budgets: Budgets | None = None,
        max_rows: int = 16,
        use_graphs: bool = True,
        fps: int = 16,
    ) -> None:
        self.pipe, self.call, self.fps = pipe, dict(call or {}), fps
        self.limits, self.budgets = limits or Limits(), budgets or Budgets()
        self.batcher = Batcher(
            pipe, max_rows=max_rows, max_active=2 * max_rows, use_graphs=use_graphs
        )
        self._signatures: OrderedDict[tuple[tuple[str, int], ...], RunSignature] = OrderedDict()
        self._finding = threading.Lock()
        self._running: set[GenerationRequest] = set()
        self._counts: Counter[str] = Counter()
        self._errors: deque[float] = deque(maxlen=256)  # of finish times, relative
        self._admitting = asyncio.Lock()  # a place that was offered is taken before the next offer

    def warm_up(self) -> RunSignature:
        """See that the model can be called as it will be, and measure its first batches."""
        run = self._signature({})
        offer = self.budgets.offer(run, min(run.steps, max(WARM_UP, run.parts)))
        request = self._submit(RequestBody(prompt="a warm-up", seed=0), {}, offer, 0)
        request.result()
        return run

    async def run(self, wanted: RequestBody) -> AsyncGenerator[Event, None]:
        """Make what a request asks for: its progress, and then all of its outputs.

        What is not taken on is Refused. A caller that stops to listen cancels the request.
        """
        requests: list[GenerationRequest] = []
        outcome = "cancelled"  # where the caller ends it
        try:
            run = await asyncio.to_thread(self._possible, wanted.shape)
            async with self._admitting:
                offer = await asyncio.to_thread(self._offer, wanted, run)
                for i in range(wanted.pictures):
                    requests.append(self._submit(wanted, wanted.shape, offer, i))
                self._running.update(requests)
            async for progress in self._watched(requests):
                yield progress
            outputs = [
                await asyncio.to_thread(self._output, request, wanted.seed + i)
                for i, request in enumerate(requests)
            ]
            outcome = "done"
            yield tuple(outputs)
        except Exception as error:
            refusal = _refusal(error)
            outcome = "failed" if refusal.status == 500 else "refused"
            raise refusal from error
        finally:
            self._counts[outcome] += 1
            self._leave(requests)

    def snapshot(self) -> dict[str, float]:
        """Return what was counted so far, and what there is to do."""
        batches, rows = self.batcher.batches
        running = list(self._running)
        return {
            "batches": batches,
            "rows": rows,
            "evaluations": self._counts["evaluations"]
            + sum(request.evaluated for request in running),
            "evaluations_queued": self.batcher.evaluations_queued,
            "requests_running": len(running),
            **{f"requests_{name}": self._counts[name] for name in OUTCOMES},
            "finish_time_error": median(self._errors) if self._errors else 0.0,
        }

    async def check(self) -> None:
        """Raise where the thread that evaluates the model is gone."""
        if not self.batcher.is_alive:
            raise HostError("the thread that evaluates the model has ended: restart the server")

    async def snapshots(self) -> Mapping[str, Mapping[str, float]]:
        """Return its numbers as those of the one replica there is."""
        return {"local": self.snapshot()}

    async def close(self) -> None:
        """Take on nothing more, and stop what it still does."""
        await asyncio.to_thread(self.batcher.close, finish=False)

    def _signature(self, shape: dict[str, int]) -> RunSignature:
        """Return what a run of this size is; looked up once."""
        key = tuple(sorted(shape.items()))
        with self._finding:
            if key not in self._signatures:
                self._signatures[key] = signature_of(self.batcher.shared, {**self.call, **shape})
            self._signatures.move_to_end(key)
            while len(self._signatures) > MAX_KNOWN_SIZES:
                self._signatures.popitem(last=False)
            return self._signatures[key]

    def _possible(self, shape: dict[str, int]) -> RunSignature:
        """Return what a run of this size is, or a Refused where the model makes none."""
        try:
            signature: RunSignature = no_exit(lambda: self._signature(shape))
            return signature
        except (TACacheError, ValueError) as error:
            raise Refused(
                f"this model was not made for {_named(shape)} ({first_line(error)}): ask for "
                "another size, or leave it out",
                param="size",
            ) from error

    def _offer(self, wanted: RequestBody, run: RunSignature) -> Offer:
        """Return the plan that a request gets now; the queue has room for it."""
        offers, count = self.budgets.offers(run, wanted), wanted.pictures
        call = {**self.call, **wanted.shape}
        queued = self.batcher.evaluations_queued
        offer = chosen(
            offers,
            wanted,
            loaded=lambda n: self.batcher.finish_in(n, count, **call),
            alone=lambda n: self.batcher.finish_in(n, count, alone=True, **call),
            is_under_load=len(self._running) >= self.batcher.max_active // 2,
        )
        excess = queued + offer.evaluations * count - self.limits.queued
        if excess > 0:
            drained = self.batcher.finish_in(0, 0) or 1.0
            raise busy(f"{queued} evaluations wait already", drained * excess / max(queued, 1))
        return offer

    def _submit(
        self, wanted: RequestBody, shape: dict[str, int], offer: Offer, i: int
    ) -> GenerationRequest:
        sample = Sample(wanted.prompt, wanted.seed + i)
        arguments = giving(self.pipe, "np", run_arguments([sample], {**self.call, **shape}))
        return self.batcher.submit(plan=offer.plan, **arguments)

    async def _watched(self, requests: list[GenerationRequest]) -> AsyncGenerator[Progress, None]:
        """Return what is done of some requests, whenever that has changed, until all of it is."""
        loop, started, changed = asyncio.get_running_loop(), time.monotonic(), asyncio.Event()
        estimates = await asyncio.to_thread(self.batcher.finish_estimates) or {}
        expected = max((estimates.get(request, 0.0) for request in requests), default=0.0)
        for request in requests:
            request.when_done(lambda _: _tell(loop, changed))
        of, last = sum(request.remaining + request.evaluated for request in requests), -1
        while not all(request.is_done for request in requests):
            for request in requests:
                if request.is_done:
                    request.result(0)  # an error ends all
            evaluated = sum(request.evaluated for request in requests)
            if evaluated != last:
                last = evaluated
                yield Progress(evaluated, max(of, evaluated))
            changed.clear()
            if not all(request.is_done for request in requests):
                await _wait(changed, LOOKS)
        taken = time.monotonic() - started
        if expected:
            self._errors.append(abs(expected - taken) / taken)
        yield Progress(of, of)

    def _output(self, request: GenerationRequest, seed: int) -> OutputFile:
        """Return the file of a finished request; an error of its call is raised here."""
        pixels = pixels_of(request.result(0))
        check_finished(request.pipe)
        with tempfile.TemporaryDirectory(prefix="tacache-") as folder:
            path = write(pixels, Path(folder) / "output", ".mp4", self.fps)
            return OutputFile(path.read_bytes(), MEDIA[path.suffix], seed, request.evaluated)

    def _leave(self, requests: list[GenerationRequest]) -> None:
        """Stop what is not done, and count what was evaluated."""
        for request in requests:
            if not request.is_done:
                self.batcher.cancel(request)
        self._running.difference_update(requests)
        self._counts["evaluations"] += sum(request.evaluated for request in requests)


def _named(shape: dict[str, int]) -> str:
    """Return a size as clients write it."""
    frames = f" with {shape['num_frames']} frames" if "num_frames" in shape else ""
    pixels = f"{shape['width']}x{shape['height']}" if "width" in shape else "its own size"
    return pixels + frames


def _refusal(error: Exception) -> Refused:
    """Return an error as the client is told it: whose fault it is, and what to do."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Cancelled):
        return busy("the server is stopping", 5)
    logger.error("a request failed", exc_info=error)
    if isinstance(error, TACacheError):
        return Refused(str(error), status=500)
    return Refused("the request failed: the server's log says why", status=500)


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return
