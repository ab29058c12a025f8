"""The comparison of stand-ins with real code finds what is missing there."""

import pytest
from tests.upstream import BAGEL, COMFYUI, Surface, drifted

STAND_IN = """
class Model:
    def draw(self, noise, steps=4, *, guidance=1.0): ...
    def load(self, path): ...
"""
BASE = "class Base:\n    def load(self, path, strict=False): ...\n"
REAL = (
    BASE + "class Real(Base):\n    def draw(self, noise, steps=50, *, guidance=3.0, **more): ...\n"
)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        ("steps=50", "count=50", []),  # **more takes it
        ("class Real(Base)", "class New(Base)", ["real.py has no Real"]),
        ("def draw", "def render", ["real.py has no Real.draw"]),
        ("def load", "def read", ["real.py has no Real.load"]),
        ("(self, path, strict", "(self, place, strict", ["real.py: Real.load"]),
    ],
)
def test_each_difference_is_a_line(tmp_path, old, new, lines):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "real.py").write_text(REAL.replace(old, new) if old else REAL)
    surface = Surface("it", "IT", str(tmp_path / "stand_in.py"), {"Model": "real.py:Real"})
    drift = list(drifted(surface, tmp_path))
    assert bool(drift) == bool(lines)
    for expected, line in zip(lines, drift, strict=False):
        assert line.startswith(expected)


@pytest.mark.parametrize("surface", [BAGEL, COMFYUI], ids=lambda s: s.project)
def test_every_name_that_is_compared_stands_in(surface, tmp_path):
    """An empty folder has nothing: each file that is named is missed."""
    drift = "\n".join(drifted(surface, tmp_path))
    for place in (*surface.stands_for.values(), *surface.used):
        assert f"{place.partition(':')[0]} has no " in drift
