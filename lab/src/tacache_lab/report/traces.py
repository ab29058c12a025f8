"""Numbers at every step: means and spreads over samples, and their means over a run."""

from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev

from tacache import diagnostics
from tacache.diagnostics import Alignment
from tacache.storage.files import Frozen
from tacache_lab.bench.records import Record

CACHED, EVALUATED = "velocity_drift_cached", "velocity_drift_evaluated"  # made of two others


class Trace(Frozen):
    """A mean and a standard deviation over samples at every step; None where a step has none."""

    mean: tuple[float | None, ...]
    deviation: tuple[float | None, ...]


def traces(records: Sequence[Record]) -> dict[str, Trace]:
    """Return every trace of some records, step by step over their samples."""
    by_name: dict[str, list[tuple[float | None, ...]]] = {}
    for record in records:
        for name, values in {**(record.traces or {}), **_apart(record)}.items():
            by_name.setdefault(name, []).append(values)
    return {name: _over_samples(rows) for name, rows in by_name.items()}


def alignment(records: Sequence[Record]) -> Alignment | None:
    """Return cos(theta) over all cached steps of all samples, as in the paper's appendix C."""
    cosines = [x for record in records for x in _numbers(record, "cos_theta")]
    return diagnostics.alignment(cosines) if cosines else None


def step_drift(record: Record, name: str, *, evaluated: bool) -> float | None:
    """Return one sample's mean drift of states or velocities, of evaluated or cached steps."""
    traces = record.traces or {}
    pairs = zip(traces.get(name, ()), traces.get("evaluated", ()), strict=False)
    drifts = [drift for drift, mark in pairs if drift is not None and bool(mark) == evaluated]
    return fmean(drifts) if drifts else None


def mean_cosine(record: Record) -> float | None:
    """Return the mean of cos(theta) over the cached steps of one sample."""
    cosines = list(_numbers(record, "cos_theta"))
    return fmean(cosines) if cosines else None


def _apart(record: Record) -> dict[str, tuple[float | None, ...]]:
    """Return velocity drift of cached and of evaluated steps, which samples may differ in."""
    traces = record.traces or {}
    if not {"velocity_drift", "evaluated"} <= traces.keys():
        return {}
    pairs = list(zip(traces["velocity_drift"], traces["evaluated"], strict=True))
    return {
        CACHED: tuple(None if mark else drift for drift, mark in pairs),
        EVALUATED: tuple(drift if mark else None for drift, mark in pairs),
    }


def _numbers(record: Record, name: str) -> Iterator[float]:
    return (x for x in (record.traces or {}).get(name, ()) if x is not None)


def _over_samples(rows: Sequence[tuple[float | None, ...]]) -> Trace:
    """Return steps of the longest; samples without a number at a step do not count there."""
    steps = [
        [x for row in rows for x in row[n : n + 1] if x is not None]
        for n in range(max(map(len, rows)))
    ]
    return Trace(
        mean=tuple(fmean(step) if step else None for step in steps),
        deviation=tuple(pstdev(step) if step else None for step in steps),
    )
