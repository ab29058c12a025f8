"""Python files read as syntax: what a folder of code defines, and which arguments it takes."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A class, a function or an assigned name, with the file it stands in."""

    file: str
    node: ast.stmt


class Signature(NamedTuple):
    """The arguments of a function, without the first of a method."""

    names: tuple[str, ...]  # in order
    required: frozenset[str]
    any_positional: bool
    any_named: bool


class Checkout:
    """A folder of Python files; imports between them are followed, others are not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = cache(self._tree)

    def find(self, file: str, name: str) -> Definition | None:
        """What a module means by a name: its own definition, or one it imports."""
        for node in _statements(self.tree(file)):
            if isinstance(node, ast.ClassDef | Function) and node.name == name:
                return Definition(file, node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _assigned(node):
                return Definition(file, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return self._imported(file, node, alias.name) or Definition(file, node)
            if isinstance(node, ast.Import) and name in {a.asname or a.name for a in node.names}:
                return Definition(file, node)
        return None

    def member(self, file: str, path: str) -> tuple[Definition | None, list[str]]:
        """A member of a class or of its bases, and the bases that lie outside of the folder."""
        owner, _, name = path.partition(".")
        found = self.find(file, owner)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None, []
        own = members(found.node, found.file)
        if name in own:
            return own[name] or found, []
        outside = []
        for base in map(ast.unparse, found.node.bases):
            known = self.find(found.file, base)
            if known is None or not isinstance(known.node, ast.ClassDef):
                outside.append(base)
                continue
            inherited, further = self.member(known.file, f"{known.node.name}.{name}")
            if inherited is not None:
                return inherited, []
            outside += further
        return None, outside

    def words(self, file: str) -> set[str]:
        """Every string that a file spells out, every argument it names, every attribute it sets."""
        found = set()
        for node in ast.walk(self.tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.arg | ast.keyword) and node.arg:
                found.add(node.arg)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
        return found

    def _tree(self, file: str) -> ast.Module:
        path = self.root / file
        return ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")

    def _imported(self, file: str, node: ast.ImportFrom, name: str) -> Definition | None:
        folders = list(Path(file).parent.parts)
        base = folders[: len(folders) - node.level + 1] if node.level else []
        base += (node.module or "").split(".") if node.module else []
        for other in ("/".join(base) + ".py", "/".join([*base, "__init__.py"])):
            if other != file and (self.root / other).is_file():
                return self.find(other, name)
        return None


def members(node: ast.ClassDef, file: str = "") -> dict[str, Definition | None]:
    """The methods and attributes of a class; attributes that methods set have no definition."""
    found: dict[str, Definition | None] = {}
    for inner in ast.walk(node):
        set_here = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        if set_here and ast.unparse(inner.value) == "self":
            found[inner.attr] = None
    for statement in _statements(node):
        if isinstance(statement, Function):
            found[statement.name] = Definition(file, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= dict.fromkeys(_assigned(statement))
    return found


def signature(definition: Definition) -> Signature:
    """The arguments of a function; those of a class are those of its `__init__`."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        start = members(node).get("__init__")
        return signature(start) if start else Signature((), frozenset(), True, True)
    assert isinstance(node, Function)
    own = node.args
    ordered = [arg.arg for arg in own.posonlyargs + own.args]
    needed = ordered[: len(ordered) - len(own.defaults)]
    named = [arg.arg for arg in own.kwonlyargs]
    needed += [n for n, d in zip(named, own.kw_defaults, strict=True) if d is None]
    names = tuple(n for n in ordered + named if n not in ("self", "cls"))
    required = frozenset(needed) - {"self", "cls"}
    return Signature(names, required, own.vararg is not None, own.kwarg is not None)


def takes(real: Definition, expected: Signature, what: str) -> Iterator[str]:
    """Why a call with the expected arguments would fail on the real definition, if it would."""
    if not isinstance(real.node, ast.ClassDef | Function):
        return
    found = signature(real)
    for name in expected.names:
        if name not in found.names and not found.any_named:
            yield f"{what} takes no argument {name!r}"
    if not expected.any_named:
        for name in sorted(found.required - set(expected.names)):
            yield f"{what} needs an argument {name!r}"
    shared = [name for name in expected.names if name in found.names]
    if shared != [name for name in found.names if name in shared]:
        yield f"{what} takes its arguments in another order: {', '.join(found.names)}"


def _statements(node: ast.Module | ast.ClassDef | ast.stmt) -> Iterator[ast.stmt]:
    """The statements of a module or a class, those under `if`, `try` and `with` included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _statements(child)


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = (inner for target in targets for inner in ast.walk(target))
    return {name.id for name in names if isinstance(name, ast.Name)}
