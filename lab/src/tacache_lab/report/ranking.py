"""The methods of a study in order over all budgets, which figures name, and their colours."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from tacache_lab.report.summary import Study, is_ours

NAMED = 10  # rivals that figures and the page name at first
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
    """Return a style for each: ours strong, others muted, no two alike up to a hundred."""
    by_method = {m: Style(FIXED[m], "o", True) for m in methods if m in FIXED}
    variants = [method for method in methods if is_ours(method) and method not in FIXED]
    rivals = [method for method in methods if not is_ours(method)]
    by_method |= {m: Style(OURS[i % len(OURS)], "o", True) for i, m in enumerate(variants)}
    for i, method in enumerate(rivals):
        mark = MARKS[(i + i // len(OTHERS)) % len(MARKS)]
        by_method[method] = Style(OTHERS[i % len(OTHERS)], mark, False)
    return by_method


def standing(study: Study, name: str) -> list[str]:
    """Return methods with a budget, best first by the mean of their ranks in a quantity."""
    rows = [row for table in study.tables if table.evaluations is not None for row in table.rows]
    last = len({row.method for row in rows}) + 1
    ranks: dict[str, list[int]] = {}
    for row in rows:
        ranks.setdefault(row.method, []).append(row.ranks.get(name, last))
    return sorted(ranks, key=lambda method: (fmean(ranks[method]), method))


def leading(study: Study, name: str, top: int) -> list[str]:
    """Return ours, and the best others, as many as are asked for; in the order they stand."""
    order = standing(study, name)
    best = [method for method in order if not is_ours(method)][:top]
    return [method for method in order if is_ours(method) or method in best]


def named(study: Study) -> list[str]:
    """Return the methods that figures name: all, or ours and the best where there are many."""
    ours = [method for method in study.methods if is_ours(method)]
    name = next((name for name in study.headlines if study.has(name)), None)
    if len(study.methods) - len(ours) <= NAMED or name is None:
        return study.methods
    return list(dict.fromkeys([*ours, *leading(study, name, NAMED)]))


def study_styles(study: Study) -> dict[str, Style]:
    """Return how each method of a study is drawn; those that are named are told apart best."""
    return styles(list(dict.fromkeys([*named(study), *study.methods])))
