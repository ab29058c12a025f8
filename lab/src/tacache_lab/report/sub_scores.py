"""Metrics with sub-scores: a mean over each kind of sample, and one over kinds.

A benchmark records `following/position` beside `following`; all else is made here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, variance
from typing import NamedTuple

from tacache.prompts import Sample
from tacache_lab.picture_metrics import METRICS
from tacache_lab.report.confidence import Estimate, independent, student_t
from tacache_lab.report.quantities import OVERALL, Quantity, quantity
from tacache_lab.report.summary import Row, Study, Table


class KindTable(NamedTuple):
    """One metric with its sub-scores: every row that has them, the references first."""

    metric: str
    title: str
    columns: list[Quantity]
    rows: list[Row]


def overall(samples: Mapping[str, Mapping[Sample, float]]) -> dict[str, Estimate]:
    """Return the mean over kinds of every metric that has some, each kind weighing the same.

    Its margin is that of a stratified sample; unknown where a kind has one number only.
    """
    return {
        f"score.{metric}/{OVERALL}": _over_kinds(parts) for metric, parts in _parts(samples).items()
    }


def kind_tables(study: Study) -> list[KindTable]:
    """Return a table of every metric of the study that has sub-scores."""
    tables = []
    for name in METRICS:
        parts = [q for q in study.quantities if q.kind and q.metric.partition("/")[0] == name]
        if parts:
            short = [q.model_copy(update={"title": q.kind.replace("_", " ")}) for q in parts]
            whole = quantity(f"score.{name}").model_copy(update={"title": "all prompts"})
            told = [row for table in study.tables for row in _told_apart(table)]
            rows = [row for row in (*study.references, *told) if whole.name in row.values]
            columns = [quantity("evaluations"), whole, *short]
            tables.append(KindTable(name, METRICS[name].title, columns, rows))
    return tables


def kind_notes(study: Study) -> list[str]:
    """Return how many samples every sub-score is a mean of, and why others are in none."""
    return [note for table in kind_tables(study) for note in _notes(table, study.samples)]


def _told_apart(table: Table) -> Iterator[Row]:
    """Yield the rows of a budget, with ranks of the quantities that tell them apart."""
    useful = {name for row in table.rows for name, rank in row.ranks.items() if rank > 1}
    for row in table.rows:
        kept = {name: rank for name, rank in row.ranks.items() if name in useful}
        yield row.model_copy(update={"ranks": kept})


def _notes(table: KindTable, samples: int) -> Iterator[str]:
    """Yield the notes on one metric."""
    whole = f"score.{table.metric}"
    counts = ", ".join(f"{_most(table.rows, q.name)} {q.title}" for q in table.columns if q.is_part)
    yield (
        f"{table.title}: of {_most(table.rows, whole)} of {samples} samples ({counts}); overall is "
        "the mean over these kinds."
    )
    for why in sorted({r.unmeasured[whole] for r in table.rows if whole in r.unmeasured}):
        yield f"{table.title}, all other samples: {why}."


def _most(rows: Sequence[Row], name: str) -> int:
    """Return the most samples that any row has of a quantity."""
    return max(row.values[name].samples for row in rows if name in row.values)


def _parts(
    samples: Mapping[str, Mapping[Sample, float]],
) -> dict[str, list[Mapping[Sample, float]]]:
    """Return the numbers of every metric that has sub-scores, kind by kind."""
    by_metric: dict[str, list[Mapping[Sample, float]]] = {}
    for name, values in samples.items():
        if quantity(name).kind:
            by_metric.setdefault(quantity(name).metric.partition("/")[0], []).append(values)
    return by_metric


def _over_kinds(parts: Sequence[Mapping[Sample, float]]) -> Estimate:
    units = [independent(values) for values in parts]
    margin = None
    if all(len(values) > 1 for values in units):
        squares = sum(variance(values) / len(values) for values in units)
        freedom = sum(len(values) - 1 for values in units)
        margin = student_t(freedom) * math.sqrt(squares) / len(units)
    return Estimate(
        mean=fmean(fmean(values) for values in units),
        margin=margin,
        samples=sum(len(values) for values in parts),
    )
