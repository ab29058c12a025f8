"""What importing loads, and which way imports point (DESIGN.md, Layout)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tacache

SOURCE = Path(tacache.__file__).parent
HEAVY = ["diffusers", "transformers", "typer", "rich", "matplotlib", "plotly", "lpips", "click"]

# From the bottom up; a module imports only from rows above its own, or from its own row.
LAYERS = [
    {"errors"},
    {"grid", "files", "films", "outputs", "progress", "processes", "prompts", "flows"},
    {"decomposition", "velocity", "metrics", "cost", "models", "following"},
    {"rules", "walking", "carrying"},
    {"schedule", "profile", "plan"},
    {"replanning", "frontier", "hub", "finished"},
    {"placement"},
    {"weighing"},
    {"lockstep"},
    {"refinement", "reference"},
    {"searching"},
    {"stepper", "calibration", "fitting"},
    {"diagnostics", "render", "plots", "baselines", "bagel", "kdiffusion"},
    {"analytic", "demo", "bench"},
    {"report"},
    {"page", "export"},
    {"cli"},
    {"__main__"},
]
# what may know the embedded models, hosts and rivals
APPLICATIONS = {"demo", "bench", "report", "page", "export", "following", "cli", "__main__"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def test_every_module_has_its_place():
    """Hosts of one framework stand apart: only what is above the core may import them."""
    there = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir()}
    modules = there - {"__init__", "__pycache__", "data", "templates", "py"}
    assert modules - RANK.keys() == {"diffusers"}


def imported(module):
    """The modules of the package that this one names, wherever in the file."""
    found, single = set(), SOURCE / f"{module}.py"
    files = [single] if single.exists() else sorted((SOURCE / module).glob("*.py"))
    assert files
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module]
            if node.module == "tacache":
                names = [f"tacache.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tacache.")}
    return found


@pytest.fixture(scope="module")
def loaded():
    """The modules that `import tacache` loads, in a process of its own."""
    code = "import sys, tacache; print('\\n'.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_loads_the_core(loaded):
    assert {"tacache.stepper", "tacache.calibration", "torch", "pydantic"} <= loaded


@pytest.mark.parametrize("name", HEAVY)
def test_importing_does_not_load(loaded, name):
    assert not [module for module in loaded if module.split(".")[0] == name]


@pytest.mark.parametrize("name", ["cli", "demo", "render", "diffusers", "bagel"])
def test_importing_does_not_load_our_own(loaded, name):
    assert f"tacache.{name}" not in loaded


@pytest.mark.parametrize("module", sorted(RANK))
def test_imports_point_one_way(module):
    wrong = {name for name in imported(module) & RANK.keys() if RANK[name] > RANK[module]}
    assert not wrong


@pytest.mark.parametrize("module", sorted(RANK.keys() - APPLICATIONS))
def test_the_core_imports_no_host_and_no_frame(module):
    frame = {"cli", "demo", "render", "diffusers", "bagel", "bench", "models", "baselines"}
    assert not imported(module) & frame - {module}


def test_the_lowest_modules_know_errors_only():
    assert imported("errors") == set()
    assert imported("grid") <= {"errors"}
    assert imported("decomposition") <= {"errors", "grid"}
    assert imported("rules") <= {"errors", "grid", "decomposition"}


def test_public_names_are_those_that_are_there():
    assert sorted(tacache.__all__) == tacache.__all__
    assert all(hasattr(tacache, name) for name in tacache.__all__)
    for name in ("time_grid", "calibrate", "Profile", "make_plan", "Plan", "sample", "Stepper"):
        assert name in tacache.__all__


def test_without_diffusers_the_error_names_the_extra():
    code = "import sys; sys.modules['diffusers'] = None; import tacache.diffusers"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode != 0
    assert "pip install 'tacache[diffusers]'" in result.stderr
