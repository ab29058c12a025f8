"""Tables as values, and the two ways to write one: as Markdown and in the terminal.

The benchmark, the report, the tables of documents and the demo all fill a `Grid`; a page's template
reads its cells.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tacache.errors import printable

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

MARKDOWN = {1: "**{}**", 2: "<ins>{}</ins>"}  # how the best and the second best are written
TERMINAL = {1: "bold", 2: "underline"}


class Cell(NamedTuple):
    """What stands in a table.

    A text, what it is sorted by, its rank (1 the best), why it has no number, and a mark after it.
    """

    text: str
    value: float | None = None
    rank: int | None = None
    why: str | None = None
    after: str = ""


class Grid(NamedTuple):
    """Titles of columns, and lines of as many cells; the first column is what a line is of."""

    titles: Sequence[str]
    lines: Sequence[Sequence[Cell]]


def grid(titles: Sequence[str], lines: Iterable[Sequence[str | Cell]]) -> Grid:
    """Return a table of cells, some of them given as their texts."""
    return Grid(
        titles,
        [[part if isinstance(part, Cell) else Cell(part) for part in line] for line in lines],
    )


def markdown_table(table: Grid) -> str:
    """Return a table as Markdown, the first column to the left."""
    rule = ["---", *["---:"] * (len(table.titles) - 1)]
    lines = [[_marked(cell) for cell in line] for line in table.lines]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in (map(_escaped, table.titles), rule, *lines)
    )


def terminal_table(table: Grid, title: str | None = None) -> "TerminalTable":
    """Return a table for the terminal, as narrow as its words allow."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for n, heading in enumerate(table.titles):
        text = printable(heading).replace(" ", "\n")
        shown.add_column(text, justify="right" if n else "left", overflow="fold")
    for line in table.lines:
        shown.add_row(*(Text(printable(c.text), TERMINAL.get(c.rank or 0, "")) for c in line))
    return shown


def _marked(cell: Cell) -> str:
    return MARKDOWN.get(cell.rank or 0, "{}").format(_escaped(cell.text)) + cell.after


def _escaped(text: str) -> str:
    return printable(text).replace("|", "\\|")
