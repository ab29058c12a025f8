"""What a benchmark came to, in the terminal: the report's numbers, and what is not there."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacache.cli.printing import print_json, say, show
from tacache_lab.renderer import Cell, Grid, grid, terminal_table

if TYPE_CHECKING:
    from tacache_lab.bench.records import Record
    from tacache_lab.report.quantities import Quantity
    from tacache_lab.report.summary import Row, Study

COSTS = ("evaluations", "equivalent-evaluations", "seconds")


def print_records(
    records: Sequence["Record"], target: Path, metrics: Sequence[str], as_json: bool
) -> None:
    """Print where the records are, and a short table of their means."""
    from tacache_lab.report.studies import study
    from tacache_lab.report.tables import NOTES, notes

    counts = Counter(record.status for record in records)
    if as_json:
        return print_json({"file": str(target), "records": len(records), **counts})
    shown = study(target.name, records)
    reference = "the flow" if shown.reference == "flow" else "full steps"
    show(terminal_table(means(shown, metrics), f"Means over samples, to {reference}"))
    for note in (*notes(shown)[len(NOTES) :], *_lacking(records, shown, metrics)):
        say(note)
    for row in shown.rows:
        if row.reason is not None:
            say(f"{row.method} at {row.evaluations or 'its own budget'}: {row.reason}")
    say(f"{len(records)} records in {target}; {target}.work speeds up what is added to them")


def means(study: "Study", metrics: Sequence[str]) -> Grid:
    """Return the means of every method and budget, in the columns that were asked for."""
    from tacache_lab.report.tables import cell, heading, label

    columns = list(_columns(study, metrics))
    titles = ["method", "budget", *(heading(column, study) for column in columns)]
    lines: list[list[str | Cell]] = [
        [label(row), str(row.evaluations or ""), *(cell(_means(row), q) for q in columns)]
        for row in (*study.references, *study.rows)
        if row.done
    ]
    return grid(titles, lines)


def _means(row: "Row") -> "Row":
    """Return a row without margins: a terminal is narrow."""
    values = {name: value.model_copy(update={"margin": None}) for name, value in row.values.items()}
    return row.model_copy(update={"values": values})


def _columns(study: "Study", metrics: Sequence[str]) -> Iterator["Quantity"]:
    """Yield costs, drift and the metrics that were asked for, as far as there are numbers."""
    from tacache_lab.report.confidence import FIFTH, SHARE
    from tacache_lab.report.quantities import quantity

    tail = {"psnr": (FIFTH, SHARE)}
    names = [name for metric in metrics for name in (metric, *tail.get(metric, ()))]
    judged = (f"{study.judged_by}.{name}" for name in ("drift", *names))
    for name in (*COSTS, *judged, *(f"score.{name}" for name in names)):
        if study.has(name):
            yield quantity(name)


def _lacking(records: Sequence["Record"], study: "Study", metrics: Sequence[str]) -> Iterator[str]:
    """Yield which metrics records were made without."""
    for name in metrics:
        lacking = sum(
            record.status == "done"
            and (compared := record.to_fine if study.reference == "flow" else record.to_full)
            is not None
            and name not in {**compared.metrics, **record.scores}
            for record in records
        )
        if lacking:
            yield f"{name}: {lacking} records were made without it; name another file"
