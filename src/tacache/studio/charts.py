"""Charts as SVG text for a page: no script, nothing fetched, colours of the page around them.

A point shows its sentence while the pointer is over it or while it has the keyboard's focus.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from tacache.plan import Plan
from tacache.plots import STEP, Curve, known, middle_steps
from tacache.profile import Profile
from tacache.studio.model import full_steps
from tacache.studio.psnr_scale import legend
from tacache.studio.shelf import Shelved

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 36
TICKS = 4


class Dot(NamedTuple):
    """A point of a chart with the sentence that it shows."""

    x: float
    y: float
    sentence: str
    kind: str = "dot"


class Frame:
    """The place of numbers on a chart."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x_low, self.x_high = _room(xs)
        self.y_low, self.y_high = _room(ys)

    def x(self, value: float) -> float:
        """Return where a number lies from left to right."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return where a number lies from top to bottom."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_label: str, y_label: str) -> str:
        """Return lines, numbers and names of both axes."""
        parts = []
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
                         f'y2="{y:.1f}"/>')  # fmt: skip
            parts.append(_text(LEFT - 6, y + 4, f"{value:g}", "end"))
        for value in ticks(self.x_low, self.x_high):
            parts.append(_text(self.x(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle"))
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle", "name"))
        parts.append(_text(LEFT, TOP - 3, y_label, "start", "name"))
        return "".join(parts)


def profile_charts(profile: Profile) -> str:
    """Return DI, MI, and MI without the first and last steps, each with its spread over runs."""
    direction = Curve(profile.direction[:-1], profile.direction_std[:-1])
    magnitude = Curve(profile.magnitude[:-1], profile.magnitude_std[:-1])
    middle = middle_steps(profile.steps)
    inner = Curve(
        *([x if n in middle else None for n, x in enumerate(values)] for values in magnitude)
    )
    charts = (
        ("DI: how the direction turns", direction, "per step", "direction"),
        ("MI: how the size changes", magnitude, "per unit of time", "magnitude"),
        ("MI of the middle steps", inner, "per unit of time", "magnitude"),
    )
    return "".join(curve_chart(*chart, profile.samples) for chart in charts)


def curve_chart(title: str, curve: Curve, unit: str, kind: str, runs: int) -> str:
    """Return a mean over the steps of runs, with one standard deviation to either side."""
    steps, means = known(curve.mean)
    spreads = known(curve.deviation)[1]
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    frame = Frame(steps, [*low, *high])
    band = [*zip(steps, high, strict=True), *reversed(list(zip(steps, low, strict=True)))]
    line = zip(steps, means, strict=True)
    dots = [
        Dot(n, mean, f"step {n}: {mean:.3g} ± {spread:.2g}", "quiet")
        for n, mean, spread in zip(steps, means, spreads, strict=True)
    ]
    return _chart(
        title,
        frame,
        frame.axes(STEP, unit)
        + f'<polygon class="band {kind}" points="{_places(frame, band)}"/>'
        + f'<polyline class="curve {kind}" points="{_places(frame, line)}"/>',
        dots,
        [
            (f"line {kind}", f"mean of {runs} runs"),
            (f"band {kind}", "one standard deviation to either side"),
        ],
    )


def frontier_chart(plans: Sequence[Shelved]) -> str:
    """Return the fidelity of stored plans over speedup; a sentence where none is certified."""
    dots = []
    for shelved in plans:
        certificate = shelved.plan.certificate
        if certificate is None or certificate.psnr is None:
            continue
        sentence = f"{shelved.title}: {certificate.psnr:.1f} dB, drift {certificate.drift:.3f}"
        if certificate.equivalent_steps is not None:
            sentence += f", as near to the flow as {certificate.equivalent_steps:.0f} Euler steps"
        dots.append(Dot(shelved.plan.speedup, certificate.psnr, sentence, shelved.target))
    if not dots:
        return _sentence("No stored plan has been measured yet: learn one under Make.")
    frame = Frame([dot.x for dot in dots], [dot.y for dot in dots])
    axes = frame.axes("steps per evaluation", "PSNR to full steps, dB")
    names = {"run": "fitted to the full run", "flow": "fitted to the flow"}
    kinds = [
        (f"dot {kind}", name) for kind, name in names.items() if any(d.kind == kind for d in dots)
    ]
    return _chart("Plans that ship or are stored", frame, axes, dots, kinds)


def drift_chart(drift: Sequence[tuple[int, float]]) -> str:
    """Return how far the last run was from the full-step one, after each of its steps."""
    if not drift:
        return _sentence("Draw a picture under Try by a plan: its drift appears here.")
    dots = [Dot(n, value, f"after step {n}: {value:.4f}", "drift") for n, value in drift]
    frame = Frame([0, *(n for n, _ in drift)], [0.0, *(value for _, value in drift)])
    line = f'<polyline class="curve drift" points="{_places(frame, drift)}"/>'
    axes = frame.axes(STEP, "relative distance to full steps")
    entry = ("line drift", "accelerated run: distance of its state to that of the full run")
    return _chart("Drift of the last run", frame, axes + line, dots, [entry])


def strip(plan: Plan) -> str:
    """Return a box for each step: filled where the model is evaluated, pale where it is not.

    A plan with times of its own fills the steps within which these lie.
    """
    grid = plan.times if plan.grid is None else plan.grid
    levels = [plan.times[n] for n in plan.anchors]
    parts = list(enumerate(pairwise(grid)))
    evaluated = [n for n, (t, t_next) in parts if any(t >= level > t_next for level in levels)]
    boxes = "".join(
        f'<i class="{"on" if n in evaluated else "off"}" title="step {n}, t = {t:.3f}"></i>'
        for n, (t, _) in parts
    )
    words = f"Of {full_steps(plan)} steps these are evaluated: {', '.join(map(str, evaluated))}"
    entries = [("on", "the model runs"), ("off", "rebuilt from the steps before")]
    return f'<div class="strip" role="img" aria-label="{words}">{boxes}</div>{legend(entries)}'


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers within a range."""
    raw = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    multiples = (n * step for n in range(first, first + 2 * TICKS + 2))
    return [round(value, 12) for value in multiples if value <= high + 1e-9 * step]


def _chart(
    title: str, frame: Frame, content: str, dots: Sequence[Dot], entries: Sequence[tuple[str, str]]
) -> str:
    """Return a chart with its title above and its legend below."""
    points = "".join(_point(frame, dot) for dot in dots)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{escape(title)}">'
        f"{content}{points}</svg>{legend(entries)}</figure>"
    )


def _point(frame: Frame, dot: Dot) -> str:
    """Return a dot; its sentence stands at the top of the chart, where it always has room."""
    x, y = frame.x(dot.x), frame.y(dot.y)
    reach = "" if dot.kind == "quiet" else ' tabindex="0"'
    sentence = escape(dot.sentence)
    lines = _wrapped(dot.sentence)
    label = "".join(
        f'<tspan x="{WIDTH - RIGHT - 4}" dy="{14 if i else 0}">{escape(line)}</tspan>'
        for i, line in enumerate(lines)
    )
    width = 6.3 * max(map(len, lines)) + 12
    box = (
        f'<rect class="note" x="{WIDTH - RIGHT - width:.0f}" y="{TOP}" width="{width:.0f}" '
        f'height="{14 * len(lines) + 8}" rx="4"/>'
    )
    return (
        f'<g class="point {dot.kind}"{reach} role="img" aria-label="{sentence}">'
        f'<circle class="target" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
        f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
        f'<g class="told">{box}<text text-anchor="end" y="{TOP + 15}">{label}</text></g></g>'
    )


def _wrapped(sentence: str, width: int = 48) -> list[str]:
    return textwrap.wrap(sentence, width)[:4]


def _room(values: Sequence[float]) -> tuple[float, float]:
    """Return a range around numbers, also where they are all the same."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or max(abs(high) * 0.1, 0.5)
    return (low if low == 0 else low - margin), high + margin


def _places(frame: Frame, points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _sentence(words: str) -> str:
    return f'<p class="hint">{escape(words)}</p>'
