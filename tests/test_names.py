"""One name for one thing: classes and modules of the three distributions, and public docstrings."""

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    ROOT / place for place in ("src/tacache", "lab/src/tacache_lab", "models/src/tacache_models")
]
FILES = [path for source in SOURCES for path in sorted(source.rglob("*.py"))]
# Words with which a docstring says what a function is, and not what it does.
NO_VERBS = {
    "A", "All", "An", "As", "Both", "Each", "Every", "How", "In", "It", "One", "Some", "That",
    "The", "These", "This", "What", "When", "Where", "Whether", "Which", "Who", "Why",
}  # fmt: skip
# Words that say how a value came about, and not what it holds.
NO_NAMES = {"found", "given", "made", "one"}


def public() -> Iterator[tuple[str, object]]:
    """Yield the functions that people import, by name."""
    import tacache.diffusers

    for package in (tacache, tacache.diffusers):
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isfunction(inspect.unwrap(thing)):
                yield f"{package.__name__}.{name}", inspect.unwrap(thing)


def test_names_of_modules_are_unique():
    """A package counts by its folder's name, and so do modules within it."""
    names = [path.parent.name if path.stem == "__init__" else path.stem for path in FILES]
    counted = Counter(name for name in names if name != "__main__")
    assert not {name for name, times in counted.items() if times > 1}


def test_names_of_classes_are_unique():
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FILES)
    counted = Counter(
        n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    )
    assert not {name for name, times in counted.items() if times > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_of_variables_say_what_they_hold(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not NO_NAMES & set(names_defined(tree))


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables, parameters and functions that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_docstrings_of_functions_begin_with_a_verb(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    words = {n.name: (ast.get_docstring(n) or "").split()[:1] for n in functions}
    wrong = {name: word for name, [*word] in words.items() if not begins_with_a_verb(word)}
    assert not wrong


def begins_with_a_verb(words: list[str]) -> bool:
    """Tell a docstring that says what is done by its first word; without words there is none."""
    first = [word.rstrip(",") for word in words]
    return all(word.isalpha() and word[0].isupper() and word not in NO_VERBS for word in first)


@pytest.mark.parametrize(
    ("name", "function"), list(public()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_public_function_says_what_it_takes_returns_and_raises(name, function):
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    first = text.splitlines()[0].split()[0]
    assert first[0].isupper()
    assert first not in {"The", "A", "An", "What", "Whether", "How"}
    if signature.parameters:
        assert "\nArgs:\n" in text
    if signature.return_annotation not in (None, "None"):
        assert "\nReturns:\n" in text or "\nYields:\n" in text
