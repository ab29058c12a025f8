"""The paper's figure 2 by matplotlib: MI and DI over a run, and the steps that plans evaluate."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.atomic import writing

FORMATS = (".svg", ".png", ".pdf")
STEP = "step, from noise to data"
WIDE, NARROW = (10.0, 2.9), (4.6, 7.2)  # inches: three panels beside or below each other
STRIP = 0.28  # inches that the steps of one plan are high
PAGE = {  # what is readable on light and on dark pages
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#7d838c"
    ),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    "svg.fonttype": "none",  # text stays text
}


class Curve(NamedTuple):
    """A mean and a standard deviation over samples at every step; None where a step has none."""

    mean: Sequence[float | None]
    deviation: Sequence[float | None]


def plot_profile(profile: Profile, path: str | Path) -> Path:
    """Draw a profile into a file whose ending says the format, and return its path."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise TACacheError(f"cannot draw {target}: name it with one of {', '.join(FORMATS)}")
    with drawing() as figure_class:
        figure = figure_class(figsize=WIDE, layout="constrained")
        draw_profile(figure, profile)
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
        with writing(target) as draft:
            figure.savefig(draft, metadata=metadata, dpi=150)
    return target


def profile_svg(profile: Profile, plans: Sequence[Plan] = (), *, narrow: bool = False) -> str:
    """Return SVG text of a profile, and below it of the steps that plans evaluate, for a page.

    It has no script and names nothing outside itself. `narrow` stands the panels below each other.
    """
    width, height = NARROW if narrow else WIDE
    strips = 0.7 + STRIP * len(plans)
    with drawing(PAGE) as figure_class:
        if not plans:
            figure = upper = figure_class(figsize=(width, height), layout="constrained")
        else:
            figure = figure_class(figsize=(width, height + strips), layout="constrained")
            upper, lower = figure.subfigures(2, 1, height_ratios=(height, strips))
            _draw_strips(lower.subplots(), plans)
        draw_profile(upper, profile, narrow=narrow)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    plain = re.sub(r"<metadata>.*?</metadata>", "", whole[whole.index("<svg") :], flags=re.S)
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', plain))):
        plain = plain.replace(name, f"shape-{number}")  # matplotlib's own names differ by chance
    # The layout's last digits differ by chance, too: thousandths of a point are enough.
    return re.sub(r"\d+\.\d{4,}", lambda match: f"{float(match[0]):.3f}", plain)


def draw_profile(figure: Any, profile: Profile, *, narrow: bool = False) -> None:
    """Draw the indicators of a profile; its last step has no measurement and is left out."""
    draw_indicators(
        figure,
        {
            "direction": Curve(profile.direction[:-1], profile.direction_std[:-1]),
            "magnitude": Curve(profile.magnitude[:-1], profile.magnitude_std[:-1]),
        },
        profile.steps,
        profile.origin.model or "the host",
        profile.samples,
        narrow=narrow,
    )


def draw_indicators(
    figure: Any,
    curves: Mapping[str, Curve],
    steps: int,
    model: str,
    runs: int,
    *,
    narrow: bool = False,
) -> None:
    """Draw DI, MI and MI of the middle steps, with one standard deviation to either side.

    `curves` has the names `direction` and `magnitude`, of a run of so many steps.
    """
    panels = figure.subplots(*(3, 1) if narrow else (1, 3))
    middle = middle_steps(steps)
    for panel, name, shown, title in (
        (panels[0], "direction", range(steps), f"DI of {model}"),
        (panels[1], "magnitude", range(steps), f"MI of {model}"),
        (panels[2], "magnitude", middle, f"MI, steps {middle[0]} to {middle[-1]}"),
    ):
        colour = "C0" if name == "direction" else "C1"
        curve = _within(curves[name], shown)
        band(panel, curve, colour)
        panel.plot(*known(curve.mean), color=colour, linewidth=1.5)
        label(panel, title, "per step" if name == "direction" else "per unit of time")
    figure.suptitle(f"mean and standard deviation over {runs} runs", fontsize=9)


def middle_steps(steps: int) -> range:
    """Return the steps without the first and last fifth, which set the scale of MI."""
    edge = max(1, steps // 5)
    return range(edge, max(edge + 1, steps - 1 - edge))


def known(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """Return the steps that have a number, and their numbers."""
    there = [(n, x) for n, x in enumerate(values) if x is not None]
    return [n for n, _ in there], [x for _, x in there]


def band(panel: Any, curve: Curve, colour: str) -> None:
    """Shade one standard deviation to either side of a mean."""
    steps, means = known(curve.mean)
    _, spreads = known(curve.deviation)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    panel.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)


def label(panel: Any, title: str, unit: str) -> None:
    """Name a panel over the steps of a run, and its unit."""
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(STEP)
    panel.set_ylabel(unit)
    panel.grid(alpha=0.3)


@contextmanager
def drawing(options: Mapping[str, Any] | None = None, extra: str = "plots") -> Iterator[type[Any]]:
    """Give the class of figures that need no screen, while these options of matplotlib hold.

    `extra` is the one that installs matplotlib for the caller.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise TACacheError(f"drawing needs matplotlib: pip install 'tacache[{extra}]'") from error
    same = {"svg.hashsalt": "tacache", "font.size": 9}  # the same file every time
    with rc_context({**same, **(options or {})}):
        yield Figure


def _within(curve: Curve, steps: range) -> Curve:
    """Return the curve with numbers at these steps alone."""
    kept = ([x if n in steps else None for n, x in enumerate(values)] for values in curve)
    return Curve(*kept)


def _draw_strips(panel: Any, plans: Sequence[Plan]) -> None:
    """Draw one line of boxes a plan: a filled one evaluates the model, a pale one is rebuilt."""
    for i, plan in enumerate(plans):
        for n in range(plan.steps):
            shade = 1.0 if n in plan.anchors else 0.15
            panel.barh(i, 0.9, left=n - 0.45, height=0.7, color="C0", alpha=shade)
    several = len({plan.rule for plan in plans}) > 1
    names = [f"{p.rule} {p.evaluations}" if several else str(p.evaluations) for p in plans]
    panel.set_yticks(range(len(plans)), names)
    panel.invert_yaxis()
    panel.margins(x=0.01)
    panel.set_title("evaluated steps, by budget", fontsize=10)
    panel.set_xlabel(STEP)
    panel.spines[:].set_visible(False)
