"""From records to studies: means over samples, ranks within a budget, leads of the best."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tacache.prompts import Sample
from tacache.storage.journal import PACKED
from tacache.storage.origin import Origin
from tacache_lab.bench.records import Record, RecordError, Reference, read_records
from tacache_lab.report.confidence import difference, estimate, tail
from tacache_lab.report.nearness import with_equivalents
from tacache_lab.report.quantities import CLOCKED, in_order, measured, unmeasured
from tacache_lab.report.sub_scores import overall
from tacache_lab.report.summary import (
    REFERENCES,
    Lead,
    Row,
    Study,
    Summary,
    Table,
    headlines,
)
from tacache_lab.report.traces import alignment, traces

Samples = dict[str, dict[Sample, float]]  # quantity -> sample -> number
GroupKey = tuple[str, int | None]


def read_study(path: str | os.PathLike[str], name: str | None = None) -> Study:
    """Return the study of a results file, named after it."""
    source = Path(path)
    return study(name or study_name(source), load(source))


def study_name(source: Path) -> str:
    """Return a results file's name without its endings."""
    return source.name.removesuffix(PACKED).rpartition(".")[0] or source.name


def load(source: Path) -> list[Record]:
    """Return the records of a results file, which must have some."""
    if not source.is_file():
        raise RecordError(f"there is no results file {source}: `tacache bench` writes one")
    records = read_records(source)
    if not records:
        raise RecordError(f"{source} has no records: run `tacache bench` to the end")
    return records


def summarise(studies: Iterable[Study]) -> Summary:
    """Return studies side by side; each must have a name of its own."""
    all_studies = tuple(studies)
    twice = [
        name for name, count in Counter(study.name for study in all_studies).items() if count > 1
    ]
    if twice:
        raise RecordError(f"two results files are named {twice[0]!r}: rename one")
    return Summary(studies=all_studies)


def study(name: str, records: Sequence[Record]) -> Study:
    """Return the study of some records; of two with one key the later one counts."""
    kept = list({record.key: record for record in records}.values())
    first = _one_setup(name, kept)
    subjects = dict.fromkeys(Sample(record.prompt, record.seed) for record in kept)
    groups = _groups(kept)
    full = {_subject(r): r for r in kept if r.method == "full" and r.status == "done"}
    samples = {key: _samples(group, full) for key, group in groups.items()}
    rows = {key: _row(group, samples[key]) for key, group in groups.items()}
    reference: Reference = first.reference or "run"
    if reference == "flow":
        rows = with_equivalents(rows, first.steps, len(subjects))
    shared = any(record.processes_per_device > 1 for record in kept)
    origin = first.origin
    return Study(
        name=name,
        model=origin.model or origin.pipeline or origin.kind or "a model",
        call=dict(origin.call or {}),
        steps=first.steps,
        fine=first.fine,
        prompts=len({subject.prompt for subject in subjects}),
        seeds=len({subject.seed for subject in subjects}),
        samples=len(subjects),
        processes=tuple(sorted({record.processes for record in kept})),
        processes_per_device=tuple(sorted({record.processes_per_device for record in kept})),
        devices=tuple(dict.fromkeys(record.machine.device for record in kept)),
        versions=_versions(kept),
        quantities=tuple(in_order(name for row in rows.values() for name in row.values)),
        references=tuple(row for key, row in rows.items() if key[0] in REFERENCES),
        tables=tuple(
            _tables(rows, samples, len(subjects), CLOCKED if shared else (), headlines(reference))
        ),
        reference=reference,
    )


def _one_setup(name: str, records: Sequence[Record]) -> Record:
    """Return the first record; all others must be of the same model and call."""
    if not records:
        raise RecordError(f"{name} has no records: run `tacache bench` to the end")
    first = records[0]
    for record in records:
        if _setup(record) != _setup(first):
            raise RecordError(
                f"{name} mixes models, calls or references: put each into a file of its own"
            )
    return first


def _setup(record: Record) -> tuple[Origin, int, int | None, str | None]:
    return record.origin, record.steps, record.fine, record.reference


def _versions(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    versions_of: dict[str, dict[str, None]] = {}
    for record in records:
        for package, version in record.machine.versions.items():
            versions_of.setdefault(package, {})[version] = None
    return {package: tuple(every) for package, every in versions_of.items()}


def _groups(records: Iterable[Record]) -> dict[GroupKey, list[Record]]:
    by_key: dict[GroupKey, list[Record]] = {}
    for record in records:
        by_key.setdefault((record.method, record.evaluations), []).append(record)
    return by_key


def _subject(record: Record) -> Sample:
    return Sample(record.prompt, record.seed)


def _samples(records: Sequence[Record], full: Mapping[Sample, Record]) -> Samples:
    """Return the numbers of finished records, by quantity."""
    by_quantity: Samples = {}
    for record in records:
        if record.status == "done":
            subject = _subject(record)
            for name, value in measured(record, full.get(subject)).items():
                by_quantity.setdefault(name, {})[subject] = value
    return by_quantity


def _row(records: Sequence[Record], samples: Samples) -> Row:
    counts = Counter(record.status for record in records)
    reasons = Counter(record.reason for record in records if record.reason)
    values = {name: estimate(numbers) for name, numbers in samples.items()}
    return Row(
        method=records[0].method,
        evaluations=records[0].evaluations,
        done=counts["done"],
        failed=counts["failed"],
        unreachable=counts["unreachable"],
        reason=reasons.most_common(1)[0][0] if reasons else None,
        values=values | overall(samples) | tail(samples),
        unmeasured={name: why for record in records for name, why in unmeasured(record).items()},
        traces=traces(records),
        alignment=alignment(records),
    )


def _tables(
    rows: Mapping[GroupKey, Row],
    samples: Mapping[GroupKey, Samples],
    count: int,
    unranked: Sequence[str],
    shown: Sequence[str],
) -> Iterable[Table]:
    """Return a table a budget, the largest first, and one of methods with their own."""
    methods = [row for row in rows.values() if row.method not in REFERENCES]
    budgets = {row.evaluations for row in methods}
    for budget in sorted(budgets, key=lambda k: -(k or 0)):
        here = [row for row in methods if row.evaluations == budget]
        if budget is None:
            here.sort(key=lambda row: -(row.cost.mean if row.cost else 0.0))
            yield Table(evaluations=None, rows=tuple(here))
        else:
            complete = [row for row in here if row.done == count]
            ranked = [_ranked(row, complete, count, unranked) for row in here]
            ranked.sort(key=partial(_standing, shown))
            yield Table(
                evaluations=budget,
                rows=tuple(ranked),
                leads=tuple(
                    _leads(ranked, {r.method: samples[r.method, budget] for r in here}, shown)
                ),
            )


def _ranked(row: Row, rivals: Sequence[Row], count: int, unranked: Sequence[str]) -> Row:
    """Return the row with its places among those that have all samples.

    Without any if it has not.
    """
    if row.done < count:
        return row
    places = {}
    for quantity in in_order(row.values):
        if quantity.better and quantity.name not in unranked:
            sign = -1 if quantity.better == "higher" else 1
            known = [r.values[quantity.name] for r in rivals if quantity.name in r.values]
            most = max(other.samples for other in known)  # of a kind's score not all are of it
            there = [other for other in known if other.samples == most]
            mine = row.values[quantity.name]
            if mine.samples == most:
                better = sum(sign * other.mean < sign * mine.mean for other in there)
                places[quantity.name] = 1 + better
    return row.model_copy(update={"ranks": places})


def _standing(shown: Sequence[str], row: Row) -> tuple[bool, bool, int]:
    """Return best first by the first headline there is.

    Then the incomplete, then those with nothing.
    """
    headline = next((row.ranks[name] for name in shown if name in row.ranks), 0)
    return not row.done, not row.ranks, headline


def _leads(
    rows: Sequence[Row], samples: Mapping[str, Samples], shown: Sequence[str]
) -> Iterable[Lead]:
    """Return the best against the second, by every headline; ties have no lead."""
    for name in shown:
        ranked = sorted((row for row in rows if name in row.ranks), key=lambda r: r.ranks[name])
        if len(ranked) > 1 and ranked[0].ranks[name] < ranked[1].ranks[name]:
            first, second = ranked[0].method, ranked[1].method
            mine, theirs = samples[first][name], samples[second][name]
            if mine.keys() == theirs.keys():
                yield Lead(quantity=name, first=first, second=second, by=difference(mine, theirs))
