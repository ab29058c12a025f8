"""Figures of what happens step by step: drift, its direction (appendix C), and MI and DI."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from tacache.plots import WIDE, Curve, band, draw_indicators, known, label
from tacache_lab.report.ranking import study_styles
from tacache_lab.report.summary import Row, Study
from tacache_lab.report.tables import table_title
from tacache_lab.report.traces import CACHED, EVALUATED, Trace


def drift(study: Study, figure_class: type[Any]) -> Any:
    """Draw state drift over the run, and velocity drift of cached and evaluated steps apart."""
    shown = _by_budget(study, CACHED)
    if not shown:
        return None
    figure = figure_class(figsize=(12, 2.8 * len(shown) + 0.3), layout="constrained")
    panels = figure.subplots(len(shown), 3, squeeze=False)
    for row_of_panels, (title, rows) in zip(panels, shown, strict=True):
        for row in rows:
            _drift(row_of_panels, row, study)
        wide = _window(study.steps)
        titles = ("state drift", f"velocity, cached (mean of {wide} steps)", "velocity, evaluated")
        for panel, what in zip(row_of_panels, titles, strict=True):
            label(panel, f"{what}: {title}", "relative to full steps")
            panel.set_ylim(bottom=0)
    _legend(figure, panels.flat)
    figure.suptitle(
        f"{study.model}: drift from the full-step run, mean of {study.samples} samples", fontsize=10
    )
    return figure


def alignment(study: Study, figure_class: type[Any]) -> Any:
    """Return cos(theta) between the historical and the true direction at cached steps."""
    shown = _by_budget(study, "cos_theta")
    if not shown:
        return None
    figure = figure_class(figsize=(4 * len(shown) + 1.2, 3), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)
    for panel, (title, rows) in zip(panels.flat, shown, strict=True):
        for row in rows:
            style = study_styles(study)[row.method]
            line = "-" if row.ours else "--"
            band(panel, _curve(row.traces["cos_theta"]), style.colour)
            panel.plot(
                *known(row.traces["cos_theta"].mean),
                line,
                color=style.colour,
                linewidth=1.4,
                marker=".",
                label=row.method,
            )
        panel.axhline(0, color="#9aa0a8", linewidth=0.8)
        label(panel, title, "cos theta")
    _legend(figure, panels.flat)
    figure.suptitle(
        f"{study.model}: alignment of cached steps, mean of {study.samples} samples", fontsize=10
    )
    return figure


def indicators(study: Study, figure_class: type[Any]) -> Any:
    """Return MI and DI of the full-step runs, with one standard deviation to either side."""
    full = [row for row in study.references if {"magnitude", "direction"} <= row.traces.keys()]
    if not full:
        return None
    figure = figure_class(figsize=WIDE, layout="constrained")
    curves = {name: _curve(full[0].traces[name]) for name in ("magnitude", "direction")}
    draw_indicators(figure, curves, study.steps, study.model, study.samples)
    return figure


def _by_budget(study: Study, trace: str) -> list[tuple[str, list[Row]]]:
    """Return rows that have numbers of a trace, under the title of their budget."""
    by_title = [
        (table_title(table), [row for row in table.rows if _numbers(row, trace)])
        for table in study.tables
    ]
    return [(title, rows) for title, rows in by_title if rows]


def _numbers(row: Row, trace: str) -> bool:
    return trace in row.traces and any(x is not None for x in row.traces[trace].mean)


def _drift(panels: Sequence[Any], row: Row, study: Study) -> None:
    """Draw one method in all panels."""
    state, cached, evaluated = panels
    line: dict[str, Any] = {
        "color": study_styles(study)[row.method].colour,
        "linewidth": 2.0 if row.ours else 1.1,
        "zorder": 3 if row.ours else 2,
        "label": row.method,
    }
    if "state_drift" in row.traces:
        if row.ours:
            band(state, _curve(row.traces["state_drift"]), line["color"])
        state.plot(*known(row.traces["state_drift"].mean), **line)
    steps, values = known(row.traces[CACHED].mean)
    cached.plot(steps, _rolling(values, _window(study.steps)), **line)
    evaluated.plot(*known(row.traces[EVALUATED].mean), "o-", markersize=3.5, **line)


def _window(steps: int) -> int:
    """Return how many cached steps a running mean covers: some intervals, to show their level."""
    return max(3, steps // 5)


def _rolling(values: Sequence[float], width: int) -> list[float]:
    """Return means over neighbours, fewer at the ends."""
    half = width // 2
    return [fmean(values[max(0, n - half) : n + half + 1]) for n in range(len(values))]


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """Name every method once, beside the panels."""
    handles = {
        name: handle
        for panel in panels
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)


def _curve(trace: Trace) -> Curve:
    return Curve(trace.mean, trace.deviation)
