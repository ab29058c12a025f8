"""What requests still cost, in evaluations and in seconds: exact, since plans are known."""

import heapq
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

LATEST = 9  # measurements that count
ENOUGH = 3  # measurements of a number of rows before they decide anything
PAYS = 1.1  # a wave's time a row, over that of the best wave, up to which its rows are enough


class Recent:
    """What was measured last of one thing: a single slow one changes nothing."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=LATEST)
        self.seconds = 0.0  # the median of the latest measurements

    def add(self, seconds: float) -> None:
        """Take a measurement into account."""
        self._latest.append(seconds)
        self.seconds = median(self._latest)

    def __len__(self) -> int:
        return len(self._latest)


class WaveTimes:
    """The seconds that waves take, by their rows, as they were measured last."""

    def __init__(self) -> None:
        self._known: dict[int, Recent] = {}
        self.seconds: dict[int, float] = {}  # what was measured, fewest rows first

    def add(self, rows: int, seconds: float) -> None:
        """Take a wave's time into account."""
        self._known.setdefault(rows, Recent()).add(seconds)
        self.seconds = {r: self._known[r].seconds for r in sorted(self._known)}

    def __bool__(self) -> bool:
        return bool(self._known)

    def paying(self, most: int) -> int:
        """`paying_rows` of what was measured; `most` until one row and others often were."""
        often = {
            rows: one.seconds
            for rows, one in self._known.items()
            if len(one) >= ENOUGH and rows <= most
        }
        return paying_rows(often) if len(often) > 1 and 1 in often else most

    def of(self, rows: int) -> float:
        """The time of a wave with so many rows: measured, or in proportion between neighbours.

        Beyond the largest wave that was measured, time grows with the rows.
        """
        known = self.seconds
        if not known:
            raise ValueError("no wave was measured yet")
        below = [r for r in known if r <= rows]
        above = [r for r in known if r >= rows]
        if not above:
            return known[below[-1]] * rows / below[-1]
        if not below:
            return known[above[0]]
        low, high = below[-1], above[0]
        if low == high:
            return known[low]
        share = (rows - low) / (high - low)
        return known[low] + share * (known[high] - known[low])


def paying_rows(seconds: Mapping[int, float]) -> int:
    """The fewest rows of a wave with which a row takes hardly longer than with any others.

    More would only make each other wait. `seconds` has the times of waves by their rows.
    """
    each = {rows: seconds[rows] / rows for rows in sorted(seconds)}
    return next(rows for rows, one in each.items() if one <= PAYS * min(each.values()))


@dataclass(frozen=True)
class Job:
    """What is left of a request: calls of the denoiser, the rows of each, and its size.

    Only jobs of one size share waves. `ready` is in how many seconds it can make its first call,
    from now, or from when it may begin where it is not `begun`.
    """

    left: int
    rows: int = 1
    size: Hashable = None
    ready: float = 0.0
    begun: bool = True


class Seconds(Protocol):
    """How long things take, by the size of what is made."""

    def wave(self, size: Hashable, rows: int) -> float:
        """One call of the denoiser."""
        ...

    def decoding(self, size: Hashable, rows: int) -> float:
        """One call of the decoder."""
        ...

    def rest(self, size: Hashable) -> float:
        """What a request does after its picture was decoded."""
        ...

    def paying(self, size: Hashable, most: int) -> int:
        """The rows of a wave beyond which more do not pay."""
        ...


def finish_times(
    jobs: Sequence[Job],
    seconds: Seconds,
    *,
    most: int,
    active: int | None = None,
    elapsed: float = 0.0,
) -> list[float]:
    """When each job is done, in seconds from now, if no other comes; jobs are in their order.

    Who came first goes first: a wave takes the first jobs of one size, up to `most` rows and as
    long as more pay. At most `active` jobs run at a time. Those that make their last call in a
    wave are decoded together before the next one. The first wave began `elapsed` seconds ago.
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
            chosen = _next_wave(order, jobs, seconds.paying(jobs[order[0]].size, most))
            rows = sum(jobs[i].rows for i in chosen)
            now = max(now + seconds.wave(jobs[chosen[0]].size, rows), 0.0)  # it may be late
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


def _next_wave(order: Sequence[int], jobs: Sequence[Job], most: int) -> list[int]:
    """Who is in the next wave: the one who came first, and others of its size."""
    chosen, total = list[int](), 0
    for i in order:
        if jobs[i].size != jobs[order[0]].size or (chosen and total + jobs[i].rows > most):
            continue
        chosen.append(i)
        total += jobs[i].rows
    return chosen
