"""The hash of the code that a method's settings depend on."""

from pathlib import Path

import pytest

import tacache
import tacache_lab
from tacache_lab.bench import sources
from tacache_lab.bench.named_methods import METHODS
from tacache_lab.bench.sources import code_sha256, files_of, library_files

ROOT = Path(tacache.__file__).parent
LAB = Path(tacache_lab.__file__).parent
LIBRARY = sorted(
    file
    for file in ROOT.rglob("*.py")
    if len(file.relative_to(ROOT).parts) > 1 and file.relative_to(ROOT).parts[0] != "cli"
)


@pytest.fixture
def hashed(monkeypatch):
    """A function that gives a method's hash as if some file had changed."""
    read = Path.read_bytes

    def with_changed(name: str, changed: Path | None = None) -> str:
        sources._files_sha256.cache_clear()
        monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"#" * (self == changed))
        return code_sha256(METHODS[name])

    yield with_changed
    sources._files_sha256.cache_clear()


def names(method: str) -> set[str]:
    """The files of a method in the lab."""
    return {str(f.relative_to(LAB)) for f in files_of(METHODS[method]) if f.is_relative_to(LAB)}


def test_two_names_of_one_code_share_their_hash(hashed):
    assert hashed("tasu") == hashed("tasu-10")
    assert len({hashed(name) for name in ("magcache", "vde", "tasu")}) == 3


def test_a_change_of_a_method_is_its_own(hashed):
    changed = LAB / "methods" / "magcache.py"
    assert hashed("magcache", changed) != hashed("magcache")
    assert [hashed(name, changed) for name in ("vde", "tasu")] == [hashed("vde"), hashed("tasu")]


@pytest.mark.parametrize("file", LIBRARY, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_change_below_the_top_level_of_the_library_counts(hashed, file):
    assert hashed("tasu", file) != hashed("tasu")


def test_the_library_is_all_but_the_commands_and_the_lab():
    assert set(LIBRARY) | set(ROOT.glob("*.py")) == library_files()


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("tasu", {"bench/plan_methods.py", "bench/recorded_runs.py", "bench/flow_runs.py"}),
        ("magcache", {"methods/magcache.py", "methods/caching.py", "methods/tuning.py"}),
        ("teacache", {"bench/rivals.py", "methods/online.py", "methods/seam.py"}),
        (
            "dicache",
            {
                "bench/model_caches.py",
                "methods/inside/inside_cache.py",
                "methods/inside/dicache.py",
            },
        ),
        ("diffusers-fbcache", {"methods/inside/library.py", "methods/inside/attaching.py"}),
    ],
)
def test_what_a_method_inherits_and_imports_is_in_it(method, expected):
    assert expected | {"bench/calibration_sets.py"} <= names(method)


def test_methods_that_have_nothing_in_common_do_not_share_files():
    assert "methods/magcache.py" not in names("vde") | names("tasu")
