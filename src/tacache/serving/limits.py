"""Limits that one bad moment sets: each belongs to a size or a kind of call, and is tried again."""

from collections import Counter
from collections.abc import Hashable

BATCHES_UNTIL_RETRY = 100  # as large as memory allowed, before larger ones are tried again
CALLS_UNTIL_RETRY = 50  # made singly, before calls of their kind are joined again
MAX_RETRY_FACTOR = 64  # by which these numbers grow at most: they double with every failure


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
