"""Build, check and try a release: `make dist`, which runs `python -m tests.dist TORCH`.

The wheel and the sdist are built from this checkout and checked; then each is installed into a new
environment, where the demo runs with no way to the network.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
LARGEST_WHEEL = 95 * 10**6  # bytes: below the 100 MB that an index takes
# what people miss if it is not there, seen from the package's or the sdist's root
IN_WHEEL = (
    "tacache/py.typed",
    "tacache/models/tiny-flux/profile.json",
    "tacache/models/tiny-flux/transformer/diffusion_pytorch_model.safetensors",
    "tacache/models/tiny-wan/profile.json",
    "tacache/lab/demo/templates/page.html",
)
IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/index.md",
    "docs/conf.py",
    "tests/dist.py",
    "src/tacache/__init__.py",
)
UNWANTED = (".jsonl.work", "__pycache__", ".runs", ".venv", ".git/", ".env")


def main() -> None:
    """Do all of it; the first thing that is wrong ends it."""
    torch = sys.argv[1]
    wheel, sdist = build()
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    problems = [*wheel_problems(wheel), *sdist_problems(sdist)]
    if problems:
        sys.exit("\n".join(problems))
    for archive in (wheel, sdist):
        try_out(archive, torch)
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {sdist.name} are sound")


def build() -> tuple[Path, Path]:
    """The wheel and the sdist, in a folder that holds nothing else."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def wheel_problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel: its size, what it lacks, and what it should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    size = wheel.stat().st_size
    too_large = [f"{wheel.name} has {size / 1e6:.1f} MB"] if size > LARGEST_WHEEL else []
    foreign = [name for name in names if not name.startswith(("tacache/", "tacache-"))]
    told = [f"{wheel.name} has {name}, which is not of the package" for name in foreign]
    return [*too_large, *told, *content_problems(wheel.name, names, IN_WHEEL)]


def sdist_problems(sdist: Path) -> list[str]:
    """What is wrong with an sdist."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    return content_problems(sdist.name, names, IN_SDIST)


def content_problems(archive: str, names: list[str], wanted: tuple[str, ...]) -> list[str]:
    """What an archive lacks, and what it has that belongs to one machine."""
    missing = [f"{archive} has no {name}" for name in wanted if name not in names]
    left = [name for name in names if any(mark in name for mark in UNWANTED)]
    return [*missing, *(f"{archive} has {name}" for name in left)]


def try_out(archive: Path, torch: str) -> None:
    """Install an archive with the demo's extra into a new environment, and run the demo there."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        scripts = place / "venv" / "bin"
        run(scripts / "python", "-m", "pip", "install", "--quiet", torch, f"{archive}[demo]")
        run(scripts / "tacache", "demo", "a red apple", "--evaluations", "13", inside=place)
        pages = list(place.glob("demo*/**/index.html"))
        if not pages:
            sys.exit(f"the demo of {archive.name} wrote no page")


def run(*words: str | Path, inside: Path | None = None) -> None:
    """Run a command; with a folder, in it and with no way to the network."""
    nowhere = "http://127.0.0.1:9"  # where nothing answers
    offline = {"HF_HUB_OFFLINE": "1", "http_proxy": nowhere, "https_proxy": nowhere}
    left_out = ("PYTHONPATH", "VIRTUAL_ENV")
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    if inside is not None:
        given |= offline | {"TACACHE_HOME": str(inside / "home")}
    print("$", *words, flush=True)
    subprocess.run(list(map(str, words)), check=True, cwd=inside or ROOT, env=given)


if __name__ == "__main__":
    main()
