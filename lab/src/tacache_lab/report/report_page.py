"""The report as one page: sortable tables, a plot to point at, pictures to slide over.

Nothing is fetched: numbers, pictures, figures, style and script are inside.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tacache_lab.pages import template
from tacache_lab.renderer import Cell
from tacache_lab.report.quantities import Quantity
from tacache_lab.report.ranking import named, study_styles
from tacache_lab.report.shelves import Shelves, file_address
from tacache_lab.report.sub_scores import kind_tables
from tacache_lab.report.summary import Row, Study
from tacache_lab.report.tables import (
    cell,
    columns_of,
    heading,
    label,
    lead_texts,
    notes,
    setup,
    table_title,
    trouble,
)

# figures that the page does not draw itself, with what they show
EMBEDDED = {
    "drift": "State and velocity drift from the full-step run, step by step",
    "alignment": "cos theta between the historical and the true direction at cached steps",
    "indicators": "MI and DI over the run, with one standard deviation to either side",
}
SIDES = ("evaluations", "speedup")  # what the plot can have across


class Line(NamedTuple):
    """A line of a table."""

    method: str
    ours: bool
    cells: list[Cell]
    trouble: str | None


class SortableGrid(NamedTuple):
    """A table: its title, columns in groups, lines, and how far the best are ahead."""

    title: str
    groups: list[tuple[str, int]]
    columns: list[Quantity]
    lines: list[Line]
    leads: list[str]


class Section(NamedTuple):
    """A study as the page shows it."""

    study: Study
    setup: str
    grids: list[SortableGrid]
    figures: list[tuple[str, str]]
    notes: list[str]
    shelves: Shelves
    data: dict[str, Any]


def page(sections: Sequence[Section]) -> str:
    """Return the page's text."""
    return str(_template().render(sections=sections, sides=SIDES))


def check() -> None:
    """Refuse to begin what cannot be written."""
    _template()


def _template() -> Any:
    return template("tacache_lab.report", "report.html", "report")


def section(study: Study, shelves: Shelves, drawn: Mapping[str, Path]) -> Section:
    """Return what the page shows of a study; `drawn` are figures by name."""
    grids = [
        _grid(study, table_title(t), t.rows, columns_of(study, t.rows), lead_texts(t))
        for t in study.tables
    ]
    grids += [_grid(study, t.title, t.rows, t.columns, []) for t in kind_tables(study)]
    if study.references:
        shown = columns_of(study, study.references)
        grids.append(_grid(study, "References", study.references, shown, []))
    return Section(
        study,
        setup(study),
        grids,
        [(text, file_address(drawn[name])) for name, text in EMBEDDED.items() if name in drawn],
        notes(study),
        shelves,
        _data(study, shelves),
    )


def _grid(
    study: Study, title: str, rows: Sequence[Row], shown: list[Quantity], leads: list[str]
) -> SortableGrid:
    named = {
        "full": f"to {study.steps} steps",
        "fine": f"to {study.fine_name}",
        "score": "of the picture alone",
        "cost": "cost",
    }
    groups = [
        (named[name], len(list(columns))) for name, columns in groupby(shown, lambda q: q.group)
    ]
    lines = [
        Line(label(row), row.ours, [cell(row, q) for q in shown], trouble(row)) for row in rows
    ]
    return SortableGrid(title, groups, shown, lines, leads)


def _data(study: Study, shelves: Shelves) -> dict[str, Any]:
    """Return what the script draws from."""
    known, shown = study_styles(study), named(study)
    compared = [q for q in study.quantities if q.group != "cost" and q.better and not q.is_part]
    return {
        "name": study.name,
        "quantities": [
            {
                **q.model_dump(include={"name", "better", "digits", "unit"}),
                "title": heading(q, study),
            }
            for q in compared
        ],
        "across": [side for side in SIDES if study.has(side)],
        "methods": [
            {"name": name, "colour": style.colour, "ours": style.ours, "shown": name in shown}
            for name, style in known.items()
        ],
        "points": [
            {
                "method": row.method,
                "asked": row.evaluations,
                "values": {
                    name: [estimate.mean, estimate.margin]
                    for name, estimate in row.values.items()
                    if name in (*SIDES, "equivalent-evaluations", *(q.name for q in compared))
                },
            }
            for row in study.rows
            if row.done
        ],
        "shelves": [
            {"prompt": s.prompt, "seed": s.seed, "pictures": [p._asdict() for p in s.pictures]}
            for s in shelves.shown
        ],
    }
