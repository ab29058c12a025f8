"""Which tests are slow: those that `make quick` leaves out, by the list in `slow.txt`.

`pytest --durations=0 > LOG; python -m tests.slow LOG` renews the lines of the tests that were
measured; without a file it only drops what is no longer there. Whole folders and files, with or
without a function, can be added by hand.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
LIST = TESTS / "slow.txt"
LONG = 0.5  # seconds of one test function, all its parameters together
MEASURED = re.compile(r"([\d.]+)s (?:setup|call|teardown) +tests/(\S+?::\w+)")


@cache
def listed() -> frozenset[str]:
    """The lines of the list: FOLDER/, FILE or FILE::FUNCTION, as seen from the folder of tests."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_slow(nodeid: str, names: Iterable[str] | None = None) -> bool:
    """Whether a test, by pytest's name for it, is on the list."""
    test = nodeid.removeprefix("tests/").partition("[")[0]
    known = frozenset(listed() if names is None else names)
    file = test.partition("::")[0]
    folders = {f"{parent.as_posix()}/" for parent in Path(file).parents}
    return bool({test, file, *folders} & known)


def is_there(name: str) -> bool:
    """Whether the tests have what a line of the list names."""
    file, _, function = name.partition("::")
    if not function:
        return (TESTS / file).is_dir() if file.endswith("/") else (TESTS / file).is_file()
    return function in _functions(TESTS / file)


@cache
def _functions(path: Path) -> frozenset[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def measured(log: str) -> dict[str, float]:
    """The seconds of every test function that a log of pytest names."""
    seconds: dict[str, float] = defaultdict(float)
    for taken, name in MEASURED.findall(log):
        seconds[name] += float(taken)
    return seconds


def renewed(names: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """The list after a measurement: what was not measured stays, if it is still there."""
    kept = {name for name in names if name not in seconds}
    whole = {name for name in kept if "::" not in name}
    long = {name for name, taken in seconds.items() if taken >= LONG and not is_slow(name, whole)}
    return sorted(name for name in kept | long if is_there(name))


def main() -> None:
    """Rewrite the list."""
    seconds = measured("".join(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]))
    head = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    LIST.write_text("\n".join([*head, *renewed(listed(), seconds), ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
