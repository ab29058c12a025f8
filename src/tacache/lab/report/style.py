"""Colours and marks of methods, the same in every figure and on the page."""

from collections.abc import Sequence
from typing import NamedTuple

from tacache.lab.report.summary import is_ours

FIXED = {"fitted": "#2f6fd0", "tasu": "#d1495b", "tasu-10": "#7b4fb5"}
OURS = ("#0f8b8d", "#c2571a", "#4356a8", "#9c2c77", "#2e8b57", "#a33b20", "#5a5fcf", "#8c6d00")
OTHERS = ("#8a9a5b", "#b08968", "#6f8faf", "#a07ba0", "#c9a227", "#5f9e8f", "#b07a7a",
          "#7d7d7d", "#8fb0c9", "#a3a06b")  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    mark: str
    ours: bool


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """A style for each: ours strong and round, others muted, no two alike up to a hundred."""
    found = {m: Style(FIXED[m], "o", True) for m in methods if m in FIXED}
    variants = [method for method in methods if is_ours(method) and method not in FIXED]
    others = [method for method in methods if not is_ours(method)]
    found |= {m: Style(OURS[i % len(OURS)], "o", True) for i, m in enumerate(variants)}
    for i, method in enumerate(others):
        mark = MARKS[(i + i // len(OTHERS)) % len(MARKS)]
        found[method] = Style(OTHERS[i % len(OTHERS)], mark, False)
    return found
