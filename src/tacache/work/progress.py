"""Progress bars for long work; rich is imported only when one is shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


def track(
    items: Sequence[Item], description: str, show: bool, *, at_most: bool = False
) -> Iterable[Item]:
    """Yield `items`, with a progress bar on standard error while they are worked through.

    `at_most` says that the work may end before the last of them.
    """
    if not show or not items:
        return items
    return _shown(items, description, at_most)


def _shown(items: Sequence[Item], description: str, at_most: bool) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=len(items))
        try:
            for done, item in enumerate(items, 1):
                yield item
                bar.update(task, completed=done)
        except GeneratorExit:
            if at_most:  # no more are needed: what there was is done
                bar.update(task, total=1, completed=1)
            raise


@contextmanager
def counting(most: int, description: str, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for work of at most so many units; call what it gives with units done."""
    if not show:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=most)
        yield lambda done: bar.advance(task, done)
        bar.update(task, total=1, completed=1)  # it may have taken fewer
