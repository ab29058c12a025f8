"""Read text and JSON from files that may be damaged or hostile, within bounds."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGEST_FILE = 16 * 2**20  # bytes: a plan of 10,000 steps has less than a tenth of them
LARGEST_NUMBER = 1e30  # of any sign: no quantity is near it, and sums of its squares are finite
DEEPEST = 32  # lists and objects inside each other; configurations have five at most


def read_bounded(path: Path) -> str:
    """Return the text of a file; raise ValueError, before it is in memory, if it is too large."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE // 2**20} MiB")
    return content.decode("utf-8")


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Return the value of a JSON text, or raise ValueError.

    A key that occurs twice, values nested too deeply and numbers that are huge are refused; NaN and
    infinity too, unless `finite` is False.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_bounds(value, finite)
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return found


def _check_bounds(value: Any, finite: bool, trail: tuple[str | int, ...] = ()) -> None:
    """Refuse what no sound file holds; `trail` are the keys that lead to the value."""
    if isinstance(value, float) and not math.isfinite(value):
        if finite:
            raise ValueError(f"{_named(trail)} is not a finite number")
    elif isinstance(value, float | int) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"{_named(trail)} is beyond {LARGEST_NUMBER:g}")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is a ValueError: no file could be written with it
    if not isinstance(value, dict | list):
        return
    if len(trail) >= DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        _check_bounds(part, finite, (*trail, key))


def _named(trail: Sequence[str | int]) -> str:
    return f"field '{'.'.join(map(str, trail))}'" if trail else "it"
