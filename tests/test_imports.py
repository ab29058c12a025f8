"""What importing loads, and which way imports point (docs/reference/architecture.md)."""

import ast
import importlib.machinery
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tacache

SOURCE = Path(tacache.__file__).parent
ROOT = Path(__file__).parent.parent
HEAVY = ["diffusers", "transformers", "typer", "rich", "matplotlib", "plotly", "lpips", "click"]

# From the bottom up: a module imports from its own layer and from those before it. A name stands
# for a module, or for a folder with all that is in it but what is named elsewhere.
LAYERS = {
    "ground": {"errors", "extensions", "grid", "velocity", "tasu", "fidelity", "prompts",
               "work", "storage"},
    "core": {"instant", "profile", "ssc", "plan", "moving", "stepper",
             "calibration", "diagnostics", "plots", "storage.finished", "storage.frontier",
             "storage.signature", "storage.hub", "storage.store"},
    "fitting": {"fitting"},
    "verbs": {"hosts"},
    "hosts": {"kdiffusion", "diffusers", "bagel", "models"},
    "package": {""},
    "serving": {"serving"},
    "studio": {"studio"},
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
    return named(ast.walk(ast.parse(MODULES[module].read_text())))


def loaded_by(module):
    """The modules of the package that this one loads when it is imported."""
    tree = ast.parse(MODULES[module].read_text())
    for_types = {id(n) for block in tree.body if _for_types(block) for n in ast.walk(block)}
    return named(node for node in _at_import(tree) if id(node) not in for_types)


def named(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules of the package that the import statements among these nodes name."""
    modules = {n.removeprefix("tacache").lstrip(".") for n in names_imported(nodes) if is_ours(n)}
    return {m if m in MODULES else m.rpartition(".")[0] for m in modules}


def names_imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The dotted names that the import statements among these nodes bring in."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def is_ours(name):
    return name.split(".")[0] == "tacache"


def _for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _at_import(tree):
    """What runs when a module is imported: all but the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _at_import(node)


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


@pytest.mark.parametrize("name", ["cli", "diffusers", "bagel", "serving", "studio"])
def test_importing_does_not_load_our_own(loaded, name):
    assert not [module for module in loaded if module.startswith(f"tacache.{name}")]


def test_a_stranger_finds_the_way():
    """Few modules stand at the top level."""
    assert len([path for path in FILES if path.parent == SOURCE]) <= TOP


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module):
    wrong = {name for name in imported(module) if rank_of(name) > rank_of(module)}
    assert not wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_the_library_never_imports_the_lab_or_the_models(path):
    roots = {name.split(".")[0] for name in names_imported(ast.walk(ast.parse(path.read_text())))}
    assert not roots & {"tacache_lab", "tacache_models"}


def test_the_models_import_one_module_of_the_library_and_no_lab():
    tree = ast.parse((ROOT / "models/src/tacache_models/__init__.py").read_text())
    ours = {name for name in names_imported(ast.walk(tree)) if name.startswith("tacache")}
    assert ours == {"tacache.models.Embedded"}


def test_no_folder_of_ours_is_taken_for_a_package_of_others(pytestconfig):
    """A folder `tests/diffusers` on the path is `diffusers` to an environment without it."""
    paths = [str(ROOT / path) for path in pytestconfig.getini("pythonpath")]
    for name in ("diffusers", "transformers", "torch", "ray", "gradio"):
        assert importlib.machinery.PathFinder.find_spec(name, paths) is None


def test_no_modules_load_each_other():
    """Each module can be imported first: there is an order in which none waits for itself."""
    assert in_order({module: loaded_by(module) - {module} for module in MODULES})


def in_order(graph):
    """The modules of a graph, each after those that it loads; an error names a circle."""
    return list(TopologicalSorter(graph).static_order())


def test_a_circle_would_be_found():
    with pytest.raises(CycleError):
        in_order({"plan": {"rules"}, "rules": {"grid"}, "grid": {"plan"}})


def test_a_wrong_import_would_be_found():
    assert rank_of("cli.fit_command") > rank_of("fitting.search") > rank_of("plan")
    assert rank_of("storage.hub") > rank_of("storage.files")
    late = imported("cli.model_kinds") - loaded_by("cli.model_kinds")
    assert "diffusers.pipeline_loading" in late


def test_public_names_are_those_that_are_there():
    assert sorted(tacache.__all__) == tacache.__all__
    assert all(hasattr(tacache, name) for name in tacache.__all__)
    for name in ("time_grid", "calibrate", "Profile", "make_plan", "Plan", "sample", "Stepper"):
        assert name in tacache.__all__


@pytest.mark.slow
def test_without_diffusers_the_error_names_the_extra():
    code = "import sys; sys.modules['diffusers'] = None; import tacache.diffusers"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode != 0
    assert "pip install 'tacache[diffusers]'" in result.stderr


@contextmanager
def walked():
    """The modules whose functions run within the block, in whichever thread."""
    names, passed = {str(path): module for module, path in MODULES.items()}, set()

    def look(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            passed.add(names.get(frame.f_code.co_filename))

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield passed
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        passed.discard(None)
