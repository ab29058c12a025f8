"""What tuning a method for a budget came to, in one file: its tries, and at last its settings.

A tuning that was killed goes on after the last try in the file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacache.storage.files import Frozen
from tacache.storage.journal import Journal
from tacache_lab.bench.records import RecordError, Status, plain


class Prepared(Frozen):
    """A method made ready for a budget, or why it could not be."""

    status: Status
    reason: str | None = None
    kind: str | None = None  # the class of its settings
    settings: dict[str, Any] | None = None
    seconds: float
    evaluations: int | None = None  # of the model, beyond the full runs it was made ready on


class TuningJournal:
    """Tries by their names, made once, also after a kill; and the settings that were found.

    `count` says how often the model was evaluated so far. What one try evaluates is kept with it.
    The file's own name says what it belongs to. Without a file nothing is kept.
    """

    def __init__(self, path: Path | None = None, count: Callable[[], int] = lambda: 0) -> None:
        mark = {"job": "" if path is None else path.stem}
        self._journal = Journal(path, mark, "tries", "tuning", RecordError)
        self._known: dict[str, tuple[float, ...]] = {}
        self._count, self._counted = count, count()
        self.evaluations = 0  # of what was known before
        self.prepared: Prepared | None = None
        for _ in self._journal.read(self._take):
            pass

    def __call__(self, name: str, make: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """Return the numbers of a try, which is made unless they are known."""
        if name not in self._known:
            numbers, before = tuple(make()), self._counted
            self._known[name], self._counted = numbers, self._count()
            spent = self._counted - before
            self._journal.append({"try": name, "numbers": numbers, "evaluations": spent})
        return self._known[name]

    def finish(self, prepared: Prepared) -> None:
        """Keep what the tuning came to."""
        self.prepared = prepared
        self._journal.append({"prepared": plain(prepared)})

    def retry(self) -> None:
        """Forget what the tuning came to, but not its tries: it goes on from there."""
        self.prepared = None
        self._journal.append({"prepared": None})

    def _take(self, entry: dict[str, Any]) -> None:
        if "prepared" in entry:
            fields = entry["prepared"]
            self.prepared = None if fields is None else Prepared.model_validate(fields)
            return
        self._known[str(entry["try"])] = tuple(map(float, entry["numbers"]))
        self.evaluations += int(entry["evaluations"])
