"""What `make dist` looks for in a wheel and an sdist."""

import io
import re
import tarfile
import zipfile
from pathlib import Path

from tests import dist

ROOT = Path(__file__).parent.parent


def wheel_of(path: Path, names: tuple[str, ...], size: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"0" * size)
    return path


def test_a_sound_wheel_has_no_problem(tmp_path):
    made = wheel_of(tmp_path / "t.whl", (*dist.IN_WHEEL, "tacache-0.2.0.dist-info/METADATA"))
    assert dist.wheel_problems(made) == []


def test_what_is_missing_or_foreign_is_named(tmp_path):
    made = wheel_of(tmp_path / "t.whl", (*dist.IN_WHEEL[1:], "tests/dist.py", "tacache/a.runs"))
    assert dist.wheel_problems(made) == [
        "t.whl has tests/dist.py, which is not of the package",
        "t.whl has no tacache/py.typed",
        "t.whl has tacache/a.runs",
    ]


def test_a_large_wheel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(dist, "LARGEST_WHEEL", 10_000)
    made = wheel_of(tmp_path / "t.whl", dist.IN_WHEEL, size=5_000)
    (problem,) = dist.wheel_problems(made)
    assert re.fullmatch(r"t\.whl has 0\.0 MB", problem)


def test_an_sdist_is_looked_at_below_its_folder(tmp_path):
    path = tmp_path / "t.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in dist.IN_SDIST[1:]:
            archive.addfile(tarfile.TarInfo(f"tacache-0.2.0/{name}"), io.BytesIO())
    assert dist.sdist_problems(path) == ["t.tar.gz has no pyproject.toml"]


def test_what_a_release_needs_is_in_this_checkout():
    missing = [name for name in dist.IN_SDIST if not (ROOT / name).is_file()]
    missing += [name for name in dist.IN_WHEEL if not (ROOT / "src" / name).is_file()]
    assert missing == []


def test_the_nodes_of_comfyui_have_the_version_of_the_package():
    ours, nodes = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "comfyui/pyproject.toml")
    )
    (version,) = re.findall(r'^version = "(.*)"', ours, re.MULTILINE)
    assert re.findall(r'^version = "(.*)"', nodes, re.MULTILINE) == [version]
    needed = f"tacache>={version.rpartition('.')[0]}"  # 0.2.1 of the nodes runs with 0.2.0
    assert re.findall(r'^dependencies = \["(.*)"\]', nodes, re.MULTILINE) == [needed]
    assert (ROOT / "comfyui/requirements.txt").read_text(encoding="utf-8").split() == [needed]
