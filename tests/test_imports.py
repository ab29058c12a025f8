"""What importing loads, and which way imports point (docs/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tacache

SOURCE = Path(tacache.__file__).parent
HEAVY = ["diffusers", "transformers", "typer", "rich", "matplotlib", "plotly", "lpips", "click"]

# From the bottom up: a module imports from its own layer and from those before it. A name stands
# for a module, or for a folder with all that is in it but what is named elsewhere.
LAYERS = {
    "ground": {"errors", "grid", "velocity", "decomposition", "fidelity", "prompts", "work",
               "storage"},
    "core": {"profile", "schedule", "rules", "plan", "moving", "stepper", "calibration",
             "diagnostics", "plots", "storage.finished", "storage.frontier", "storage.hub"},
    "fitting": {"fitting"},
    "hosts": {"kdiffusion", "diffusers", "bagel", "models"},
    "package": {""},
    "lab": {"lab"},
    "commands": {"cli", "__main__"},
}  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))
TOP = 20  # modules at the top level


def module_of(path):
    """The module's name below the package, the package's own being empty."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def rank_of(module):
    """The layer of a module: that of its own name, or of the folder it is in."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next(RANK[name] for name in names if name in RANK)


def imported(module):
    """The modules of the package that this one names, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = (node.module or "").split(".")
            names = [".".join([*base, alias.name]) for alias in node.names]
            names = [n if n.removeprefix("tacache.") in MODULES else node.module for n in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {n.removeprefix("tacache").lstrip(".") for n in names if is_ours(n)}
    return found


def is_ours(name):
    return name is not None and name.split(".")[0] == "tacache"


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


@pytest.mark.parametrize("name", ["cli", "lab", "diffusers", "bagel"])
def test_importing_does_not_load_our_own(loaded, name):
    assert not [module for module in loaded if module.startswith(f"tacache.{name}")]


def test_a_stranger_finds_the_way():
    """Few modules stand at the top level."""
    assert len([path for path in FILES if path.parent == SOURCE]) <= TOP


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module):
    wrong = {name for name in imported(module) if rank_of(name) > rank_of(module)}
    assert not wrong


@pytest.mark.parametrize("module", sorted(m for m in MODULES if m.split(".")[0] != "lab"))
def test_the_library_loads_the_lab_only_in_a_command_that_is_called(module):
    tree = ast.parse(MODULES[module].read_text())
    types = {id(n) for block in tree.body if _for_types(block) for n in ast.walk(block)}
    outside = [
        node
        for node in _at_import(tree)
        if isinstance(node, ast.ImportFrom | ast.Import) and id(node) not in types
    ]
    names = [getattr(n, "module", None) or n.names[0].name for n in outside]
    assert not [name for name in names if name.startswith("tacache.lab")]


def _for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _at_import(tree):
    """What runs when a module is imported: all but the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _at_import(node)


def test_a_wrong_import_would_be_found():
    assert rank_of("lab.bench.runner") > rank_of("fitting.search") > rank_of("plan")
    assert rank_of("storage.hub") > rank_of("storage.files")
    assert "lab.bench.runner" in imported("cli.bench")


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
