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
    from tacache.lab.bench.records import Fidelity, Record


def print_records(
    records: Sequence["Record"], target: Path, metrics: Sequence[str], as_json: bool
) -> None:
    """Print where the records are, and a short table of their means."""
    counts = Counter(record.status for record in records)
    if as_json:
        return print_json({"file": str(target), "records": len(records), **counts})
    show(_table(records, metrics))
    for note in (*_notes(records, metrics), *_not_measured(records, metrics)):
        say(note)
    troubles = {
        (record.method, record.evaluations): record.reason
        for record in records
        if record.status != "done"
    }
    for (method, evaluations), reason in troubles.items():
        say(f"{method} at {evaluations or 'its own budget'}: {reason}")
    say(f"{len(records)} records in {target}; {target}.work speeds up what is added to them")


def _notes(records: Sequence["Record"], metrics: Sequence[str]) -> Iterator[str]:
    """Yield what one must know to read the table."""
    for fifth, lost in [_tail_titles(metric) for metric in metrics if _tail_titles(metric)]:
        yield f"{fifth}: the 5th percentile of PSNR; {lost}: the share of pictures below it"
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
    judged = [record for record in records if record.status == "done" and _compared(record)]
    for name in metrics:
        if lacking := sum(_value(record, name) is None for record in judged):
            reasons.append(f"{name}: {lacking} records were made without it; name another file")
    return reasons


def _compared(record: "Record") -> "Fidelity | None":
    """Return how a result compares with the reference: the flow where that is it."""
    return record.to_fine if record.reference == "flow" else record.to_full


def _value(record: "Record", metric: str) -> float | str | None:
    """Return a metric's value, or why it has none, or None where it was not asked for."""
    compared = _compared(record)
    return (compared.metrics if compared else {}).get(metric, record.scores.get(metric))


def _table(records: Sequence["Record"], metrics: Sequence[str]) -> Table:
    inside = any(record.worth is not None for record in records)
    flow = any(record.reference == "flow" for record in records)
    equivalent = ("equivalent",) if inside else ()
    table = Table(title=f"Means over samples, to {'the flow' if flow else 'full steps'}")
    titles = [title for metric in metrics for title in (metric, *_tail_titles(metric))]
    for heading in ("method", "asked", "evaluations", *equivalent, "seconds", "drift", *titles):
        justify: Literal["left", "right"] = "left" if heading == "method" else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        if record.status == "done":
            groups.setdefault((record.method, record.evaluations), []).append(record)
    for (method, evaluations), group in groups.items():
        compared = [one for one in map(_compared, group) if one is not None]
        table.add_row(
            Text(printable(method)),
            str(evaluations or ""),
            f"{fmean(record.spent for record in group):.4g}",
            *([_equivalent(group)] if inside else []),
            f"{fmean(record.seconds or 0.0 for record in group):.2f}",
            f"{fmean(one.drift for one in compared):.4f}" if compared else "",
            *(text for metric in metrics for text in _numbers(group, metric)),
        )
    return table


def _tail_titles(metric: str) -> tuple[str, ...]:
    """Return the columns of the worst pictures, which stand after PSNR."""
    from tacache.lab.report.tail import LOST

    return ("5th", f"<{LOST:g} dB") if metric == "psnr" else ()


def _numbers(group: Sequence["Record"], metric: str) -> list[str]:
    """Return the mean of a metric, and for PSNR what the worst pictures have."""
    from tacache.lab.report.tail import lost, percentile

    values = [x for x in (_value(record, metric) for record in group) if isinstance(x, float)]
    if not values:
        return ["" for _ in (metric, *_tail_titles(metric))]
    mean = f"{fmean(values):.{2 if 'psnr' in metric else 4}f}"
    if not _tail_titles(metric):
        return [mean]
    return [mean, f"{percentile(values):.2f}", f"{lost(values):.0f} %"]


def _equivalent(group: Sequence["Record"]) -> str:
    """Return the equivalent evaluations of a cache inside the model; other methods have none."""
    found = [record.worth for record in group if record.worth is not None]
    return f"{fmean(found):.1f}" if found else ""
