"""The figure of table 6: what more calibration prompts, or those of another source, give."""

from typing import Any, NamedTuple

from tacache_lab.report.confidence import Estimate
from tacache_lab.report.quantities import quantity
from tacache_lab.report.ranking import styles
from tacache_lab.report.summary import Study, Table
from tacache_lab.report.tables import heading, table_title


class CalibrationPoint(NamedTuple):
    """A method made ready on so many prompts of a source; none: the benchmark's own."""

    method: str
    source: str
    prompts: int
    value: Estimate


def calibration(study: Study, figure_class: type[Any]) -> Any:
    """Return the first headline over calibration prompts, a panel a budget."""
    name = next((name for name in study.headlines if study.has(name)), None)
    by_table = [(table, _points(table, name)) for table in study.tables if name is not None]
    shown = [(table, points) for table, points in by_table if len({p.prompts for p in points}) > 1]
    if name is None or not shown:
        return None
    figure = figure_class(figsize=(3.6 * len(shown) + 1.8, 3.2), layout="constrained")
    panels = list(figure.subplots(1, len(shown), squeeze=False).flat)
    known = styles(list(dict.fromkeys(p.method for _, points in shown for p in points)))
    for panel, (table, points) in zip(panels, shown, strict=True):
        for method in dict.fromkeys(point.method for point in points):
            _line(panel, [p for p in points if p.method == method], known[method].colour)
        panel.set_title(f"{heading(quantity(name), study)}, {table_title(table)}", fontsize=10)
        panel.set_xlabel("calibration prompts")
        panel.set_xticks(sorted({point.prompts for point in points}))
        panel.ticklabel_format(axis="y", useOffset=False)
        panel.margins(x=0.12)
        panel.grid()
    handles, labels = panels[0].get_legend_handles_labels()
    named = dict(sorted(zip(labels, handles, strict=True), key=lambda pair: pair[0]))
    figure.legend(named.values(), named.keys(), loc="outside right center", frameon=False)
    figure.suptitle(f"{study.model}: means over {study.samples} samples", fontsize=10)
    return figure


def _points(table: Table, name: str) -> list[CalibrationPoint]:
    """Return methods that say what they were made ready on, as tasu@30 and tasu@FILE:30 do."""
    points = []
    for row in table.rows:
        method, _, tuned_on = row.method.partition("@")
        source, _, number = tuned_on.rpartition(":")
        if number.isdigit() and name in row.values:
            points.append(CalibrationPoint(method, source, int(number), row.values[name]))
    return sorted(points, key=lambda point: point[:3])


def _line(panel: Any, points: list[CalibrationPoint], colour: str) -> None:
    """Draw one method: its own prompts as a line, those of other sources as open marks."""
    own = [point for point in points if not point.source]
    panel.errorbar(
        [point.prompts for point in own],
        [point.value.mean for point in own],
        yerr=[point.value.margin or 0.0 for point in own],
        color=colour,
        marker="o",
        linewidth=1.8,
        elinewidth=0.9,
        capsize=2,
        label=points[0].method,
    )
    for source in dict.fromkeys(point.source for point in points if point.source):
        there = [point for point in points if point.source == source]
        panel.plot(
            [point.prompts for point in there],
            [point.value.mean for point in there],
            "D",
            color=colour,
            markerfacecolor="white",
            markersize=7,
            label=f"{points[0].method}, {source} prompts",
        )
