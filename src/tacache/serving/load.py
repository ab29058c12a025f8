"""What a request still costs, in evaluations and in seconds: exact, since plans are known."""

from collections.abc import Callable, Sequence

FORGETTING = 0.2  # the share of a new measurement in the time of a wave


class WaveTimes:
    """The seconds that waves take, by their rows, as they were measured last."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def add(self, rows: int, seconds: float) -> None:
        """Take a wave's time into account."""
        before = self._seconds.get(rows, seconds)
        self._seconds[rows] = before + FORGETTING * (seconds - before)

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def of(self, rows: int) -> float:
        """The time of a wave with so many rows: measured, or in proportion between neighbours.

        Beyond the largest wave that was measured, time grows with the rows.
        """
        known = sorted(self._seconds)
        if not known:
            raise ValueError("no wave was measured yet")
        below = [r for r in known if r <= rows]
        above = [r for r in known if r >= rows]
        if not above:
            return self._seconds[known[-1]] * rows / known[-1]
        if not below:
            return self._seconds[known[0]]
        low, high = below[-1], above[0]
        if low == high:
            return self._seconds[low]
        share = (rows - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])


def finish_times(
    remaining: Sequence[int], rows: Sequence[int], wave: Callable[[int], float], most: int
) -> list[float]:
    """When each request finishes, in seconds from now, if no other comes.

    `remaining` has the evaluations each still needs, in the order in which they wait; `rows` those
    each takes in a wave. A wave takes the requests that have waited longest, up to `most` rows.
    """
    left, now = list(remaining), 0.0
    ends = [0.0] * len(left)
    order = [i for i, n in enumerate(left) if n > 0]
    while order:
        chosen, total = list[int](), 0
        for i in order:
            if chosen and total + rows[i] > most:
                continue
            chosen.append(i)
            total += rows[i]
        now += wave(total)
        for i in chosen:
            left[i] -= 1
            if not left[i]:
                ends[i] = now
        taken = set(chosen)
        waited = [i for i in order if i not in taken]
        order = waited + [i for i in chosen if left[i]]
    return ends
