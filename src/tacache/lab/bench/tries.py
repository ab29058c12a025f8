"""What single tries of a tuning came to, in a file: a killed one goes on where it stopped."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tacache.storage.atomic import write_atomically


class Tries:
    """Results of tries by their names; those of an earlier run are not made again.

    `count` says how often the model was evaluated so far. What one try evaluates is kept with it.
    """

    def __init__(self, path: Path | None = None, count: Callable[[], int] = lambda: 0) -> None:
        self._path, self._count = path, count
        self._known: dict[str, tuple[float, ...]] = {}
        self.evaluations = 0  # of what was known before
        self._counted = count()
        self._load()

    def __call__(self, name: str, make: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """The numbers of a try, which is made unless they are known."""
        if name not in self._known:
            self._known[name] = tuple(make())
            self._keep(name)
        return self._known[name]

    def forget(self) -> None:
        """Delete the file: the tuning is over."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _keep(self, name: str) -> None:
        if self._path is None:
            return
        now = self._count()
        row = {"try": name, "found": self._known[name], "evaluations": now - self._counted}
        self._counted = now
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _load(self) -> None:
        """Read the file; lines that a kill has torn are taken out of it, to be made again."""
        if self._path is None or not self._path.exists():
            return
        *lines, last = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        whole = [line for line in lines if self._learn(line)]
        if last or len(whole) < len(lines):
            write_atomically(self._path, "".join(f"{line}\n" for line in whole))

    def _learn(self, line: str) -> bool:
        """Take over what a line says; whether it says anything."""
        try:
            row = json.loads(line)
            spent = int(row["evaluations"])
            self._known[row["try"]] = tuple(map(float, row["found"]))
        except (ValueError, KeyError, TypeError):
            return False
        self.evaluations += spent
        return True
