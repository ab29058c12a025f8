"""A progress bar for work whose items take minutes: it moves with every model evaluation."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tacache.errors import printable

WIDTH = 40  # of an item's name


class Bar:
    """Shows how many items are done, which one is being worked on, and how far that one is.

    Without a progress display of rich it shows nothing.
    """

    def __init__(self, progress: Any = None, task: Any = None) -> None:
        self._progress, self._task = progress, task
        self._name, self._ticks = "", 0

    def begin(self, name: str) -> None:
        """Say that work on an item begins."""
        self._name, self._ticks = textwrap.shorten(printable(name), WIDTH, placeholder="..."), 0
        self._show(now=self._name)

    def tick(self) -> None:
        """Say that the model was evaluated once."""
        self._ticks += 1
        self._show(now=f"{self._name}: {self._ticks} evaluations")

    def advance(self) -> None:
        """Say that an item is done, by this process or another."""
        self._show(advance=1)

    def _show(self, **changes: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._task, **changes)


@contextmanager
def bar(what: str, total: int, show: bool) -> Iterator[Bar]:
    """Show a bar for so many items on standard error, or give one that shows nothing."""
    if not show or not total:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield Bar(progress, progress.add_task(what, total=total, now=""))
