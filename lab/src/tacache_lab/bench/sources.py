"""Which code a method's settings come from: where it has changed, a method is tuned again."""

import ast
import hashlib
import inspect
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tacache
from tacache_lab.bench import calibration_sets, flow_runs, recorded_runs

OURS = ("tacache.", "tacache_lab.")
METHODS = "tacache_lab.methods."


def code_sha256(method: Any) -> str:
    """Return a hash of the package's version and of the code that a method's settings depend on."""
    return _files_sha256(files_of(method))


def files_of(method: Any) -> frozenset[Path]:
    """Return the files of a method's classes, of the methods they import, and of the library."""
    kinds = {*type(method).__mro__, *type(getattr(method, "baseline", method)).__mro__}
    modules = {module.__name__ for module in (calibration_sets, flow_runs, recorded_runs)}
    left = [kind.__module__ for kind in kinds if kind.__module__.startswith(OURS)]
    while left:
        name = left.pop()
        if name not in modules:
            modules.add(name)
            left += _imported_methods(name)
    return library_files() | {_file(name) for name in modules}


@cache
def library_files() -> frozenset[Path]:
    """Return every file that fits, steps or calls a model.

    The command line only parses and prints.
    """
    root = Path(tacache.__file__).parent
    return frozenset(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] != "cli")


@cache
def _files_sha256(files: frozenset[Path]) -> str:
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(version("tacache").encode() + content).hexdigest()


@cache
def _imported_methods(name: str) -> tuple[str, ...]:
    """Return the modules of other methods that a method's module imports from."""
    if not name.startswith(METHODS):
        return ()
    nodes = ast.walk(ast.parse(_file(name).read_text(encoding="utf-8")))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return tuple(module for module in named if module.startswith(METHODS))


def _file(name: str) -> Path:
    return Path(inspect.getsourcefile(sys.modules[name]) or "")
