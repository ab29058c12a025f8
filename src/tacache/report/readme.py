"""Tables inside other documents, between markers, so that they stay what was measured.

<!-- tacache report: main -->            the study `main`, PSNR to full steps
<!-- tacache report: main full.psnr full.lpips -->    these quantities, a table each
<!-- end -->
"""

import re
from collections.abc import Mapping, Sequence

from tacache.errors import TACacheError
from tacache.report.quantities import Quantity, quantity
from tacache.report.summary import HEADLINES, Row, Study
from tacache.report.tables import cell, heading, markdown_table

MARKED = re.compile(
    r"(?P<start><!-- tacache report: (?P<asked>[^>]*?) -->\n)(?P<text>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)
UNREACHABLE = "-"


def readme_table(study: Study, quantities: Sequence[str] = ()) -> str:
    """Methods against budgets, one table a quantity; by default the first headline there is."""
    names = quantities or [name for name in HEADLINES if study.has(name)][:1]
    for name in names or HEADLINES:
        if not study.has(name):
            there = ", ".join(q.name for q in study.quantities)
            raise TACacheError(f"{study.name} has no {name!r}: there are {there}")
    return "\n\n".join([*(_table(study, quantity(name)) for name in names), _caption(study)])


def fill(text: str, studies: Mapping[str, Study]) -> str:
    """The document with every marked part made anew; parts of other studies stay."""

    def made(match: re.Match[str]) -> str:
        name, *quantities = match["asked"].split() or [""]
        if name not in studies:
            return match[0]
        return f"{match['start']}\n{readme_table(studies[name], quantities)}\n\n{match['end']}"

    return MARKED.sub(made, text)


def marked(text: str) -> list[str]:
    """The names of the studies a document shows."""
    return [match["asked"].split()[0] for match in MARKED.finditer(text) if match["asked"].strip()]


def _table(study: Study, shown: Quantity) -> str:
    """A line a method, a column a budget; methods with their own budget are left out."""
    tables = [table for table in study.tables if table.evaluations is not None]
    rows = {(row.method, table.evaluations): row for table in tables for row in table.rows}
    methods = dict.fromkeys(method for method, _ in rows)
    lines = [
        [method, *(_cell(rows.get((method, table.evaluations)), shown) for table in tables)]
        for method in sorted(methods, key=lambda method: _mean_rank(method, rows, shown))
    ]
    return markdown_table([heading(shown, study), *(str(t.evaluations) for t in tables)], lines)


def _cell(row: Row | None, shown: Quantity) -> str:
    if row is None:
        return ""
    if not row.done:
        return UNREACHABLE if row.unreachable else "failed"
    return cell(row, shown)


def _caption(study: Study) -> str:
    """How to read the tables."""
    samples = f"{study.prompts} prompts" + (f" x {study.seeds} seeds" if study.seeds > 1 else "")
    marks = "best **bold**, second <ins>underlined</ins>"
    reached = any(row.unreachable for row in study.rows)
    return (
        f"By evaluations of the model, of {study.steps} steps. Means over {samples} ± half of the "
        f"95 % confidence interval; {marks}"
        + (f"; {UNREACHABLE} where a method has no such budget." if reached else ".")
    )


def _mean_rank(
    method: str, rows: Mapping[tuple[str, int | None], Row], shown: Quantity
) -> tuple[float, str]:
    """The mean of its ranks; where it has none it counts as behind all others."""
    mine = [row for (name, _), row in rows.items() if name == method]
    last = len({name for name, _ in rows}) + 1
    return sum(row.ranks.get(shown.name, last) for row in mine) / len(mine), method
