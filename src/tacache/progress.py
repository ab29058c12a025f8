"""Progress bars for long work; rich is imported only when one is shown."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def track(items: Sequence[Item], description: str, show: bool) -> Iterable[Item]:
    """`items`, with a progress bar on standard error while they are worked through."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    return rich_track(items, description=description, console=Console(stderr=True))
