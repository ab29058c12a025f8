"""The comparison of stand-ins with real code, on checkouts made up here."""

import pytest

from tests.upstream import BAGEL, COMFYUI, Surface, drifted, main

STAND_IN = """
class Model:
    def __init__(self, config, size=2):
        self.config, self.size = config, size

    def draw(self, noise, steps=4, *, guidance=1.0):
        ...

    def load(self, path): ...

    def _own(self): ...


class Mixed(Model):
    spare = None

def make(path, device=None): ...
"""
REAL = {
    "models/__init__.py": "from .real import RealModel, make",
    "models/base.py": "class Base:\n    def load(self, path, strict=False): ...",
    "models/real.py": '''
from models.base import Base
try:
    import fast
except ImportError:
    fast = None

class RealModel(Base):
    def __init__(self, config, size=4, depth=1):
        super().__init__()
        self.config = config
        self.size = size
        config["key"] = size

    async def draw(self, noise, steps=50, *, guidance=3.0, **options): ...

def make(path, device="cuda"): ...
''',
}  # fmt: skip


@pytest.fixture
def compare(tmp_path):
    """What drifts in a checkout whose files are changed from ones that fit the stand-in."""

    def compare(used=(), words=(), **changed):
        stand_in = tmp_path / "stand_in.py"
        stand_in.write_text(STAND_IN)
        root = tmp_path / "checkout"
        for name, text in REAL.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            old, new = changed.get(path.stem, ("", ""))
            assert old in text
            path.write_text(text.replace(old, new) if old else text)
        places = {"Model": "models/__init__.py:RealModel", "make": "models/__init__.py:make"}
        words = {"models/real.py": tuple(words)}
        return list(drifted(Surface("it", "IT", str(stand_in), places, (), used, words), root))

    return compare


def test_code_that_fits_has_not_drifted(compare):
    used = ("models/real.py:fast", "models/base.py:Base.load(path, strict)")
    assert compare(used=used, words=["key"]) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class RealModel(Base)", "class NewModel(Base)", "has no RealModel"),
        ("async def draw", "def render", "has no RealModel.draw"),
        ("self.size = size", "", "has no RealModel.size"),
        ("steps=50", "count=50, wide=1", None),
        ("def make(path, ", "def make(path, kind, ", "make needs an argument 'kind'"),
        ("(path, device=", "(path, place=", "make takes no argument 'device'"),
        ("(path, device=", "(device=1, path=", "make takes its arguments in another order"),
    ],
)  # fmt: skip
def test_each_difference_is_a_line(compare, old, new, said):
    found = compare(real=(old, new))
    if said is None:  # **options take it
        assert found == []
    else:
        assert len(found) >= 1
        assert any(said in line for line in found)


def test_what_is_inherited_is_found_and_missed(compare):
    assert compare(base=("def load", "def read")) == ["models/__init__.py has no RealModel.load"]


def test_a_base_of_another_library_may_have_it(compare):
    assert compare(real=("from models.base", "from library.base")) == []


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ("models/real.py:slow", "models/real.py has no slow"),
        ("models/gone.py:slow", "models/gone.py has no slow"),
        ("models/base.py:Base.load(path, fast)", "models/base.py: Base.load takes no argument"),
        ("models/base.py:Base.save", "models/base.py has no Base.save"),
    ],
)
def test_names_beyond_the_stand_in_are_compared(compare, used, said):
    (line,) = compare(used=(used,))
    assert line.startswith(said)


def test_words_that_a_file_no_longer_names_are_said(compare):
    assert compare(words=["key", "lock"]) == ["models/real.py does not name 'lock'"]


@pytest.mark.parametrize("surface", [BAGEL, COMFYUI], ids=lambda s: s.project)
def test_every_name_that_is_compared_stands_in(surface, tmp_path):
    """An empty folder has nothing: each file that is named is missed."""
    said = "\n".join(drifted(surface, tmp_path))
    for place in (*surface.stands_for.values(), *surface.used):
        assert f"{place.partition(':')[0]} has no " in said


def test_the_command_says_what_drifted_and_fails(tmp_path, capsys):
    assert main({"BAGEL_PATH": str(tmp_path)}) == 1
    said = capsys.readouterr().out
    assert "BAGEL: inferencer.py has no InterleaveInferencer\n" in said
    assert "ComfyUI: not compared" in said


def test_without_a_checkout_the_command_names_the_variables(tmp_path, capsys):
    assert main({}) == 2
    assert "make upstream BAGEL_PATH=DIR COMFYUI_PATH=DIR" in capsys.readouterr().err
    assert main({"COMFYUI_PATH": str(tmp_path / "none")}) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
