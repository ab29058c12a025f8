"""Read text and JSON from files that may be damaged or hostile, within bounds."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 16 * 2**20  # bytes: a plan of 10,000 steps has less than a tenth of them
MAX_NUMBER = 1e30  # of any sign: no quantity is near it, and sums of its squares are finite
MAX_DEPTH = 32  # lists and objects inside each other; configurations have five at most


def read_bounded(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file; raise ValueError, before it is in memory, if it is too large."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes // 2**20} MiB")
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
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return fields


def _check_bounds(value: Any, finite: bool, trail: tuple[str | int, ...] = ()) -> None:
    """Refuse what no sound file holds; `trail` are the keys that lead to the value."""
    if isinstance(value, float) and not math.isfinite(value):
        if finite:
            raise ValueError(f"{_named(trail)} is not a finite number")
    elif isinstance(value, float | int) and abs(value) > MAX_NUMBER:
        raise ValueError(f"{_named(trail)} is beyond {MAX_NUMBER:g}")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is a ValueError: no file could be written with it
    if not isinstance(value, dict | list):
        return
    if len(trail) >= MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if type(part) is not float or not abs(part) <= MAX_NUMBER:  # most are sound numbers
            _check_bounds(part, finite, (*trail, key))


def _named(trail: Sequence[str | int]) -> str:
    return f"field '{'.'.join(map(str, trail))}'" if trail else "it"
