"""Figures by matplotlib, as SVG and PNG: a registry of what can be drawn from a study.

A figure is a function from a study to a matplotlib figure, or to None where the study has nothing
for it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacache.plots import drawing
from tacache.storage.atomic import writing
from tacache_lab.report.calibration_figure import calibration
from tacache_lab.report.quantities import IDENTICAL, Quantity, quantity
from tacache_lab.report.ranking import named, study_styles
from tacache_lab.report.steps import alignment, drift, indicators
from tacache_lab.report.summary import Row, Study, Table
from tacache_lab.report.tables import heading, label, table_title

COMPARED = ("lpips", "psnr", "ssim", "drift", "equivalent-steps")
SCORED = ("score.clip-similarity", "score.following")
GREY = "#d5d8dc"
LOGARITHMIC = ("drift", "lpips", "equivalent-steps")  # metrics whose axis is
RC = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a name may have a $
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a8",
    "axes.axisbelow": True,
    "grid.color": "#e1e3e6",
    "xtick.color": "#62666d",
    "ytick.color": "#62666d",
    "axes.labelcolor": "#3a3d42",
}
Draw = Callable[[Study, type[Any]], Any]


def pareto(study: Study, figure_class: type[Any], *, over: str) -> Any:
    """Return each metric over evaluations or speedup: a line a method, ours strong and on top."""
    compared = [f"{study.judged_by}.{name}" for name in COMPARED]
    shown = [name for name in (*compared, *SCORED) if study.has(name)]
    if not shown or not study.has(over) or len(study.rows) < 2:
        return None
    columns = 2 if len(shown) == 4 else min(len(shown), 3)
    rows = -(-len(shown) // columns)
    figure = figure_class(figsize=(4.2 * columns + 1.8, 3.4 * rows + 0.3), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, name in zip(panels, shown, strict=False):
        _lines(panel, study, quantity(over), quantity(name))
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(_title(study), fontsize=10)
    return figure


def bars(study: Study, figure_class: type[Any], *, metric: str) -> Any:
    """Return one metric to the reference: a panel a budget, a bar a method, the best on top."""
    return _bar_panels(study, figure_class, f"{study.judged_by}.{metric}")


def bars_fine(study: Study, figure_class: type[Any]) -> Any:
    """Return the same to the fine grid, where methods are judged by full steps."""
    if study.judged_by == "fine":
        return None
    return _bar_panels(study, figure_class, "fine.psnr")


def _bar_panels(study: Study, figure_class: type[Any], name: str) -> Any:
    tables = [
        table
        for table in study.tables
        if table.evaluations is not None and any(name in row.values for row in table.rows)
    ]
    if not tables or not study.has(name):
        return None
    columns = min(len(tables), 3)
    longest = max(len(table.rows) for table in tables)
    rows = -(-len(tables) // columns)
    size = (4.3 * columns, rows * (0.9 + 0.23 * longest) + 0.3)
    figure = figure_class(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, table in zip(panels, tables, strict=False):
        _bars(panel, table, quantity(name), study)
    for panel in panels[len(tables) :]:
        panel.set_axis_off()
    figure.suptitle(_title(study), fontsize=10)
    return figure


FIGURES: dict[str, Draw] = {
    "pareto": partial(pareto, over="evaluations"),
    "pareto-speedup": partial(pareto, over="speedup"),
    "bars-psnr": partial(bars, metric="psnr"),
    "bars-ssim": partial(bars, metric="ssim"),
    "bars-lpips": partial(bars, metric="lpips"),
    "bars-drift": partial(bars, metric="drift"),
    "bars-psnr-fine": bars_fine,
    "drift": drift,
    "alignment": alignment,
    "indicators": indicators,
    "calibration": calibration,
}


def draw(study: Study, folder: Path) -> list[Path]:
    """Return every figure that the study has numbers for, in both formats."""
    with drawing(RC, "report") as figure_class:
        return [
            path
            for name, make in FIGURES.items()
            if (figure := make(study, figure_class)) is not None
            for path in _saved(figure, folder / f"{study.name}-{name}")
        ]


def check() -> None:
    """Refuse to begin what cannot be drawn."""
    with drawing(RC, "report"):
        pass


def _saved(figure: Any, stem: Path) -> Iterator[Path]:
    figure.draw_without_rendering()  # lays it out, once for both
    figure.set_layout_engine("none")
    for suffix, metadata in ((".svg", {"Date": None}), (".png", {"Software": None})):
        target = stem.with_name(stem.name + suffix)
        with writing(target) as draft:
            figure.savefig(
                draft, metadata=metadata, dpi=150, bbox_inches="tight", facecolor="white"
            )
        yield target


def _lines(panel: Any, study: Study, across: Quantity, up: Quantity) -> None:
    known, shown = study_styles(study), named(study)
    for method in shown:
        points = sorted(_points(study.rows, method, across.name, up))
        style = known[method]
        x, y, margins = zip(*points, strict=True) if points else ((), (), ())
        panel.errorbar(
            x,
            y,
            yerr=margins if style.ours and points else None,
            color=style.colour,
            marker=style.mark,
            label=method,
            linewidth=2.2 if style.ours else 1.1,
            markersize=5.5 if style.ours else 4.5,
            elinewidth=0.9,
            capsize=2,
            alpha=1.0 if style.ours else 0.85,
            zorder=3 if style.ours else 2,
        )
    _grey(panel, study, [method for method in study.methods if method not in shown], across, up)
    arrow = {"higher": " \N{UPWARDS ARROW}", "lower": " \N{DOWNWARDS ARROW}"}
    panel.set_title(heading(up, study) + arrow.get(up.better or "", ""), fontsize=10)
    panel.set_xlabel(_across_title(study, across))
    drawn = [p[0] for m in study.methods for p in _points(study.rows, m, across.name, up)]
    _log_ticks(panel, drawn)
    if up.metric in LOGARITHMIC and drawn:  # where all are equal to the full run there is no point
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
    else:
        panel.ticklabel_format(axis="y", useOffset=False)
    panel.grid(which="major")


def _grey(panel: Any, study: Study, methods: Sequence[str], across: Quantity, up: Quantity) -> None:
    """Draw methods that are not named in grey, so that nothing is hidden."""
    for i, method in enumerate(methods):
        points = sorted(_points(study.rows, method, across.name, up))
        panel.plot(
            [x for x, _, _ in points],
            [y for _, y, _ in points],
            color=GREY,
            marker=".",
            linewidth=0.8,
            zorder=1,
            label=f"{len(methods)} others" if i == 0 else None,
        )


def _across_title(study: Study, across: Quantity) -> str:
    """Return the title of the axis; a cache inside the model stands at equivalent evaluations."""
    if across.name == "speedup":
        return f"speedup{' (not comparable: a shared device)' if study.shares_device else ''}"
    equivalent = ", or equivalent ones" if study.has("equivalent-evaluations") else ""
    return f"evaluations of the model{equivalent}"


def _points(
    rows: Sequence[Row], method: str, across: str, up: Quantity
) -> list[tuple[float, float, float]]:
    """Return the points of a method, one a budget, without results equal to the reference."""
    return [
        (x.mean, y.mean, y.margin or 0.0)
        for row in rows
        if row.method == method
        for x in [row.cost if across == "evaluations" else row.values.get(across)]
        for y in [row.values.get(up.name)]
        if x is not None and y is not None and not (up.unit == "dB" and y.mean >= IDENTICAL)
        if y.mean > 0 or up.metric not in LOGARITHMIC
    ]


def _log_ticks(panel: Any, values: Sequence[float]) -> None:
    """Make an axis logarithmic, with plain round numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    panel.set_xscale("log")
    candidates = (1, 1.5, 2, 3, 4, 5, 7, 10, 13, 17, 25, 35, 50, 70, 100, 200, 400)
    low, high = min(values, default=1.0) * 0.95, max(values, default=2.0) * 1.05
    panel.xaxis.set_major_locator(FixedLocator([x for x in candidates if low <= x <= high]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _bars(panel: Any, table: Table, shown: Quantity, study: Study) -> None:
    known = study_styles(study)
    rows = [row for row in table.rows if shown.name in row.values]
    rows.sort(key=lambda row: row.values[shown.name].mean, reverse=shown.better == "lower")
    values = [row.values[shown.name] for row in rows]
    panel.barh(
        range(len(rows)),
        [min(value.mean, IDENTICAL) for value in values],
        xerr=[value.margin or 0.0 for value in values],
        color=[known[row.method].colour if row.ours else "#c8ccd2" for row in rows],
        error_kw={"elinewidth": 0.8, "ecolor": "#3a3d42", "capsize": 1.5},
        height=0.72,
    )
    for at, value in enumerate(values):
        panel.annotate(
            f" {value.mean:.{shown.digits}f}",
            (value.mean + (value.margin or 0.0), at),
            va="center",
            fontsize=7.5,
            color="#3a3d42",
        )
    panel.set_yticks(range(len(rows)), [label(row) for row in rows])
    for text, row in zip(panel.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row.ours else "normal")
        text.set_color("#1c1d1f" if row.ours else "#62666d")
    panel.tick_params(axis="y", length=0)
    panel.margins(x=0.16, y=0.02)
    panel.set_xlim(left=min(0.0, *(value.mean for value in values)))
    panel.locator_params(axis="x", nbins=5)
    panel.set_title(f"{heading(shown, study)}, {table_title(table)}", fontsize=10)
    panel.grid(axis="x")


def _title(study: Study) -> str:
    return (
        f"{study.model}, {study.steps} steps: means over {study.samples} samples "
        "with 95 % confidence intervals"
    )
