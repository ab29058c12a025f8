"""What importing loads, and which way imports point (docs/architecture.md)."""

import ast
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
HEAVY = ["diffusers", "transformers", "typer", "rich", "matplotlib", "plotly", "lpips", "click"]

# From the bottom up: a module imports from its own layer and from those before it. A name stands
# for a module, or for a folder with all that is in it but what is named elsewhere.
LAYERS = {
    "ground": {"errors", "grid", "velocity", "decomposition", "fidelity", "prompts", "work",
               "storage"},
    "core": {"certificate", "instant", "profile", "schedule", "rules", "plan", "moving", "stepper",
             "calibration", "diagnostics", "plots", "storage.finished", "storage.frontier",
             "storage.hub", "storage.store"},
    "fitting": {"fitting"},
    "host": {"host"},
    "hosts": {"kdiffusion", "diffusers", "bagel", "models"},
    "package": {""},
    "serving": {"serving"},
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
    return named(ast.walk(ast.parse(MODULES[module].read_text())))


def loaded_by(module):
    """The modules of the package that this one loads when it is imported."""
    tree = ast.parse(MODULES[module].read_text())
    for_types = {id(n) for block in tree.body if _for_types(block) for n in ast.walk(block)}
    return named(node for node in _at_import(tree) if id(node) not in for_types)


def named(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules of the package that the import statements among these nodes name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n if n.removeprefix("tacache.") in MODULES else node.module for n in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {n.removeprefix("tacache").lstrip(".") for n in names if is_ours(n)}
    return found


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
    assert not [name for name in loaded_by(module) if name.split(".")[0] == "lab"]


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
    assert rank_of("lab.bench.runner") > rank_of("fitting.search") > rank_of("plan")
    assert rank_of("storage.hub") > rank_of("storage.files")
    assert "lab.bench.runner" in imported("cli.bench") - loaded_by("cli.bench")


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


WALK = 15  # modules above the ground that are a fit's own, on a pipeline


@pytest.mark.slow
def test_a_fit_on_a_pipeline_passes_few_modules():
    """What a fit passes of its own: not what holds any call open or follows any plan."""
    from tacache.diffusers import applied, drive, fit_plan
    from tests.tiny import PIPELINES

    flux = PIPELINES["flux"]
    call = {name: value for name, value in flux.call().items() if name != "prompt"}
    call |= {"num_inference_steps": 8}
    pipe, prompts = flux.build(), ["a fox", "two birds", "a bridge", "a bowl"]
    with walked() as passed:
        plan = fit_plan(pipe, prompts, evaluations=4, **call)
    with walked() as beneath:
        with drive(pipe, prompt="a fox", **call) as run:
            run.evaluate(run.noise, 1)
        with applied(pipe, plan):
            pipe(prompt="a fox", **call)
    assert {"diffusers.pipeline", "host.fitting", "fitting", "fitting.weights"} <= passed - beneath
    own = sorted(module for module in passed - beneath if rank_of(module) > RANK["errors"])
    assert len(own) <= WALK, ", ".join(own)


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
