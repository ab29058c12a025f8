"""The demo as one page: what was drawn, numbers, curves and anchors; nothing is fetched."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tacache.errors import HostError
from tacache.lab.demo.run import Budget, ModelDemo, Picture
from tacache.lab.films import Film, film
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.atomic import write_atomically

WIDTHS = (1080, 380)  # of the drawing, for screens and for telephones
LEFT, RIGHT, TOP, HEIGHT = 56, 10, 8, 150
STRIP, GAP = 16, 8


class Tick(NamedTuple):
    """A place on an axis and what stands there."""

    at: float
    label: str


class Step(NamedTuple):
    """A column of a drawing and what it says when pointed at; evaluated ones are filled."""

    x: float
    width: float
    title: str
    evaluated: bool = True


class Curve(NamedTuple):
    """A mean with its spread, as SVG path data."""

    name: str
    line: str
    band: str
    ticks: list[Tick]
    steps: list[Step]


class Strip(NamedTuple):
    """One budget's run, step by step."""

    label: str
    steps: list[Step]


class Drawing(NamedTuple):
    """Curves over strips of one width, on one axis of steps."""

    width: int
    curves: list[Curve]
    strips: list[Strip]
    ticks: list[Tick]


class Shown(NamedTuple):
    """A picture as a data address, and the film that it is where it moves."""

    address: str
    film: Film | None


class Row(NamedTuple):
    """One prompt: its pictures by budget, full steps first."""

    prompt: str
    pictures: list[tuple[Picture, Shown]]


def write_page(made: ModelDemo, folder: Path) -> Path:
    """Write index.html beside the demo's files; everything it shows is inside."""
    target = folder / "index.html"
    write_atomically(target, page(made, folder))
    return target


def page(made: ModelDemo, folder: Path) -> str:
    """The page's text, from the demo's record and the files it names."""
    try:
        from jinja2 import Environment, PackageLoader
    except ModuleNotFoundError as error:
        raise HostError("the page needs: pip install 'tacache[demo]'") from error
    profile = Profile.load(folder / made.profile)
    plans = [Plan.load(folder / budget.plan) for budget in made.budgets if budget.plan]
    environment = Environment(
        loader=PackageLoader("tacache.lab.demo"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        made=made,
        best=best_of(made.budgets),
        profile=profile,
        rows=rows_of(made, folder),
        drawings=[drawing(profile, plans, width) for width in WIDTHS],
        geometry={"left": LEFT, "right": RIGHT, "top": TOP, "height": HEIGHT, "strip": STRIP},
    )


def best_of(budgets: Sequence[Budget]) -> Budget:
    """The fastest budget, for the page's first sentence."""
    return min(budgets, key=lambda budget: budget.evaluations)


def rows_of(made: ModelDemo, folder: Path) -> list[Row]:
    """The pictures by prompt; they lie in the record budget by budget."""
    count = len(made.prompts)
    return [
        Row(prompt, [(one, shown(folder / one.file)) for one in made.pictures[i::count]])
        for i, prompt in enumerate(made.prompts)
    ]


def shown(file: Path) -> Shown:
    """A picture, or a clip's film, as an address that needs no file."""
    moving = film(file)
    content = file.read_bytes() if moving is None else moving.content
    kind = file.suffix[1:] if moving is None else "png"
    return Shown(f"data:image/{kind};base64,{base64.b64encode(content).decode()}", moving)


def drawing(profile: Profile, plans: Sequence[Plan], width: int) -> Drawing:
    """Both indicators and every plan's strip, on one axis."""
    column = (width - LEFT - RIGHT) / profile.steps
    every = 10 if width > 500 or profile.steps <= 50 else 20
    ticks = [
        Tick(LEFT + (n + 0.5) * column, str(n))
        for n in range(0, profile.steps, every if profile.steps > 12 else 1)
    ]
    curves = [
        curve("MI", profile, profile.magnitude, profile.magnitude_std, column),
        curve("DI", profile, profile.direction, profile.direction_std, column),
    ]
    strips = [strip(plan, column) for plan in plans]
    return Drawing(width, curves, strips, ticks)


def curve(
    name: str, profile: Profile, mean: Sequence[float], spread: Sequence[float], column: float
) -> Curve:
    """One indicator over the steps, with a band of one standard deviation to either side."""
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    if min(mean) >= 0:
        low = [max(value, 0.0) for value in low]
    values = nice_ticks(min(low), max(high))
    bottom, top = min(values[0], *low), max(values[-1], *high)

    def points(heights: Sequence[float]) -> list[str]:
        return [
            f"{LEFT + (n + 0.5) * column:.1f},{TOP + HEIGHT * (top - value) / (top - bottom):.1f}"
            for n, value in enumerate(heights)
        ]

    return Curve(
        name,
        line="M" + "L".join(points(mean)),
        band="M" + "L".join([*points(high), *reversed(points(low))]) + "Z",
        ticks=[Tick(TOP + HEIGHT * (top - v) / (top - bottom), f"{v:.6g}") for v in values],
        steps=[
            Step(LEFT + n * column, column, f"step {n}, t = {t:.3f}: {name} {m:.4g} ± {s:.2g}")
            for n, (t, m, s) in enumerate(zip(profile.times[:-1], mean, spread, strict=True))
        ],
    )


def strip(plan: Plan, column: float) -> Strip:
    """The run of a plan: a filled column where the model is evaluated."""
    names = ("reconstructed", "evaluated")
    return Strip(
        str(plan.evaluations),
        [
            Step(LEFT + n * column, column, f"step {n}: {names[n in plan.anchors]}", n in anchors)
            for anchors in [set(plan.anchors)]
            for n in range(plan.steps)
        ],
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / count))
    size = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= count)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(n * size, 12) for n in range(first, max(last, first + 1) + 1)]
