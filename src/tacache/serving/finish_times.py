"""What requests still cost, in evaluations and in seconds: exact, since plans are known."""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RemainingWork:
    """What is left of a request: calls of the denoiser, the rows of each, and its size.

    Only jobs of one size share batches. `ready` is in how many seconds it can make its first call,
    from now, or from when it may begin where it is not `begun`.
    """

    left: int
    rows: int = 1
    size: Hashable = None
    ready: float = 0.0
    begun: bool = True


class Seconds(Protocol):
    """How long things take, by the size of what is made."""

    def batch(self, size: Hashable, rows: int) -> float:
        """Return one call of the denoiser."""
        ...

    def decoding(self, size: Hashable, rows: int) -> float:
        """Return one call of the decoder."""
        ...

    def rest(self, size: Hashable) -> float:
        """Return what a request does after its picture was decoded."""
        ...

    def paying(self, size: Hashable, most: int) -> int:
        """Return the rows of a batch beyond which more do not pay."""
        ...


def finish_times(
    jobs: Sequence[RemainingWork],
    seconds: Seconds,
    *,
    most: int,
    active: int | None = None,
    elapsed: float = 0.0,
) -> list[float]:
    """Return when each job is done, in seconds from now and in their order, if no other comes.

    Who came first goes first: a batch takes the first jobs of one size, up to `most` rows and as
    long as more pay. At most `active` jobs run at a time. Those that make their last call in a
    batch are decoded together before the next one. The first batch began `elapsed` seconds ago.
    """
    left = [job.left for job in jobs]
    ends = [0.0] * len(jobs)
    limit = len(jobs) if active is None else active
    coming = [i for i, job in enumerate(jobs) if not job.begun][::-1]
    preparing = [(job.ready, i) for i, job in enumerate(jobs) if job.begun]  # a heap: who is when
    heapq.heapify(preparing)
    order, now = list[int](), -elapsed

    def begin(room: int) -> None:
        for _ in range(min(room, len(coming))):
            heapq.heappush(preparing, (max(now, 0.0) + jobs[coming[-1]].ready, coming.pop()))

    begin(limit - len(preparing))
    while order or preparing:
        if not order and preparing[0][0] > 0:
            now = max(now, preparing[0][0])
        while preparing and preparing[0][0] <= max(now, 0.0):
            order.append(heapq.heappop(preparing)[1])
        ending = [i for i in order if left[i] <= 0]  # nothing is left but decoding
        if not ending:
            order.sort()
            chosen = _next_batch(order, jobs, seconds.paying(jobs[order[0]].size, most))
            rows = sum(jobs[i].rows for i in chosen)
            now = max(now + seconds.batch(jobs[chosen[0]].size, rows), 0.0)  # it may be late
            for i in chosen:
                left[i] -= 1
            ending = [i for i in chosen if left[i] <= 0]
        order = [i for i in order if left[i] > 0]
        for size in dict.fromkeys(jobs[i].size for i in ending):
            own = [i for i in ending if jobs[i].size == size]
            now = max(now + seconds.decoding(size, len(own)), 0.0)
            for i in own:
                ends[i] = now + seconds.rest(size)
        begin(len(ending))
    return ends


def _next_batch(order: Sequence[int], jobs: Sequence[RemainingWork], most: int) -> list[int]:
    """Return who is in the next batch: the one who came first, and others of its size."""
    chosen, total = list[int](), 0
    for i in order:
        if jobs[i].size != jobs[order[0]].size or (chosen and total + jobs[i].rows > most):
            continue
        chosen.append(i)
        total += jobs[i].rows
    return chosen
