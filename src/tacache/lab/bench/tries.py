"""What single tries of a tuning came to, in a file: a killed one goes on where it stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacache.lab.bench.records import RecordError
from tacache.storage.journal import Journal


class KnownTries:
    """Results of tries by their names; those of an earlier run are not made again.

    `count` says how often the model was evaluated so far. What one try evaluates is kept with it.
    The file's own name says what the tries belong to.
    """

    def __init__(self, path: Path | None = None, count: Callable[[], int] = lambda: 0) -> None:
        mark = {"job": "" if path is None else path.stem}
        self._journal = Journal(path, mark, "tries", "tuning", RecordError)
        self._known: dict[str, tuple[float, ...]] = {}
        self._count, self._counted = count, count()
        self.evaluations = 0  # of what was known before
        for name, found, spent in self._journal.read(_as_try):
            self._known[name] = found
            self.evaluations += spent

    def __call__(self, name: str, make: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """The numbers of a try, which is made unless they are known."""
        if name not in self._known:
            found, before = tuple(make()), self._counted
            self._known[name], self._counted = found, self._count()
            spent = self._counted - before
            self._journal.append({"try": name, "found": found, "evaluations": spent})
        return self._known[name]

    def forget(self) -> None:
        """Delete the file: the tuning is over."""
        if self._journal.path is not None:
            self._journal.path.unlink(missing_ok=True)


def _as_try(entry: dict[str, Any]) -> tuple[str, tuple[float, ...], int]:
    """The name of a kept try, what it found, and what it evaluated."""
    return str(entry["try"]), tuple(map(float, entry["found"])), int(entry["evaluations"])
