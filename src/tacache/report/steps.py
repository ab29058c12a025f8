"""Figures of what happens step by step: drift, its direction (appendix C), and MI and DI."""

from collections.abc import Sequence
from typing import Any

from tacache.report.standing import study_styles
from tacache.report.style import styles
from tacache.report.summary import Row, Study
from tacache.report.traces import Trace

STEP = "step, from noise to data"


def drift(study: Study, figure_class: type[Any]) -> Any:
    """State and velocity drift over the run: dots are evaluated steps, lines all of them."""
    tables = [
        (table.evaluations, [row for row in table.rows if "velocity_drift" in row.traces])
        for table in study.tables
    ]
    shown = [(budget, rows) for budget, rows in tables if rows]
    if not shown:
        return None
    figure = figure_class(figsize=(9.5, 2.9 * len(shown) + 0.3), layout="constrained")
    panels = figure.subplots(len(shown), 2, squeeze=False)
    for (state, velocity), (budget, rows) in zip(panels, shown, strict=True):
        title = f"{budget} evaluations" if budget else "own budgets"
        for row in rows:
            _drift(state, velocity, row, study)
        for panel, what in ((state, "state drift"), (velocity, "velocity drift")):
            _labelled(panel, f"{what}, {title}", "relative to full steps")
        velocity.plot([], [], "o", color="#62666d", markersize=3.5, label="evaluated")
        velocity.legend(fontsize=7.5, frameon=False)
    figure.suptitle(
        f"{study.model}: drift from the full-step run, mean of {study.samples} samples", fontsize=10
    )
    return figure


def alignment(study: Study, figure_class: type[Any]) -> Any:
    """cos(theta) between the historical and the true direction at cached steps."""
    rows = [row for row in study.rows if row.alignment is not None]
    if not rows:
        return None
    known = styles([_name(row) for row in rows])
    figure = figure_class(figsize=(7, 3.2), layout="constrained")
    panel = figure.subplots()
    for row in rows:
        trace, colour = row.traces["cos_theta"], known[_name(row)].colour
        _band(panel, trace, colour)
        panel.plot(*_line(trace.mean), ".-", color=colour, linewidth=1.2, label=_name(row))
    panel.axhline(0, color="#9aa0a8", linewidth=0.8)
    _labelled(panel, f"{study.model}: alignment of cached steps", "cos theta")
    panel.legend(fontsize=7.5, frameon=False)
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


def _drift(state: Any, velocity: Any, row: Row, study: Study) -> None:
    """One method in both panels; cached steps are the line, evaluated ones dots on it."""
    colour = study_styles(study)[row.method].colour
    width = 2.0 if row.ours else 1.1
    states = row.traces.get("state_drift")
    if states is not None:
        if row.ours:
            _band(state, states, colour)
        state.plot(*_line(states.mean), color=colour, linewidth=width)
    found, marks = row.traces["velocity_drift"], row.traces.get("evaluated")
    velocity.plot(*_line(found.mean), color=colour, linewidth=width, label=row.method)
    if marks is not None:
        often = [mark is not None and mark >= 0.5 for mark in marks.mean]
        kept = [x if here else None for x, here in zip(found.mean, often, strict=False)]
        velocity.plot(*_line(kept), "o", color=colour, markersize=3.5)


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


def _name(row: Row) -> str:
    return f"{row.method}, {row.evaluations}" if row.evaluations else row.method
