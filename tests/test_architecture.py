"""The page that shows the house: its drawing and its walks are those of the code."""

import re
from pathlib import Path

from tests.architecture import DRAWING, arrows, boxes, drawing, read
from tests.test_imports import MODULES, imported

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "architecture.md"
AGAIN = "draw it again: python -m tests.architecture"


def test_the_committed_drawing_shows_the_imports_of_today():
    shown, drawn = read(DRAWING.read_text())
    assert shown == {name: set(box.modules) for name, box in boxes().items()}, AGAIN
    assert drawn == {(a, b) for a, below in arrows().items() for b in below}, AGAIN


def test_every_module_is_in_one_box():
    placed = [module for box in boxes().values() for module in box.modules]
    assert sorted(placed) == sorted(filter(None, MODULES))


def test_an_arrow_is_an_import():
    inside = {module: name for name, box in boxes().items() for module in box.modules}
    known = {(inside[m], inside[n]) for m in inside for n in imported(m) if n}
    assert {(a, b) for a, below in arrows().items() for b in below} <= known


def test_the_drawing_stays_on_its_page():
    width, height = map(float, re.search(r"viewBox='0 0 (\d+) (\d+)'", drawing()).groups())
    rects = re.findall(
        r"<rect x='([\d.]+)' y='([\d.]+)' width='([\d.]+)' height='([\d.]+)'", drawing()
    )
    assert len(rects) > len(boxes())
    for x, y, w, h in (map(float, rect) for rect in rects):
        assert x + w <= width
        assert y + h <= height


def test_the_page_is_one_page_and_names_modules_that_exist():
    text = PAGE.read_text()
    assert len(text.splitlines()) < 120
    named = re.findall(r"`((?:[a-z_]+/)*(?:[a-z_]+\.py|[a-z_]+/))`", text)
    modules = [name.removesuffix(".py").strip("/").replace("/", ".") for name in named]
    assert len(modules) > 20
    assert {m for m in modules if m.split(".")[0] != "tests"} <= set(MODULES)
