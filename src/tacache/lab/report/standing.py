"""The methods of a study in order over all budgets, and which of them figures name."""

from statistics import fmean

from tacache.lab.report.style import Style, styles
from tacache.lab.report.summary import Study, is_ours

NAMED = 10  # rivals that figures and the page name at first


def standing(study: Study, name: str) -> list[str]:
    """Methods with a budget, best first by the mean of their ranks in a quantity."""
    rows = [row for table in study.tables if table.evaluations is not None for row in table.rows]
    last = len({row.method for row in rows}) + 1
    ranks: dict[str, list[int]] = {}
    for row in rows:
        ranks.setdefault(row.method, []).append(row.ranks.get(name, last))
    return sorted(ranks, key=lambda method: (fmean(ranks[method]), method))


def leading(study: Study, name: str, top: int) -> list[str]:
    """Ours, and the best others, as many as are asked for; in the order they stand."""
    order = standing(study, name)
    best = [method for method in order if not is_ours(method)][:top]
    return [method for method in order if is_ours(method) or method in best]


def named(study: Study) -> list[str]:
    """The methods that figures name: all, or ours and the best where there are many."""
    ours = [method for method in study.methods if is_ours(method)]
    name = next((name for name in study.headlines if study.has(name)), None)
    if len(study.methods) - len(ours) <= NAMED or name is None:
        return study.methods
    return list(dict.fromkeys([*ours, *leading(study, name, NAMED)]))


def study_styles(study: Study) -> dict[str, Style]:
    """How each method of a study is drawn; those that are named are told apart best."""
    return styles(list(dict.fromkeys([*named(study), *study.methods])))
