"""What `make dist` looks for in a wheel and an sdist, and that the wheels are so."""

import re
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from tests import dist

ROOT = Path(__file__).parent.parent
BY_NAME = pytest.mark.parametrize("one", dist.DISTRIBUTIONS, ids=lambda one: one.name)
SMALL = dist.Distribution("small", ROOT, 10_000, ("small/a.py", "small/b.py"), ("a", "b"))
LICENSE = "small-1.dist-info/licenses/LICENSE"


def wheel_of(path: Path, names: tuple[str, ...], size: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"0" * size)
    return path


def test_a_sound_wheel_has_no_problem(tmp_path):
    wheel = wheel_of(tmp_path / "t.whl", (*SMALL.in_wheel, LICENSE))
    assert dist.wheel_problems(SMALL, wheel) == []


def test_weights_in_the_library_are_a_problem(tmp_path):
    weights = "tacache/models/tiny-flux/vae/model.safetensors"
    license = LICENSE.replace("small", "tacache")
    wheel = wheel_of(tmp_path / "t.whl", (*dist.LIBRARY.in_wheel, license, weights))
    assert dist.wheel_problems(dist.LIBRARY, wheel) == [f"t.whl has {weights}"]


@pytest.mark.parametrize("one", dist.DISTRIBUTIONS[:2], ids=lambda one: one.name)
def test_the_archives_hold_code_and_are_small(one, tmp_path):
    (wheel,) = WheelBuilder(str(one.folder)).build(directory=str(tmp_path), versions=["standard"])
    (sdist,) = SdistBuilder(str(one.folder)).build(directory=str(tmp_path), versions=["standard"])
    assert dist.wheel_problems(one, Path(wheel)) == []
    assert dist.sdist_problems(one, Path(sdist)) == []


@pytest.mark.slow
def test_the_three_install_from_an_index_by_their_names(tmp_path, monkeypatch):
    built = [
        Path(path)
        for one in dist.DISTRIBUTIONS
        for path in WheelBuilder(str(one.folder)).build(
            directory=str(tmp_path / one.name), versions=["standard"]
        )
    ]
    dist.write_index(built, tmp_path / "index")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    place = dist.Environment(tmp_path, tmp_path / "index")
    names = [one.name for one in dist.DISTRIBUTIONS]
    place.pip("install", "--quiet", "--no-deps", "--index-url", place.index.as_uri(), *names)
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    # what they depend on is taken from here
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    installed = {path.name.partition("-")[0] for path in packages.glob("tacache*.dist-info")}
    assert installed == {one.package for one in dist.DISTRIBUTIONS}
    place.tacache("bench", "--help")
    place.tacache("generate", "tiny-flux", "--evaluations", "5", "--steps", "10", "--prompt", "a")
    assert list(tmp_path.glob("out/*.png"))


@BY_NAME
def test_what_a_release_needs_is_in_this_checkout(one):
    missing = [name for name in one.in_sdist if not (one.folder / name).is_file()]
    missing += [name for name in one.in_wheel if not (one.folder / "src" / name).is_file()]
    assert missing == []


@BY_NAME
def test_a_distribution_has_the_licence_of_the_project(one):
    assert (one.folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


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
