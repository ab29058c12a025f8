"""The means of a benchmark's records as a table in the terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from tacache.cli.printing import print_json, say, show
from tacache.errors import printable

if TYPE_CHECKING:
    from tacache.lab.bench.records import Record


def print_records(
    records: Sequence["Record"], target: Path, metrics: Sequence[str], as_json: bool
) -> None:
    """Print where the records are, and a short table of their means."""
    counts = Counter(record.status for record in records)
    if as_json:
        return print_json({"file": str(target), "records": len(records), **counts})
    show(_table(records, metrics))
    for note in (*_notes(records), *_not_measured(records, metrics)):
        say(note)
    troubles = {
        (record.method, record.evaluations): record.reason
        for record in records
        if record.status != "done"
    }
    for (method, evaluations), reason in troubles.items():
        say(f"{method} at {evaluations or 'its own budget'}: {reason}")
    say(f"{len(records)} records in {target}; {target}.work speeds up what is added to them")


def _notes(records: Sequence["Record"]) -> Iterator[str]:
    """Yield what one must know to read the table."""
    if any(record.worth is not None for record in records):
        yield (
            "equivalent: the evaluations that all work of a cache inside the model amounts to; "
            "compare it by these"
        )
    crowd = max((record.crowd for record in records), default=1)
    if crowd > 1:
        yield f"seconds: {crowd} processes shared a device, so that times are not comparable"


def _not_measured(records: Sequence["Record"], metrics: Sequence[str]) -> list[str]:
    """Return why a metric has no number, each reason once."""
    found = {(name, _value(record, name)) for record in records for name in metrics}
    reasons = sorted(f"{name}: {reason}" for name, reason in found if isinstance(reason, str))
    judged = [record for record in records if record.status == "done" and record.to_full]
    for name in metrics:
        if lacking := sum(_value(record, name) is None for record in judged):
            reasons.append(f"{name}: {lacking} records were made without it; name another file")
    return reasons


def _value(record: "Record", metric: str) -> float | str | None:
    """Return a metric's value, or why it has none, or None where it was not asked for."""
    compared = {} if record.to_full is None else record.to_full.metrics
    return compared.get(metric, record.scores.get(metric))


def _table(records: Sequence["Record"], metrics: Sequence[str]) -> Table:
    inside = any(record.worth is not None for record in records)
    equivalent = ("equivalent",) if inside else ()
    table = Table(title="Means over samples, to full steps")
    for heading in ("method", "asked", "evaluations", *equivalent, "seconds", "drift", *metrics):
        justify: Literal["left", "right"] = "left" if heading == "method" else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        if record.status == "done":
            groups.setdefault((record.method, record.evaluations), []).append(record)
    for (method, evaluations), group in groups.items():
        compared = [record.to_full for record in group if record.to_full is not None]
        table.add_row(
            Text(printable(method)),
            str(evaluations or ""),
            f"{fmean(record.spent for record in group):.4g}",
            *([_equivalent(group)] if inside else []),
            f"{fmean(record.seconds or 0.0 for record in group):.2f}",
            f"{fmean(one.drift for one in compared):.4f}" if compared else "",
            *(_mean(group, metric) for metric in metrics),
        )
    return table


def _mean(group: Sequence["Record"], metric: str) -> str:
    values = [x for x in (_value(record, metric) for record in group) if isinstance(x, float)]
    return f"{fmean(values):.{2 if 'psnr' in metric else 4}f}" if values else ""


def _equivalent(group: Sequence["Record"]) -> str:
    """Return the equivalent evaluations of a cache inside the model; other methods have none."""
    found = [record.worth for record in group if record.worth is not None]
    return f"{fmean(found):.1f}" if found else ""
