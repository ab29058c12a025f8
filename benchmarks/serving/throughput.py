"""tiny-flux under load: the batcher, one request after another, and whole-request batches of eight.

    python -m benchmarks.serving.throughput encode -o prompts.pt
    python -m benchmarks.serving.throughput run prompts.pt --device cuda -o throughput.jsonl

64 requests of budgets 7, 10 and 13 in turn arrive by Poisson, six times as often as one request
after another could be served. All three serve the same requests. Every way is tried once before.
Latency is from a request's arrival to its picture. Errors of finish estimates are relative to the
time that was really left, a sample of all requests every 20 ms; those after the last arrival apart,
since an estimate knows nothing of requests to come.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.fullsize.records import device_name, versions
from benchmarks.serving.arrivals import poisson
from benchmarks.serving.pipelines import calls, encode, tiny_flux, tiny_flux_plans
from tacache.diffusers import applied
from tacache.serving import Batcher

BUDGETS = (7, 10, 13)
TIMES = 6.0  # as often as one after another could be served
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
            first[name] = torch.cat([one[name] for one in several])
    return first | {"generator": [one["generator"] for one in several]}


def batched(batcher: Batcher, plans: dict[int, Any], load: Load) -> dict[str, Any]:
    """Requests handed to the batcher as they arrive."""
    load.begin()
    numbers: dict[Any, int] = {}
    before = batcher.waves
    with estimating(batcher, load) as samples:
        for number, call in enumerate(load.calls):
            load.wait_for(number)
            request = batcher.submit(plan=plans[load.budgets[number]], **call)
            numbers[request] = number
            request.when_done(lambda done: load.end(numbers_of(numbers, done), image_of(done)))
        for request in list(numbers):
            request.result()
    while len(load.ends) < len(numbers):  # the last one's callback
        time.sleep(0.001)
    waves, rows = (after - earlier for after, earlier in zip(batcher.waves, before, strict=True))
    return load.summary() | {
        "waves": waves,
        "rows_per_wave": rows / waves,
        "finish_error": errors(samples, numbers, load),
    }


def numbers_of(numbers: dict[Any, int], request: Any) -> int:
    """The number of a request, which may be done before it was noted."""
    while request not in numbers:
        time.sleep(0.0005)
    return numbers[request]


def image_of(request: Any) -> Tensor:
    """The picture of a request that is done."""
    image: Tensor = request.result().images[0]
    return image


@contextmanager
def estimating(batcher: Batcher, load: Load) -> Iterator[list[tuple[float, dict[Any, float]]]]:
    """Samples of the batcher's finish estimates, taken while the block runs."""
    samples: list[tuple[float, dict[Any, float]]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            now, found = load.now, batcher.finish_estimates()
            if found:
                samples.append((now, found))

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
    found: dict[str, list[float]] = {"all": [], "after_last_arrival": []}
    for when, estimates in samples:
        for request, seconds in estimates.items():
            left = load.ends[numbers[request]] - when
            if left <= EVERY:
                continue
            error = abs(seconds - left) / left
            found["all"].append(error)
            if when > load.arrivals[-1]:
                found["after_last_arrival"].append(error)
    return {name: statistics.median(one) if one else None for name, one in found.items()}


def service_seconds(pipe: Any, plans: dict[int, Any], call: dict[str, Any]) -> float:
    """The mean time of a direct call over the budgets, warm."""
    taken = []
    for plan in (*plans.values(), *plans.values()):
        start = time.perf_counter()
        with applied(pipe, plan):
            pipe(**call).images.float().cpu()
        taken.append(time.perf_counter() - start)
    return statistics.mean(taken[len(plans) :])


def run(options: Any) -> dict[str, Any]:
    """Serve the load three ways; one record."""
    pipe, plans = tiny_flux(options.device), tiny_flux_plans(BUDGETS)
    embeddings = torch.load(options.inputs, weights_only=True)
    given = calls(embeddings, options.requests, options.device)
    alone = service_seconds(pipe, plans, given[0])
    times = poisson(options.requests, TIMES / alone, seed=0)
    budgets = [BUDGETS[n % len(BUDGETS)] for n in range(options.requests)]
    load = Load(given, budgets, times.tolist())
    at_once = Load(given[: options.warm], budgets[: options.warm], [0.0] * options.warm)
    found: dict[str, Any] = {}
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "one_after_another": one_after_another,
        "whole_requests": whole_requests,
    }
    for name, serve in ways.items():
        serve(pipe, plans, at_once)
        found[name] = serve(pipe, plans, load)
        if name == "one_after_another":
            direct = dict(load.pictures)
    with Batcher(pipe, max_rows=options.max_rows, max_active=options.max_active) as batcher:
        batched(batcher, plans, at_once)
        found["batcher"] = batched(batcher, plans, load)
    apart = max(float((load.pictures[n] - one).abs().max()) for n, one in direct.items())
    rate = {name: one["requests_per_second"] for name, one in found.items()}
    return {
        "what": "throughput",
        "device": device_name(torch.device(options.device)),
        "requests": options.requests,
        "budgets": list(BUDGETS),
        "seconds_alone": alone,
        "arrivals_per_second": TIMES / alone,
        "max_rows": options.max_rows,
        "max_active": options.max_active,
        **found,
        "gain_over_one_after_another": rate["batcher"] / rate["one_after_another"],
        "gain_over_whole_requests": rate["batcher"] / rate["whole_requests"],
        "largest_difference_of_pictures": apart,
        "versions": versions(),
        "note": options.note,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Encode prompts, or serve them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one, two = commands.add_parser("encode"), commands.add_parser("run")
    two.add_argument("inputs", type=Path)
    two.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    two.add_argument("--requests", type=int, default=64)
    two.add_argument("--warm", type=int, default=24, help="requests that do not count, at once")
    two.add_argument("--max-rows", type=int, default=32)
    two.add_argument("--max-active", type=int, default=64)
    two.add_argument("--note", default="")
    for command in (one, two):
        command.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "encode":
        encode(options.out)
        return
    words = list(sys.argv[1:] if arguments is None else arguments)
    record = run(options) | {
        "command": "python -m benchmarks.serving.throughput " + " ".join(words)
    }
    print(json.dumps(record, indent=1))
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
