"""The same requests served three ways: one after another, in whole batches, and by the batcher."""

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacache.diffusers import applied
from tacache.serving import Batcher
from tacache.serving.costs import size_of

WHOLE = 8
EVERY = 0.02  # seconds between samples of the estimates


@dataclass
class Load:
    """The requests: their calls, budgets and arrivals; and what became of them."""

    calls: list[dict[str, Any]]
    budgets: list[int]
    arrivals: list[float]
    ends: dict[int, float] = field(default_factory=dict)
    pictures: dict[int, Tensor] = field(default_factory=dict)

    def begin(self) -> None:
        """Let time start; every request has a generator as new."""
        self.ends, self.pictures = {}, {}
        for number, call in enumerate(self.calls):
            call["generator"] = torch.Generator().manual_seed(number)
        self.start = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def wait_for(self, number: int) -> None:
        """Sleep until a request has arrived."""
        time.sleep(max(0.0, self.arrivals[number] - self.now))

    def end(self, number: int, picture: Tensor) -> None:
        """Note that a request is done."""
        self.pictures[number] = picture.float().cpu()
        self.ends[number] = self.now

    def summary(self) -> dict[str, float]:
        """Throughput, from the first arrival to the last picture, and latency."""
        count = len(self.calls)
        late = sorted(self.ends[n] - self.arrivals[n] for n in range(count))
        return {
            "requests_per_second": count / (max(self.ends.values()) - self.arrivals[0]),
            "p50_seconds": statistics.median(late),
            "p99_seconds": late[min(count - 1, round(0.99 * count))],
        }


def one_after_another(pipe: Any, plans: dict[int, Any], load: Load) -> dict[str, Any]:
    """Direct calls of the pipeline in the order of arrival."""
    load.begin()
    for number, call in enumerate(load.calls):
        load.wait_for(number)
        with applied(pipe, plans[load.budgets[number]]):
            load.end(number, pipe(**call).images[0])
    return load.summary()


def whole_requests(pipe: Any, plans: dict[int, Any], load: Load) -> dict[str, Any]:
    """Batches of requests that wait and have the budget of the one that waits longest."""
    load.begin()
    waiting, batches = list(range(len(load.calls))), 0
    while waiting:
        load.wait_for(waiting[0])
        budget, now = load.budgets[waiting[0]], load.now
        here = [n for n in waiting if load.arrivals[n] <= now and load.budgets[n] == budget]
        chosen = here[:WHOLE]
        with applied(pipe, plans[budget]):
            images = pipe(**together([load.calls[n] for n in chosen])).images
        for number, image in zip(chosen, images, strict=True):
            load.end(number, image)
        waiting = [n for n in waiting if n not in chosen]
        batches += 1
    return load.summary() | {"batches": batches}


def together(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One call for several requests."""
    first = dict(several[0])
    for name, value in first.items():
        if isinstance(value, Tensor):
            first[name] = torch.cat([call[name] for call in several])
    return first | {"generator": [call["generator"] for call in several]}


def batched(batcher: Batcher, plans: dict[int, Any], load: Load) -> dict[str, Any]:
    """Requests handed to the batcher as they arrive."""
    load.begin()
    numbers: dict[Any, int] = {}
    before = batcher.batches
    with estimating(batcher, load) as samples:
        for number, call in enumerate(load.calls):
            load.wait_for(number)
            request = batcher.submit(plan=plans[load.budgets[number]], **call)
            numbers[request] = number
            request.when_done(lambda done, n=number: load.end(n, done.result().images[0]))
        for request in list(numbers):
            request.result()
    while len(load.ends) < len(numbers):  # the last one's callback
        time.sleep(0.001)
    size = size_of(load.calls[0])
    batches, rows = (
        after - earlier for after, earlier in zip(batcher.batches, before, strict=True)
    )
    return load.summary() | {
        "batches": batches,
        "rows_per_batch": rows / batches,
        "batch_seconds": {str(r): spent for r, spent in batcher.costs.measured(size).items()},
        "decode_seconds": batcher.costs.decoding(size, 1),
        "finish_error": errors(samples, numbers, load),
    }


@contextmanager
def estimating(batcher: Batcher, load: Load) -> Iterator[list[tuple[float, dict[Any, float]]]]:
    """Samples of the batcher's finish estimates, taken while the block runs."""
    samples: list[tuple[float, dict[Any, float]]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            now, estimates = load.now, batcher.finish_estimates()
            if estimates:
                samples.append((now, estimates))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def errors(
    samples: Sequence[tuple[float, dict[Any, float]]], numbers: dict[Any, int], load: Load
) -> dict[str, float | None]:
    """The median error of estimates relative to what was left: of all, and after the last came."""
    by_time: dict[str, list[float]] = {"all": [], "after_last_arrival": []}
    for when, estimates in samples:
        for request, seconds in estimates.items():
            left = load.ends[numbers[request]] - when
            if left <= EVERY:
                continue
            error = abs(seconds - left) / left
            by_time["all"].append(error)
            if when > load.arrivals[-1]:
                by_time["after_last_arrival"].append(error)
    return {name: statistics.median(values) if values else None for name, values in by_time.items()}
