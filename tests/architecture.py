"""Draw the house from its imports: `python -m tests.architecture` writes the drawing of the docs.

A band is a layer of `tests/test_imports.py`, a box a folder or the single modules of a layer. An
arrow says that the upper box imports from the lower one; what follows from other arrows is left
out, so that the drawing can be read. So is the package itself, which only passes names on, and
the ground as what boxes above the core import: everything stands on it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.test_imports import LAYERS, MODULES, imported, rank_of

DRAWING = Path(__file__).parent.parent / "docs" / "figures" / "architecture.svg"
WIDTH, MARGIN, LEFT = 1120, 16, 104  # of the page, around all, for the names of layers
GAP, BAND_GAP, ROW_GAP = 22, 26, 34
LINE, TITLE, PADDING = 15, 19, 8  # heights of a line and a title, and the room around text
CORNER = 14  # where no arrow begins or ends
CHARACTER = 6.3  # the width of one, in the small type
COLOURS = {
    "ground": "#eceff1", "core": "#e3f2fd", "fitting": "#e8f5e9", "hosts": "#fff8e1",
    "package": "#f3e5f5", "lab": "#fbe9e7", "commands": "#eceff1",
}  # fmt: skip
OTHER = "#f5f5f5"  # the colour of a layer that has none of its own
FONT = "font-family='Helvetica, Arial, sans-serif'"

Graph = Mapping[str, set[str]]


class Box(NamedTuple):
    """A folder, or the single modules of a layer."""

    name: str
    layer: int
    modules: tuple[str, ...]


class Placed(NamedTuple):
    """A box with its place on the page."""

    box: Box
    lines: list[str]
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The horizontal middle."""
        return self.x + self.width / 2


def box_name(module: str) -> str:
    """The box of a module: its folder (one further down in the lab), or its layer."""
    folder = ".".join(module.split(".")[: 2 if module.startswith("lab.") else 1])
    layer = list(LAYERS)[rank_of(module)]
    if module == "__main__":
        return "cli"  # a line that calls it
    if MODULES[folder].name != "__init__.py":
        return "lab" if folder.startswith("lab.") else layer
    name = folder.replace(".", "/")
    return name if rank_of(folder) == rank_of(module) else f"{name} ({layer})"


def boxes() -> dict[str, Box]:
    """All boxes by name, with the modules in them."""
    found = defaultdict(list)
    for module in filter(None, MODULES):
        found[box_name(module)].append(module)
    return {
        name: Box(name, rank_of(modules[0]), tuple(sorted(modules)))
        for name, modules in found.items()
    }


def arrows() -> Graph:
    """From each box to those it imports from, without what other arrows imply."""
    graph: dict[str, set[str]] = {name: set() for name in boxes()}
    for module in filter(None, MODULES):
        graph[box_name(module)] |= {box_name(name) for name in imported(module) if name}
    direct = {name: below - {name} for name, below in graph.items()}
    needed = {
        name: {b for b in below if not any(b in _reached(direct, c) for c in below - {b})}
        for name, below in direct.items()
    }
    layer = {name: box.layer for name, box in boxes().items()}
    return {a: {b for b in needed[a] if layer[b] or layer[a] < 2} for a in needed}


def _reached(graph: Graph, start: str) -> set[str]:
    """Every box below one."""
    found: set[str] = set()
    waiting = set(graph[start])
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= graph[name] - found
    return found


def rows(graph: Graph) -> list[list[Box]]:
    """Boxes in rows from the bottom up: by layer, and in a layer by who imports whom."""
    known, depth = boxes(), dict.fromkeys(graph, 0)
    for _ in graph:  # long enough for the longest way there can be
        for name, below in graph.items():
            within = [depth[b] + 1 for b in below if known[b].layer == known[name].layer]
            depth[name] = min(max(within, default=0), len(graph))
    found = defaultdict(list)
    for box in known.values():
        found[box.layer, depth[box.name]].append(box)
    return _ordered([found[key] for key in sorted(found)], graph)


def _ordered(levels: list[list[Box]], graph: Graph) -> list[list[Box]]:
    """Each row in the order of what its boxes import, so that few arrows cross."""
    place: dict[str, float] = {}

    def middle(box: Box) -> tuple[float, str]:
        below = [place[name] for name in graph[box.name] if name in place]
        return (sum(below) / len(below) if below else 0.5, box.name)

    found = []
    for row in levels:
        found.append(sorted(row, key=middle))
        place.update({box.name: (n + 0.5) / len(row) for n, box in enumerate(found[-1])})
    return found


def drawing() -> str:
    """The whole drawing as SVG."""
    graph = arrows()
    placed, bands, height = _layout(rows(graph))
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' {FONT}>",
        "<title>The layers of TACache and what imports what</title>",
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        "markerHeight='7' orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='#546e7a'/>"
        "</marker></defs>",
        f"<rect width='{WIDTH}' height='{height:.0f}' fill='white'/>",
        *bands,
        *(_arrow(placed[a], placed[b]) for a in sorted(graph) for b in sorted(graph[a])),
        *(_drawn(placed[name]) for name in sorted(placed)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layout(levels: list[list[Box]]) -> tuple[dict[str, Placed], list[str], float]:
    """Every box at its place, the bands behind them, and the height of the page."""
    placed: dict[str, Placed] = {}
    bands, y = [], float(MARGIN)
    spans: dict[int, tuple[float, float]] = {}
    for above, row in zip([None, *reversed(levels)], reversed(levels), strict=False):
        layer = row[0].layer
        if above is not None:
            y += ROW_GAP if above[0].layer == layer else BAND_GAP + 2 * PADDING
        made = list(_row(row, y))
        placed |= {one.box.name: one for one in made}
        bottom = max(one.y + one.height for one in made)
        spans[layer] = spans.get(layer, (y, y))[0], bottom
        y = bottom
    for layer, (top, bottom) in spans.items():
        bands.append(_band(list(LAYERS)[layer], top - PADDING, bottom + PADDING))
    return placed, bands, y + MARGIN


def _row(row: list[Box], y: float) -> Iterator[Placed]:
    """Boxes side by side over the width of the page; each as wide as its share of the text."""
    space = WIDTH - LEFT - 2 * MARGIN - GAP * (len(row) - 1)
    sizes = [_size(box) for box in row]
    x = float(LEFT + MARGIN)
    spare = max(0.0, space - sum(sizes)) / (len(row) + 1)
    shrink = min(1.0, space / sum(sizes))
    for box, size in zip(row, sizes, strict=True):
        width = size * shrink
        x += spare
        lines = list(_wrapped(_labels(box), int((width - 2 * PADDING) / CHARACTER)))
        yield Placed(box, lines, x, y, width, TITLE + LINE * len(lines) + 2 * PADDING)
        x += width + GAP


def _size(box: Box) -> float:
    """A width that gives a box about two lines of text."""
    text = sum(len(label) + 2 for label in _labels(box)) * CHARACTER
    title = (len(box.name) + 2) * CHARACTER * 1.3
    return max(title, min(text, max(150.0, text / 1.9)) + 2 * PADDING)


def _labels(box: Box) -> list[str]:
    """The modules of a box by their names within it, a folder in it once."""
    folder = box.name.split(" ")[0].replace("/", ".")
    names = [m.removeprefix(f"{folder}.") for m in box.modules if m != folder]
    return sorted({name.split(".")[0] for name in names})


def _wrapped(labels: list[str], width: int) -> Iterator[str]:
    line = ""
    for label in labels:
        longer = f"{line}, {label}" if line else label
        if line and len(longer) > width:
            yield f"{line},"
            longer = label
        line = longer
    if line:
        yield line


def _band(name: str, top: float, bottom: float) -> str:
    colour, width = COLOURS.get(name, OTHER), WIDTH - 2 * MARGIN + 8
    return (
        f"<rect x='{MARGIN - 4}' y='{top:.1f}' width='{width}' height='{bottom - top:.1f}' rx='6' "
        f"fill='{colour}'/><text x='{MARGIN + 8}' y='{(top + bottom) / 2 + 5:.1f}' "
        f"font-size='14' fill='#455a64'>{escape(name)}</text>"
    )


def _arrow(start: Placed, end: Placed) -> str:
    """A line from the lower edge of one box to the upper edge of another, as straight as may be."""
    x0 = _within(start, end.middle)
    x1 = _within(end, x0)
    top, bottom = start.y + start.height, end.y
    bend = (bottom - top) / 2
    path = f"M{x0:.0f} {top:.0f} C{x0:.0f} {top + bend:.0f} {x1:.0f} {bottom - bend:.0f} "
    return (
        f"<path class='arrow' data-from='{escape(start.box.name)}' data-to='"
        f"{escape(end.box.name)}' d='{path}{x1:.0f} {bottom:.0f}' fill='none' stroke='#546e7a' "
        "stroke-width='1.3' marker-end='url(#tip)'/>"
    )


def _within(one: Placed, x: float) -> float:
    """The place on a box that is nearest to x, away from its corners."""
    return min(max(x, one.x + CORNER), one.x + one.width - CORNER)


def _drawn(one: Placed) -> str:
    box = one.box
    texts = [
        f"<text x='{one.x + PADDING:.1f}' y='{one.y + PADDING + TITLE + LINE * n + 7:.1f}' "
        f"font-size='11.5' fill='#37474f'>{escape(line)}</text>"
        for n, line in enumerate(one.lines)
    ]
    return "".join([
        f"<g class='box' data-name='{escape(box.name)}' data-modules='{' '.join(box.modules)}'>",
        f"<rect x='{one.x:.1f}' y='{one.y:.1f}' width='{one.width:.1f}' "
        f"height='{one.height:.1f}' rx='4' fill='white' stroke='#90a4ae'/>",
        f"<text x='{one.x + PADDING:.1f}' y='{one.y + PADDING + 10:.1f}' font-size='13' "
        f"font-weight='bold' fill='#263238'>{escape(box.name)}</text>",
        *texts,
        "</g>",
    ])  # fmt: skip


def read(svg: str) -> tuple[dict[str, set[str]], set[tuple[str, str]]]:
    """The boxes with their modules, and the arrows, that a drawing shows."""
    nodes = list(ElementTree.fromstring(svg).iter())
    shown = {n.get("data-name", ""): set(n.get("data-modules", "").split())
             for n in nodes if n.get("class") == "box"}  # fmt: skip
    drawn = {(n.get("data-from", ""), n.get("data-to", ""))
             for n in nodes if n.get("class") == "arrow"}  # fmt: skip
    return shown, drawn


if __name__ == "__main__":
    DRAWING.write_text(drawing())
    print(DRAWING)
