"""Build, check and try a release: `make dist`, which runs `python -m tests.dist TORCH`.

Each of the three distributions is built into an sdist, and from the sdist into a wheel. What they
depend on is gathered once; then they are installed from an index of this machine, with no way to
the network, each alone and all together, and what a user types first is run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
WHEELHOUSE = ROOT / "build" / "wheelhouse"  # what the distributions depend on
INDEX = ROOT / "build" / "index"
UNWANTED = (".jsonl.work", "__pycache__", ".runs", ".venv", ".git/", ".env")
OTHERS = ("lab/", "models/")  # folders of a checkout that no archive has at its root
NOWHERE = "http://127.0.0.1:9"  # where nothing answers
OFFLINE = {"HF_HUB_OFFLINE": "1", "http_proxy": NOWHERE, "https_proxy": NOWHERE}


class Distribution(NamedTuple):
    """One of the three: where it lies, how large its wheel may be, and what archives must hold."""

    name: str
    folder: Path
    max_wheel: int  # bytes
    in_wheel: tuple[str, ...]
    in_sdist: tuple[str, ...]
    unwanted: tuple[str, ...] = ()  # parts of names that its archives may not have

    @property
    def package(self) -> str:
        """The name that Python imports, with which its archives begin as well."""
        return self.name.replace("-", "_")


COMMON = ("pyproject.toml", "README.md", "LICENSE")
LIBRARY = Distribution(
    "tacache",
    ROOT,
    10**6,
    ("tacache/py.typed", "tacache/data/calibration.jsonl", "tacache/studio/page/style.css"),
    (*COMMON, "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Makefile", "docs/index.md",
     "docs/conf.py", "tests/dist.py", "conftest.py", "src/tacache/__init__.py"),
    unwanted=(".safetensors",),
)  # fmt: skip
LAB = Distribution(
    "tacache-lab",
    ROOT / "lab",
    10**6,
    (
        "tacache_lab/py.typed",
        "tacache_lab/demo/templates/page.html",
        "tacache_lab/demo/measured.json",
    ),
    (*COMMON, "src/tacache_lab/__init__.py", "tests/commands/test_demo.py"),
)
MODELS = Distribution(
    "tacache-models",
    ROOT / "models",
    95 * 10**6,  # below the 100 MB that an index takes
    ("tacache_models/py.typed", "tacache_models/tiny-flux/profile.json",
     "tacache_models/tiny-flux/transformer/diffusion_pytorch_model.safetensors",
     "tacache_models/tiny-wan/profile.json"),
    (*COMMON, "src/tacache_models/__init__.py", "tests/test_models.py"),
)  # fmt: skip
DISTRIBUTIONS = (LIBRARY, LAB, MODELS)


def main() -> None:
    """Do all of it; the first thing that is wrong ends it."""
    (torch,) = sys.argv[1:]
    shutil.rmtree(DIST, ignore_errors=True)
    for distribution in DISTRIBUTIONS:
        run(sys.executable, "-m", "build", "--outdir", DIST, distribution.folder)
    archives = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    problems = [problem for one in DISTRIBUTIONS for problem in archive_problems(one)]
    if problems:
        sys.exit("\n".join(problems))
    gather(torch)
    write_index([*archives, *WHEELHOUSE.glob("*.whl")], INDEX)
    try_out()
    sizes = (f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in archives)
    print("Sound:", ", ".join(sizes))


def archive_problems(distribution: Distribution) -> list[str]:
    """Return what is wrong with the built wheel and sdist of a distribution."""
    (wheel,) = DIST.glob(f"{distribution.package}-*.whl")
    (sdist,) = DIST.glob(f"{distribution.package}-*.tar.gz")
    return [*wheel_problems(distribution, wheel), *sdist_problems(distribution, sdist)]


def wheel_problems(distribution: Distribution, wheel: Path) -> list[str]:
    """Return what is wrong with a wheel: its size, what it lacks, and what it should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package, size = distribution.package, wheel.stat().st_size
    too_large = [f"{wheel.name} has {size} bytes"] if size > distribution.max_wheel else []
    foreign = [name for name in names if not name.startswith((f"{package}/", f"{package}-"))]
    strange = [f"{wheel.name} has {name}, which is not of the package" for name in foreign]
    licensed = any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    unlicensed = [] if licensed else [f"{wheel.name} has no LICENSE"]
    content = content_problems(distribution, wheel.name, names, distribution.in_wheel)
    return [*too_large, *strange, *unlicensed, *content]


def sdist_problems(distribution: Distribution, sdist: Path) -> list[str]:
    """Return what is wrong with an sdist."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    foreign = [f"{sdist.name} has {name}" for name in names if name.startswith(OTHERS)]
    return [*foreign, *content_problems(distribution, sdist.name, names, distribution.in_sdist)]


def content_problems(
    distribution: Distribution, archive: str, names: Sequence[str], needed: Sequence[str]
) -> list[str]:
    """Return what an archive lacks, and what belongs to one machine or another distribution."""
    unwanted = (*UNWANTED, *distribution.unwanted)
    missing = [f"{archive} has no {name}" for name in needed if name not in names]
    left = [name for name in names if any(mark in name for mark in unwanted)]
    return [*missing, *(f"{archive} has {name}" for name in left)]


def gather(torch: str) -> None:
    """Gather everything that the distributions and their builds depend on, as wheels."""
    extras = [f"{path}[demo]" for path in DIST.glob("tacache_lab-*.whl")]
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", WHEELHOUSE)
    run(*pip, "--find-links", DIST, torch, "hatchling>=1.25", *DIST.glob("*.whl"), *extras)
    for path in WHEELHOUSE.glob("tacache*"):
        path.unlink()  # these come from where they were built


def write_index(archives: Sequence[Path], folder: Path) -> None:
    """Write an index of archives that pip reads as it reads PyPI: a page of links a project."""
    shutil.rmtree(folder, ignore_errors=True)
    links: dict[str, list[str]] = {}
    for path in archives:
        project = re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
        links.setdefault(project, []).append(f'<a href="{path.as_uri()}">{path.name}</a>')
    for project, lines in links.items():
        (folder / project).mkdir(parents=True)
        page = "<!doctype html>\n" + "\n".join(lines)
        (folder / project / "index.html").write_text(page, encoding="utf-8")


def try_out() -> None:
    """Install the distributions one way after another, and run what a user types first."""
    with tempfile.TemporaryDirectory() as folder:
        place = Environment(Path(folder), INDEX)
        place.install("tacache")
        place.expect({"tacache"})
        place.tacache("--help")
        place.tacache("bench", needs="tacache-lab")
        place.tacache("generate", "tiny-flux", "--prompt", "a red apple", needs="tacache-models")
        place.install(f"{ROOT}[diffusers]")  # what README tells those who have a checkout
        place.expect({"tacache"})
        place.tacache("generate", "tiny-flux", "--prompt", "a red apple", needs="tacache-models")
        place.tacache("demo", needs="tacache-lab")

        place.install("tacache-lab")
        place.expect({"tacache", "tacache-lab"})
        place.tacache("bench", "--help")
        place.tacache("demo", needs="tacache-models")
        place.pip("uninstall", "--yes", "tacache-lab")

        place.install("tacache-models")
        place.expect({"tacache", "tacache-models"})
        place.tacache("generate", "tiny-flux", "--speedup", "4", "--prompt", "a red apple")
        place.tacache("bench", needs="tacache-lab")

        place.install("tacache[demo]")
        place.expect({"tacache", "tacache-lab", "tacache-models"})
        place.tacache("demo", "a red apple", "--evaluations", "13")
        if not list(place.folder.glob("demo*/**/index.html")):
            sys.exit("the demo wrote no page")


class Environment:
    """A new environment with no way to the network but an index, in a folder of its own."""

    def __init__(self, folder: Path, index: Path):
        self.folder, self.index = folder, index
        venv.create(folder / "venv", with_pip=True)
        self.scripts = folder / "venv" / "bin"

    def pip(self, *words: str | Path) -> None:
        """Run pip."""
        run(self.scripts / "python", "-m", "pip", *words, inside=self.folder)

    def install(self, requirement: str) -> None:
        """Install a distribution and what it needs from the index."""
        self.pip("install", "--quiet", "--index-url", self.index.as_uri(), requirement)
        self.pip("check")

    def expect(self, names: set[str]) -> None:
        """End unless these are the distributions of ours that are installed."""
        listed = subprocess.check_output(
            [self.scripts / "python", "-m", "pip", "list", "--format=json"], env=environment()
        )
        installed = {one["name"] for one in json.loads(listed) if "tacache" in one["name"]}
        if installed != names:
            sys.exit(f"{sorted(installed)} are installed, and not {sorted(names)}")

    def tacache(self, *words: str, needs: str | None = None) -> None:
        """Run a command; with `needs` it must end in one line that says what to install."""
        command = (self.scripts / "tacache", *words)
        if needs is None:
            return run(*command, inside=self.folder)
        print("$", *command, flush=True)
        ended = subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=environment(self.folder),
            capture_output=True,
            text=True,
        )
        lines = ended.stderr.splitlines()
        if ended.returncode != 2 or len(lines) != 1 or needs not in lines[0]:
            sys.exit(f"it ended with {ended.returncode} and did not ask for {needs}:\n{lines}")
        print(lines[0])


def run(*words: str | Path, inside: Path | None = None) -> None:
    """Run a command; with a folder, in it and with no way to the network."""
    print("$", *words, flush=True)
    subprocess.run(list(map(str, words)), check=True, cwd=inside or ROOT, env=environment(inside))


def environment(inside: Path | None = None) -> dict[str, str]:
    """Return the variables of a command: with a folder, those that keep it there and offline."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    if inside is None:
        return kept
    return {**kept, **OFFLINE, "TACACHE_HOME": str(inside / "home")}


if __name__ == "__main__":
    main()
