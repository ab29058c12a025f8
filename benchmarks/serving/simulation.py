"""Many GPUs that serve requests, by simulation: one event after the other, in pure Python.

A GPU makes batch after batch. Its time is the measured one of a call of the denoiser with so many
rows; decoding is added to the batch in which a request ends. Requests join and leave at each batch,
or, with whole-request batching, when a batch is done. A new request goes to the GPU with the least
work queued. Who came first goes first, and batches have no more rows than pay, as in the batcher.
Nothing fails, no network has a delay, and all requests have the same size.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tacache.serving.costs import BatchTimes, paying_rows


@dataclass(frozen=True)
class Machine:
    """One GPU with one model on it, as measured."""

    name: str
    times: BatchTimes
    passes: int  # calls of the denoiser an evaluation
    decode: float  # seconds a request
    gap: float = 0.0  # seconds between two batches, which no call of the denoiser explains

    def batch(self, rows: int) -> float:
        """Seconds of a batch."""
        if rows not in self._batches:
            self._batches[rows] = self.times.of(rows) + self.gap
        return self._batches[rows]

    @cached_property
    def _batches(self) -> dict[int, float]:
        return {}

    def paying(self, most: int) -> int:
        """The rows of a batch beyond which more do not pay."""
        known = self.times.seconds
        batches = {rows: self.batch(rows) for rows in (*known, most) if rows <= most}
        return paying_rows(batches)

    def alone(self, evaluations: int) -> float:
        """Seconds of a request that has the GPU for itself."""
        return self.passes * evaluations * self.batch(1) + self.decode


@dataclass(frozen=True)
class Policy:
    """How requests share a GPU; several budgets are chosen from by load, the largest in time."""

    name: str
    budgets: tuple[int, ...]
    is_whole: bool = False
    max_rows: int = 16
    max_active: int = 32
    headroom: float = 0.5  # of a deadline, for requests that come later and share the batches
    takes_turns: bool = False  # batches have as many rows as fit, and who waits longest goes first


@dataclass(eq=False)
class Request:
    """One request on its way."""

    arrived: float
    budget: int
    left: int  # calls of the denoiser
    ended: float = np.inf


@dataclass
class Gpu:
    """What a GPU works on: the active share its batches, the others wait."""

    machine: Machine
    policy: Policy
    active: deque[Request] = field(default_factory=deque)
    waiting: deque[Request] = field(default_factory=deque)
    batch: list[Request] = field(default_factory=list)
    queued: int = 0  # calls of the denoiser
    rows: int = 0  # in all batches
    batches: int = 0

    @cached_property
    def most(self) -> int:
        """The rows that a batch has at the most."""
        policy = self.policy
        as_many = policy.is_whole or policy.takes_turns
        return policy.max_rows if as_many else self.machine.paying(policy.max_rows)

    def choose(self, seconds: float) -> int:
        """The largest budget that is expected to be done in time; else the smallest there is."""
        policy = self.policy
        seconds *= 1 - policy.headroom
        for budget in sorted(policy.budgets, reverse=True):
            if self.expected(budget) <= seconds * (1 + 1e-9):
                return budget
        return min(policy.budgets)

    def expected(self, budget: int) -> float:
        """When a request that comes now would be done, if no other one comes."""
        machine, calls = self.machine, self.machine.passes * budget
        here = 1 + len(self.active) + len(self.waiting) + len(self.batch)
        shared = calls * machine.batch(min(here, self.most))
        if here <= self.most:
            return shared + machine.decode
        if self.policy.takes_turns:
            return shared * here / self.most + machine.decode
        return (self.queued + calls) / self.most * machine.batch(self.most) + machine.decode

    def start(self) -> float | None:
        """Begin a batch, if anybody waits for one; its seconds."""
        policy = self.policy
        room = policy.max_rows if policy.is_whole else policy.max_active
        if not (policy.is_whole and self.active):
            while self.waiting and len(self.active) < room:
                self.active.append(self.waiting.popleft())
        if not self.active:
            return None
        self.batch = [self.active.popleft() for _ in range(min(len(self.active), self.most))]
        self.batches, self.rows = self.batches + 1, self.rows + len(self.batch)
        ending = sum(request.left == 1 for request in self.batch)
        return self.machine.batch(len(self.batch)) + ending * self.machine.decode

    def finish(self, now: float) -> None:
        """End the batch: who is done leaves, the others go on, before those who came later."""
        for request in self.batch:
            request.left -= 1
            self.queued -= 1
            if not request.left:
                request.ended = now
        going = [request for request in self.batch if request.left]
        if self.policy.takes_turns:
            self.active.extend(going)
        else:
            self.active.extendleft(reversed(going))
        self.batch = []


def simulate(
    machine: Machine,
    policy: Policy,
    arrivals: Sequence[float],
    gpus: int = 1,
    deadline: float = np.inf,
    budgets: Sequence[int] | None = None,
) -> tuple[list[Request], list[Gpu]]:
    """Serve requests that arrive at these times; `budgets` are their own, where they are given."""
    served = [Gpu(machine, policy) for _ in range(gpus)]
    queued = np.zeros(gpus)
    requests: list[Request] = []
    events: list[tuple[float, int]] = []  # the ends of batches
    is_busy = [False] * gpus

    def begin(number: int, now: float) -> None:
        seconds = served[number].start()
        is_busy[number] = seconds is not None
        if seconds is not None:
            heapq.heappush(events, (now + seconds, number))

    def end_batches(until: float) -> None:
        while events and events[0][0] <= until:
            now, number = heapq.heappop(events)
            served[number].finish(now)
            queued[number] = served[number].queued
            begin(number, now)

    for n, arrived in enumerate(arrivals):
        end_batches(arrived)
        number = int(queued.argmin())
        gpu = served[number]
        budget = gpu.choose(deadline) if budgets is None else budgets[n]
        request = Request(arrived, budget, machine.passes * budget)
        requests.append(request)
        gpu.waiting.append(request)
        gpu.queued += request.left
        queued[number] = gpu.queued
        if not is_busy[number]:
            begin(number, arrived)
    end_batches(np.inf)
    return requests, served


def summary(
    requests: Sequence[Request], served: Sequence[Gpu], deadline: float
) -> dict[str, float]:
    """Throughput of all GPUs, latencies, missed deadlines, and the budgets that were served."""
    late = np.array([request.ended - request.arrived for request in requests])
    ends = np.array([request.ended for request in requests])
    return {
        "requests_per_second": len(requests) / (ends.max() - requests[0].arrived),
        "p50_seconds": float(np.quantile(late, 0.5)),
        "p99_seconds": float(np.quantile(late, 0.99)),
        "missed": float((late > deadline).mean()),
        "mean_budget": float(np.mean([request.budget for request in requests])),
        "rows_per_batch": sum(gpu.rows for gpu in served) / sum(gpu.batches for gpu in served),
    }
