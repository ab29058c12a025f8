"""Figures of what happens step by step: drift, its direction (appendix C), and MI and DI."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from tacache.lab.report.standing import study_styles
from tacache.lab.report.summary import Row, Study
from tacache.lab.report.tables import table_title
from tacache.lab.report.traces import CACHED, EVALUATED, Trace

STEP = "step, from noise to data"


def drift(study: Study, figure_class: type[Any]) -> Any:
    """State drift over the run, and velocity drift of cached and of evaluated steps apart."""
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
            _labelled(panel, f"{what}: {title}", "relative to full steps")
            panel.set_ylim(bottom=0)
    _legend(figure, panels.flat)
    figure.suptitle(
        f"{study.model}: drift from the full-step run, mean of {study.samples} samples", fontsize=10
    )
    return figure


def alignment(study: Study, figure_class: type[Any]) -> Any:
    """cos(theta) between the historical and the true direction at cached steps."""
    shown = _by_budget(study, "cos_theta")
    if not shown:
        return None
    figure = figure_class(figsize=(4 * len(shown) + 1.2, 3), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)
    for panel, (title, rows) in zip(panels.flat, shown, strict=True):
        for row in rows:
            style = study_styles(study)[row.method]
            line = "-" if row.ours else "--"
            _band(panel, row.traces["cos_theta"], style.colour)
            panel.plot(
                *_line(row.traces["cos_theta"].mean),
                line,
                color=style.colour,
                linewidth=1.4,
                marker=".",
                label=row.method,
            )
        panel.axhline(0, color="#9aa0a8", linewidth=0.8)
        _labelled(panel, title, "cos theta")
    _legend(figure, panels.flat)
    figure.suptitle(
        f"{study.model}: alignment of cached steps, mean of {study.samples} samples", fontsize=10
    )
    return figure


def indicators(study: Study, figure_class: type[Any]) -> Any:
    """MI and DI of the full-step runs, with one standard deviation to either side."""
    full = [row for row in study.references if {"magnitude", "direction"} <= row.traces.keys()]
    if not full:
        return None
    found = full[0].traces
    figure = figure_class(figsize=(10, 2.9), layout="constrained")
    panels = figure.subplots(1, 3)
    edge = max(1, study.steps // 5)
    for panel, name, title, cut in (
        (panels[0], "direction", f"DI of {study.model}", 0),
        (panels[1], "magnitude", f"MI of {study.model}", 0),
        (panels[2], "magnitude", f"MI, steps {edge} to {study.steps - 1 - edge}", edge),
    ):
        trace, colour = _middle(found[name], cut), "#2f6fd0" if name == "direction" else "#d1495b"
        _band(panel, trace, colour)
        panel.plot(*_line(trace.mean), color=colour, linewidth=1.6)
        _labelled(panel, title, "per step" if name == "direction" else "per unit of time")
    figure.suptitle(f"mean and standard deviation over {study.samples} runs", fontsize=9)
    return figure


def _by_budget(study: Study, trace: str) -> list[tuple[str, list[Row]]]:
    """Rows that have numbers of a trace, under the title of their budget."""
    found = [
        (table_title(table), [row for row in table.rows if _numbers(row, trace)])
        for table in study.tables
    ]
    return [(title, rows) for title, rows in found if rows]


def _numbers(row: Row, trace: str) -> bool:
    return trace in row.traces and any(x is not None for x in row.traces[trace].mean)


def _drift(panels: Sequence[Any], row: Row, study: Study) -> None:
    """One method in all panels."""
    state, cached, evaluated = panels
    line: dict[str, Any] = {
        "color": study_styles(study)[row.method].colour,
        "linewidth": 2.0 if row.ours else 1.1,
        "zorder": 3 if row.ours else 2,
        "label": row.method,
    }
    if "state_drift" in row.traces:
        if row.ours:
            _band(state, row.traces["state_drift"], line["color"])
        state.plot(*_line(row.traces["state_drift"].mean), **line)
    steps, values = _line(row.traces[CACHED].mean)
    cached.plot(steps, _rolling(values, _window(study.steps)), **line)
    evaluated.plot(*_line(row.traces[EVALUATED].mean), "o-", markersize=3.5, **line)


def _window(steps: int) -> int:
    """Over how many cached steps a mean runs: some intervals, so that it shows their level."""
    return max(3, steps // 5)


def _rolling(values: Sequence[float], width: int) -> list[float]:
    """Means over neighbours, fewer at the ends."""
    half = width // 2
    return [fmean(values[max(0, n - half) : n + half + 1]) for n in range(len(values))]


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """Every method once, beside the panels."""
    found = {
        name: handle
        for panel in panels
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(found.values(), found.keys(), loc="outside right center", frameon=False)


def _line(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """The steps that have a number, and their numbers."""
    there = [(n, x) for n, x in enumerate(values) if x is not None]
    return [n for n, _ in there], [x for _, x in there]


def _band(panel: Any, trace: Trace, colour: str) -> None:
    """One standard deviation to either side."""
    steps, means = _line(trace.mean)
    _, spreads = _line(trace.deviation)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    panel.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)


def _middle(trace: Trace, cut: int) -> Trace:
    """Without the first and last steps, which set the scale."""

    def kept(values: Sequence[float | None]) -> tuple[float | None, ...]:
        return tuple(x if cut <= n < len(values) - cut else None for n, x in enumerate(values))

    return Trace(mean=kept(trace.mean), deviation=kept(trace.deviation)) if cut else trace


def _labelled(panel: Any, title: str, unit: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(STEP)
    panel.set_ylabel(unit)
    panel.locator_params(axis="x", integer=True)
    panel.grid()
