"""Tables as Markdown for people and as CSV for programs."""

import csv
import io
import json
from collections.abc import Sequence

from tacache.errors import printable
from tacache_lab.renderer import Cell, grid, markdown_table
from tacache_lab.report.confidence import FIFTH, LOST, Estimate
from tacache_lab.report.nearness import EQUIVALENT, nearness
from tacache_lab.report.quantities import CLOCKED, IDENTICAL, Quantity, quantity
from tacache_lab.report.sub_scores import kind_notes, kind_tables
from tacache_lab.report.summary import Row, Study, Table

NOTES = (
    "Means over samples ± half of the 95 % confidence interval, by Student's t over prompts (means "
    "over their seeds; over seeds where there is one prompt).",
    "Within a budget the best is **bold** and the second best <ins>underlined</ins>; a method "
    "without all samples has no rank.",
    "Leads are differences sample by sample, from the same noise.",
)
CAPPED = "Pictures equal to the reference count as 100 dB."
EQUIVALENT_WORK = (
    "A cache inside the model runs a part of it at skipped steps too: equivalent are "
    "the evaluations that all its work amounts to. Of all other methods that is what they evaluate."
)
OVER = "\N{DAGGER}"
OVERSPENT = (
    f"{OVER} cost more than the budget: by evaluations, or by equivalent ones where there "
    "are some. It is ranked all the same."
)
AVERAGED = (
    "A fitted plan crosses an interval with one average velocity, which is what its cached steps "
    "drift by; at evaluated steps it is the model's own velocity that is compared."
)
CROWDED = "\N{DOUBLE DAGGER}"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how cells begin that spreadsheets compute
WORST_OF = (
    f"5th percentile: one picture in twenty is worse. Below {LOST:g} dB a picture is another one."
)
IN_EULER_STEPS = (
    "Equivalent Euler steps are as many as have the same mean distance of latents to the flow, by "
    "the Euler runs of the study; beyond them Euler's order is continued."
)
SHARED = "Calibration evaluations are those of the full runs that a method was made ready on."


def number(estimate: Estimate, shown: Quantity) -> str:
    """Return a mean and its margin, as exact as the quantity is written.

    Sub-scores stand without: theirs are wide, of a few samples that are right or wrong.
    """
    if shown.unit == "dB" and estimate.mean >= IDENTICAL:
        return "identical"
    if not estimate.margin or shown.is_part:
        whole = shown.digits <= 1 and estimate.mean == round(estimate.mean)
        return f"{estimate.mean:.{0 if whole else shown.digits}f}"
    return f"{estimate.mean:.{shown.digits}f} ± {estimate.margin:.{shown.digits}f}"


def cell(row: Row, shown: Quantity) -> Cell:
    """Return a number with its rank as it stands in a table, or a short word and the reason."""
    estimate = row.values.get(shown.name)
    if estimate is None:
        why = row.unmeasured.get(shown.name)
        return Cell("not run" if why else "", why=why)
    text = number(estimate, shown)
    unranked = row.ranks and shown.name not in row.ranks and not shown.kind
    if unranked and estimate.samples < row.done:  # others have more
        text += f" ({estimate.samples} of {row.done})"
    return Cell(text, estimate.mean, row.ranks.get(shown.name))


def label(row: Row) -> str:
    """Return a method as a table names it, marked where it cost more than the budget."""
    return f"{row.method} {OVER}" if row.over else row.method


def heading(shown: Quantity, study: Study) -> str:
    """Return a column's title, with what it is compared to and its unit."""
    compared = f" to {study.fine_name}" if shown.group == "fine" else ""
    if shown.name == EQUIVALENT:
        compared = ""
    unit = f" ({shown.unit})" if shown.unit else ""
    mark = f" {CROWDED}" if study.shares_device and shown.name in CLOCKED else ""
    return f"{shown.title}{compared}{unit}{mark}"


def trouble(row: Row) -> str | None:
    """Return what kept a method from all its samples."""
    if not (row.failed or row.unreachable):
        return None
    if row.unreachable and not row.done:
        return f"unreachable: {row.reason}"
    return f"failed for {row.failed} of {row.done + row.failed} samples: {row.reason}"


def table_title(table: Table) -> str:
    """Return what the methods of a table have in common."""
    if table.evaluations is None:
        return "Methods with a budget of their own"
    return f"{table.evaluations} evaluation{'s' if table.evaluations > 1 else ''}"


def lead_texts(table: Table) -> list[str]:
    """Return how near the best comes to the flow, if measured, and every lead in words."""
    return nearness(table) + [
        f"{shown.title}: {lead.first} before {lead.second} by "
        f"{number(lead.by.model_copy(update={'mean': abs(lead.by.mean)}), shown)}"
        f"{' ' + shown.unit if shown.unit else ''}"
        + ("" if _clear(lead.by) else ", which may be chance")
        for lead in table.leads
        for shown in [quantity(lead.quantity)]
    ]


def missing_metrics(study: Study) -> dict[str, str]:
    """Return every metric without numbers anywhere, with the reason."""
    reasons = {
        name: why
        for row in (*study.references, *study.rows)
        for name, why in row.unmeasured.items()
    }
    return {name: why for name, why in reasons.items() if not study.has(name)}


def notes(study: Study) -> list[str]:
    """Return what a reader must know to read the tables."""
    texts = [*NOTES]
    if any(_identical(row) for row in study.rows):
        texts.append(CAPPED)
    if study.has("equivalent-evaluations"):
        texts.append(EQUIVALENT_WORK)
    if any(row.over for row in study.rows):
        texts.append(OVERSPENT)
    if study.has("calibration"):
        texts.append(SHARED)
    if study.has(f"{study.judged_by}.{FIFTH}"):
        texts.append(WORST_OF)
    if study.has(EQUIVALENT):
        texts.append(IN_EULER_STEPS)
    texts += kind_notes(study)
    if any("velocity_drift" in row.traces and _averages(row) for row in study.rows):
        texts.append(AVERAGED)
    if study.processes != (1,):
        counts = " and ".join(map(str, study.processes))
        texts.append(f"{counts} processes shared the work while times were taken.")
    if study.shares_device:
        counts = " and ".join(str(count) for count in study.processes_per_device if count > 1)
        texts.append(
            f"{CROWDED} taken while {counts} processes shared a device, which slows some methods "
            "more than others: times and speedups are not comparable, and not ranked."
        )
    texts += [f"{quantity(name).title}: {why}." for name, why in missing_metrics(study).items()]
    return list(dict.fromkeys(texts))


def setup(study: Study) -> str:
    """Return what was run, in one line."""
    seeds = f" x {study.seeds} seeds" if study.seeds > 1 else ""
    call = ", ".join(f"{name} {json.dumps(value)}" for name, value in study.call.items())
    versions = ", ".join(f"{name} {'/'.join(numbers)}" for name, numbers in study.versions.items())
    return (
        f"{study.model}, {study.steps} steps"
        + (f", {call}" if call else "")
        + f"; {study.prompts} prompt{'s' if study.prompts > 1 else ''}{seeds}; "
        + f"{' and '.join(study.devices)}; {versions}."
    )


def markdown(study: Study) -> str:
    """Return the study as a page of Markdown."""
    parts = [f"# {study.name}", setup(study)]
    if study.references:
        columns = columns_of(study, study.references)
        parts += ["## References", _grid(study, study.references, columns)]
    for table in study.tables:
        columns = columns_of(study, table.rows)
        parts += [f"## {table_title(table)}", _grid(study, table.rows, columns)]
        if table.leads:
            parts.append("\n".join(f"- {text}" for text in lead_texts(table)))
    for kind_table in kind_tables(study):
        parts += [f"## {kind_table.title}", _grid(study, kind_table.rows, kind_table.columns)]
    aligned = alignments(study)
    if aligned:
        parts += ["## Alignment of cached steps (cos theta)", aligned]
    parts += ["## Notes", "\n".join(f"- {note}" for note in notes(study))]
    return "\n\n".join(parts) + "\n"


def columns_of(study: Study, rows: Sequence[Row]) -> list[Quantity]:
    """Return every quantity that any of some rows has or lacks for a reason, without sub-scores.

    Those that methods are ranked by come first.
    """
    there = {name for row in rows for name in (*row.values, *row.unmeasured)}
    columns = [q for q in study.quantities if q.name in there and not q.kind]
    return sorted(columns, key=lambda q: q.group != study.judged_by)


def alignments(study: Study) -> str | None:
    """Return the table of appendix C: how cos(theta) is spread over cached steps and samples."""
    titles = ("method", "evaluations", "steps", "mean", "> 0", "10 %", "median", "90 %")
    lines = [
        (
            row.method,
            str(row.evaluations or ""),
            str(alignment.records),
            f"{alignment.mean:.3f}",
            f"{100 * alignment.positive:.1f} %",
            *(
                f"{x:.3f}"
                for x in (alignment.percentile_10, alignment.median, alignment.percentile_90)
            ),
        )
        for row in study.rows
        for alignment in [row.alignment]
        if alignment is not None
    ]
    return markdown_table(grid(titles, lines)) if lines else None


def comma_separated(study: Study) -> str:
    """Return the study as CSV: a line a method and budget.

    Mean, low, high and rank of every quantity.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{q.name}{part}" for q in study.quantities for part in ("", ".low", ".high")]
    ranked = [q.name for q in study.quantities if q.better]
    fields = ("study", "method", "asked", "done", "failed", "unreachable", "reason")
    titles = (*fields, *columns, *(f"{name}.rank" for name in ranked))
    writer.writerow([_harmless(title) for title in titles])
    for row in (*study.references, *study.rows):
        facts = (row.method, row.evaluations, row.done, row.failed, row.unreachable, row.reason)
        estimates = [row.values.get(q.name) for q in study.quantities]
        numbers = [x for estimate in estimates for x in _interval(estimate)]
        ranks = (row.ranks.get(name) for name in ranked)
        writer.writerow([_harmless(cell) for cell in (study.name, *facts, *numbers, *ranks)])
    return file.getvalue()


def _harmless(cell: object) -> object:
    """Return a cell of CSV that no spreadsheet takes for a formula.

    Texts that begin like one get a '.
    """
    if not isinstance(cell, str):
        return cell
    return f"'{printable(cell)}" if cell.startswith(FORMULA) else printable(cell)


def _grid(study: Study, rows: Sequence[Row], columns: Sequence[Quantity]) -> str:
    """Return rows with some quantities, and what went wrong beside them."""
    troubles = any(trouble(row) for row in rows)
    titles = ["method", *(heading(q, study) for q in columns), *(["not done"] if troubles else [])]
    lines: list[list[str | Cell]] = [
        [
            label(row),
            *(cell(row, q) for q in columns),
            *([" ".join((trouble(row) or "").split())] if troubles else []),
        ]
        for row in rows
    ]
    return markdown_table(grid(titles, lines))


def _interval(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if estimate is None else (estimate.mean, estimate.low, estimate.high)


def _clear(by: Estimate) -> bool:
    """Return whether zero lies outside the interval."""
    return by.margin is not None and abs(by.mean) > by.margin


def _averages(row: Row) -> bool:
    return row.method.partition("@")[0] == "fitted"


def _identical(row: Row) -> bool:
    return any(
        quantity(name).unit == "dB" and estimate.mean >= IDENTICAL
        for name, estimate in row.values.items()
    )
