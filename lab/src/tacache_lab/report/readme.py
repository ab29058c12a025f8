"""Tables inside other documents, between markers, so that they stay what was measured.

<!-- tacache report: main -->            the study `main`, PSNR to full steps
<!-- tacache report: main full.psnr full.lpips -->    these quantities, a table each
<!-- tacache report: main full.psnr top=8 -->         ours and the best 8 of the others
<!-- tacache report: main methods=fitted,fewer -->    these methods
<!-- end -->
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tacache.errors import TACacheError
from tacache_lab.renderer import Cell, grid, markdown_table
from tacache_lab.report.confidence import FIFTH, LOST, SHARE
from tacache_lab.report.quantities import Quantity, quantity
from tacache_lab.report.ranking import leading, standing
from tacache_lab.report.summary import Row, Study
from tacache_lab.report.tables import OVER, cell, heading, number

MARKED = re.compile(
    r"(?P<start><!-- tacache report: (?P<asked>[^>]*?) -->\n)"
    r"(?P<text>(?:(?!<!-- tacache report:).)*?)(?P<end><!-- end -->)",
    re.DOTALL,
)
BEGUN = re.compile(r"^<!-- tacache report: [^>]*-->$", re.MULTILINE)
UNREACHABLE = "-"


class TableChoice(NamedTuple):
    """Which methods a table shows: ours and the best `top` others, those named, or all."""

    top: int | None = None
    methods: Sequence[str] = ()


ALL = TableChoice()


def readme_table(study: Study, quantities: Sequence[str] = (), choice: TableChoice = ALL) -> str:
    """Return methods against budgets, one table a quantity.

    By default the first headline there is.
    """
    names = quantities or [name for name in study.headlines if study.has(name)][:1]
    for name in names or study.headlines:
        if not study.has(name):
            there = ", ".join(q.name for q in study.quantities)
            raise TACacheError(f"{study.name} has no {name!r}: there are {there}")
    chosen = [_chosen(study, name, choice) for name in names]
    tables = [
        table
        for name, kept in zip(names, chosen, strict=True)
        for table in (_table(study, quantity(name), kept), *_tail_table(study, name, kept))
    ]
    shown = {method for kept in chosen for method in kept}
    return "\n\n".join([*tables, _caption(study, choice.top, shown)])


def fill(text: str, studies: Mapping[str, Study]) -> str:
    """Return the document with every marked part made anew; parts of other studies stay."""

    def filled(match: re.Match[str]) -> str:
        name, *words = match["asked"].split() or [""]
        if name not in studies:
            return match[0]
        quantities = [word for word in words if "=" not in word]
        choice = _choice([word for word in words if "=" in word], match["asked"])
        table = readme_table(studies[name], quantities, choice)
        return f"{match['start']}\n{table}\n\n{match['end']}"

    begun, ended = len(BEGUN.findall(text)), len(MARKED.findall(text))
    if begun > ended:
        raise TACacheError(f"{begun - ended} of {begun} markers have no <!-- end -->: add it")
    return MARKED.sub(filled, text)


def marked(text: str) -> list[str]:
    """Return the names of the studies a document shows."""
    return [match["asked"].split()[0] for match in MARKED.finditer(text) if match["asked"].strip()]


def _choice(words: Sequence[str], asked: str) -> TableChoice:
    """Return what a marker says of the methods to show: top=NUMBER or methods=NAME,NAME."""
    if not words:
        return ALL
    name, _, value = words[0].partition("=")
    if len(words) == 1 and name == "top" and re.fullmatch("[1-9][0-9]*", value):
        return TableChoice(top=int(value))
    if len(words) == 1 and name == "methods" and value:
        return TableChoice(methods=value.split(","))
    raise TACacheError(
        f"<!-- tacache report: {asked} --> is not understood at {' '.join(words)!r}: give one of "
        "top=NUMBER and methods=NAME,NAME"
    )


def _chosen(study: Study, name: str, choice: TableChoice) -> list[str]:
    """Return the methods to show of one quantity, best first."""
    order = standing(study, name)
    for method in choice.methods:
        if method not in order:
            raise TACacheError(
                f"{study.name} has no method {method!r} with a budget: there are {', '.join(order)}"
            )
    if choice.methods:
        return [method for method in order if method in choice.methods]
    return order if choice.top is None else leading(study, name, choice.top)


def _table(study: Study, shown: Quantity, methods: Sequence[str]) -> str:
    """Return the numbers of one quantity."""
    return _grid(study, heading(shown, study), methods, lambda row: _cell(row, shown))


def _tail_table(study: Study, name: str, methods: Sequence[str]) -> list[str]:
    """Return the table of the worst pictures that stands below one of PSNR."""
    group, _, metric = name.partition(".")
    if metric != "psnr":
        return []
    compared = f" to {study.fine_name}" if group == "fine" else ""
    title = f"PSNR{compared}: 5th percentile (dB), share below {LOST:g} dB"
    return [_grid(study, title, methods, lambda row: _tail_cell(row, group))]


def _grid(study: Study, title: str, methods: Sequence[str], cell: Callable[[Row], Cell]) -> str:
    """Return a line a method, a column a budget; methods with their own budget are left out."""
    tables = [table for table in study.tables if table.evaluations is not None]
    rows = {(row.method, table.evaluations): row for table in tables for row in table.rows}
    lines: list[list[str | Cell]] = [
        [method, *(cell(row) if row else Cell("") for row in cells)]
        for method in methods
        for cells in [[rows.get((method, table.evaluations)) for table in tables]]
    ]
    return markdown_table(grid([title, *(str(table.evaluations) for table in tables)], lines))


def _tail_cell(row: Row, group: str) -> Cell:
    fifth, share = (row.values.get(f"{group}.{name}") for name in (FIFTH, SHARE))
    if not fifth or not share:
        return _cell(row, quantity(f"{group}.{FIFTH}"))
    return Cell(f"{number(fifth, quantity(f'{group}.{FIFTH}'))}, {share.mean:.0f} %")


def _cell(row: Row, shown: Quantity) -> Cell:
    if not row.done:
        return Cell(UNREACHABLE if row.unreachable else "failed")
    plain = cell(row, shown)
    return plain._replace(after=f" {OVER}") if row.over else plain


def _caption(study: Study, top: int | None, shown: set[str]) -> str:
    """Return how to read the tables."""
    samples = f"{study.prompts} prompts" + (f" x {study.seeds} seeds" if study.seeds > 1 else "")
    marks = "best **bold**, second <ins>underlined</ins>"
    rows = [row for row in study.rows if row.method in shown and row.evaluations is not None]
    rivals = {row.method for row in study.rows if row.evaluations is not None and not row.ours}
    parts = [
        f"By evaluations of the model, of {study.steps} steps. Means over {samples} ± half of the "
        f"95 % confidence interval; {marks}"
    ]
    if any(row.unreachable for row in rows):
        parts.append(f"{UNREACHABLE} where a method has no such budget")
    if any(row.over for row in rows):
        parts.append(
            f"{OVER} where a method cost more than the budget (of a cache inside the model: in "
            "equivalent evaluations)"
        )
    text = "; ".join(parts) + "."
    if top is not None and top < len(rivals):
        text += f" The best {top} of {len(rivals)} other methods by mean rank, and ours."
    return text
