"""What was measured of requests while they ran, by the size of what they make.

A limit that one bad moment sets belongs to a size or a kind of call, and is tried again.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

MAX_MEASUREMENTS = 9  # measurements that count
MIN_MEASUREMENTS = 3  # measurements of a number of rows before they decide anything
MAX_ROW_TIME = 1.1  # of a batch whose rows are enough, over that of a row of the best batch
BATCHES_UNTIL_RETRY = 100  # as large as memory allowed, before larger ones are tried again
CALLS_UNTIL_RETRY = 50  # made singly, before calls of their kind are joined again
MAX_RETRY_FACTOR = 64  # by which these numbers grow at most: they double with every failure
SIZES = ("height", "width", "num_frames")  # of a call, as pipelines name them
Size = tuple[Any, ...]


class Recent:
    """What was measured last of one thing: a single slow one changes nothing."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=MAX_MEASUREMENTS)
        self.seconds = 0.0  # the median of the latest measurements

    def add(self, seconds: float) -> None:
        """Take a measurement into account."""
        self._latest.append(seconds)
        self.seconds = median(self._latest)

    def __len__(self) -> int:
        return len(self._latest)


class BatchTimes:
    """The seconds that batches take, by their rows, as they were measured last."""

    def __init__(self) -> None:
        self._known: dict[int, Recent] = {}
        self.seconds: dict[int, float] = {}  # what was measured, fewest rows first
        self._at_most: dict[int, float] = {}  # the same, where a larger batch took less: its time

    def add(self, rows: int, seconds: float) -> None:
        """Take a batch's time into account."""
        self._known.setdefault(rows, Recent()).add(seconds)
        self.seconds = {r: self._known[r].seconds for r in sorted(self._known)}
        latest = list(accumulate(reversed(self.seconds.values()), min))
        self._at_most = dict(zip(self.seconds, reversed(latest), strict=True))

    def __bool__(self) -> bool:
        return bool(self._known)

    def paying(self, most: int) -> int:
        """Return `paying_rows` of what was measured; `most` until one row and others often were."""
        often = {
            rows: recent.seconds
            for rows, recent in self._known.items()
            if len(recent) >= MIN_MEASUREMENTS and rows <= most
        }
        return paying_rows(often) if len(often) > 1 and 1 in often else most

    def of(self, rows: int) -> float:
        """Return the time of a batch with so many rows: measured, or in proportion to neighbours.

        Beyond the largest batch that was measured, time grows with the rows. A batch takes no
        longer than a larger one did: where it once did, something else took the time.
        """
        known = self._at_most
        if not known:
            raise ValueError("no batch was measured yet")
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
    """Return the fewest rows of a batch with which a row takes hardly longer than with any others.

    More would only make each other wait. `seconds` has the times of batches by their rows.
    """
    each = {rows: seconds[rows] / rows for rows in sorted(seconds)}
    return next(
        rows for rows, row_time in each.items() if row_time <= MAX_ROW_TIME * min(each.values())
    )


class Shape(NamedTuple):
    """How a request evaluates the model: calls of the denoiser an evaluation, rows of each call."""

    calls: int = 1
    rows: int = 1


def size_of(call: dict[str, Any]) -> Size:
    """Return the size that a call asks for; None stands for the pipeline's own."""
    return tuple(call.get(name) for name in SIZES)


class Costs:
    """Seconds of batches, of decoding, and of what a request does before and after, by size.

    What is known of one size stands for another in proportion to their pixels, until that one is
    measured itself.
    """

    def __init__(self) -> None:
        self.limits = RowLimits()
        self._lock = threading.Lock()  # one thread makes batches, and others ask
        self._batches: dict[Hashable, BatchTimes] = {}
        self._decoding: dict[Hashable, BatchTimes] = {}
        self._before: dict[Hashable, Recent] = {}
        self._rest: dict[Hashable, Recent] = {}
        self._shapes: dict[Hashable, Shape] = {}

    def __bool__(self) -> bool:
        with self._lock:
            return bool(self._batches)

    def add_batch(self, size: Hashable, rows: int, seconds: float) -> None:
        """Note how long a call of the denoiser took."""
        with self._lock:
            self._batches.setdefault(size, BatchTimes()).add(rows, seconds)

    def add_decoding(self, size: Hashable, rows: int, seconds: float) -> None:
        """Note how long a call of the decoder took."""
        with self._lock:
            self._decoding.setdefault(size, BatchTimes()).add(rows, seconds)

    def add_request(self, size: Hashable, before: float, rest: float, shape: Shape) -> None:
        """Note what a request took before its first evaluation and after its picture was made."""
        with self._lock:
            self._before.setdefault(size, Recent()).add(before)
            self._rest.setdefault(size, Recent()).add(rest)
            self._shapes.pop(size, None)  # the latest is the last
            self._shapes[size] = shape

    def batch(self, size: Hashable, rows: int) -> float:
        """Return seconds of a call of the denoiser."""
        with self._lock:
            if not self._batches:
                raise ValueError("no batch was measured yet")
            known, scale = _nearest(self._batches, size)
            return known.of(rows) * scale

    def paying(self, size: Hashable, most: int) -> int:
        """Return the rows of a batch of this size that fit and pay; `most` at the most."""
        most = self.limits.rows(size, most)
        with self._lock:
            return self._batches[size].paying(most) if size in self._batches else most

    def measured(self, size: Hashable) -> dict[int, float]:
        """Return the seconds of calls of the denoiser by their rows, as far as measured."""
        with self._lock:
            return self._batches[size].seconds if size in self._batches else {}

    def decoding(self, size: Hashable, rows: int) -> float:
        """Return seconds of a call of the decoder; none where none was measured."""
        with self._lock:
            if not self._decoding:
                return 0.0
            known, scale = _nearest(self._decoding, size)
            return known.of(rows) * scale

    def before(self, size: Hashable) -> float:
        """Return the seconds from a request's start to its first evaluation, to encode prompts."""
        with self._lock:
            return _value(self._before, size)

    def rest(self, size: Hashable) -> float:
        """Return seconds from a request's last evaluation or decoding to its end."""
        with self._lock:
            return _value(self._rest, size)

    def shape(self, size: Hashable) -> Shape:
        """Return how requests of this size evaluate the model, by the last one that was made."""
        with self._lock:
            latest = next(reversed(self._shapes.values()), Shape())
            return self._shapes.get(size, latest)


def _value(known: dict[Hashable, Recent], size: Hashable) -> float:
    """Return what was measured of this size, else the most of any."""
    if size in known:
        return known[size].seconds
    return max((recent.seconds for recent in known.values()), default=0.0)


def _nearest(known: dict[Hashable, BatchTimes], size: Hashable) -> tuple[BatchTimes, float]:
    """Return the times of this size, or of the one nearest in pixels, and how to scale them."""
    if size in known:
        return known[size], 1.0
    scales = {other: _ratio(size, other) for other in known}
    nearest = min(scales, key=lambda other: abs(math.log(scales[other])))
    return known[nearest], scales[nearest]


def _ratio(size: Any, other: Any) -> float:
    """Return the pixels of one size over those of another; 1 where either is the pipeline's own."""
    pairs = [(a, b) for a, b in zip(size or (), other or (), strict=False) if a and b]
    return float(math.prod(a / b for a, b in pairs))


class RowLimits:
    """The rows that fit into memory, by the size of what is made, as far as memory ever ended."""

    def __init__(self) -> None:
        self._limits: dict[Hashable, int] = {}
        self._batches: Counter[Hashable] = Counter()  # that were as large as their limit
        self._failures: Counter[Hashable] = Counter()

    def rows(self, size: Hashable, max_rows: int) -> int:
        """Return how many rows a batch of this size may have, `max_rows` at the most."""
        return min(max_rows, self._limits.get(size, max_rows))

    def memory_ended(self, size: Hashable, rows: int) -> None:
        """Note that a batch with so many rows did not fit: the next ones have half as many."""
        self._limits[size] = max(1, rows // 2)
        self._batches[size] = 0
        self._failures[size] += 1

    def went_well(self, size: Hashable, rows: int) -> None:
        """Note that a batch with so many rows did fit; after many, twice as many are tried."""
        limit = self._limits.get(size)
        if limit is None or rows < limit:
            return
        self._batches[size] += 1
        if self._batches[size] >= BATCHES_UNTIL_RETRY * _factor(self._failures[size]):
            self._limits[size] = 2 * limit
            self._batches[size] = 0


class SingleKinds:
    """Kinds of calls that are not joined for now, since joining some of them went wrong."""

    def __init__(self) -> None:
        self._left: dict[Hashable, int] = {}  # single calls until joining is tried again
        self._failures: Counter[Hashable] = Counter()

    def __contains__(self, kind: Hashable) -> bool:
        return kind in self._left

    def joining_failed(self, kind: Hashable) -> None:
        """Note that joined calls of this kind failed, or gave something else than single ones."""
        self._failures[kind] += 1
        self._left[kind] = CALLS_UNTIL_RETRY * _factor(self._failures[kind])

    def made_singly(self, kind: Hashable) -> None:
        """Note a single call of this kind; after many, they are joined again."""
        if kind in self._left:
            self._left[kind] -= 1
            if self._left[kind] <= 0:
                del self._left[kind]


def _factor(failures: int) -> int:
    """Return 1, 2, 4 and so on: what failed often is tried less often."""
    return int(min(MAX_RETRY_FACTOR, 2 ** max(0, failures - 1)))
