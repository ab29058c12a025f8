"""The page that shows the house: its drawing and its walks are those of the code."""

import re
from pathlib import Path

import pytest
from tests.architecture import DRAWING, arrows, boxes, read
from tests.test_imports import MODULES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "architecture.md"
AGAIN = "draw it again: python -m tests.architecture"


@pytest.mark.slow
def test_the_committed_drawing_shows_the_imports_of_today():
    shown, drawn = read(DRAWING.read_text())
    assert shown == {name: set(box.modules) for name, box in boxes().items()}, AGAIN
    assert drawn == {(a, b) for a, below in arrows().items() for b in below}, AGAIN


def test_the_page_is_one_page_and_names_modules_that_exist():
    text = PAGE.read_text()
    assert len(text.splitlines()) < 120
    named = re.findall(r"`((?:[a-z_]+/)*(?:[a-z_]+\.py|[a-z_]+/))`", text)
    modules = [name.removesuffix(".py").strip("/").replace("/", ".") for name in named]
    assert len(modules) > 20
    apart = ("tests", "tacache_lab", "tacache_models")
    assert {m for m in modules if m.split(".")[0] not in apart} <= set(MODULES)
