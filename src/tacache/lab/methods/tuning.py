"""How settings are found that spend a budget: what rivals outside and inside a model share."""

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tacache.errors import PlanError
from tacache.storage.files import Frozen

Candidate = TypeVar("Candidate")
SLACK = 2  # evaluations that a setting may leave of its budget: it may yet be better
LOOSEST = 1e6  # a threshold no run reaches
HIGHEST = 10.0  # up to which thresholds are searched, on a log scale


def nearly(evaluations: int) -> range:
    """The numbers of evaluations that count as spending the budget, the budget first."""
    return range(evaluations, max(evaluations - SLACK, 1) - 1, -1)


def spending(found: Mapping[tuple[int, ...], Candidate], evaluations: int) -> list[Candidate]:
    """The candidates with the most evaluated steps up to the budget, or a few fewer.

    `found` has them by the steps they evaluate.
    """
    most = max((len(steps) for steps in found if len(steps) <= evaluations), default=0)
    return [one for steps, one in found.items() if most - SLACK <= len(steps) <= most]


def spread(found: Sequence[Candidate], most: int | None) -> list[Candidate]:
    """So many candidates at most, from one end of the list to the other; all for None."""
    if most is None or len(found) <= most:
        return list(found)
    if most == 1:
        return [found[0]]
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]


def named(settings: Frozen) -> str:
    """A short name that no other settings have."""
    content = f"{type(settings).__name__} {settings.model_dump_json()}"
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def least(
    found: Sequence[Candidate], cost: Callable[[Candidate, int], float], parts: int
) -> Candidate:
    """The candidate whose costs of all parts sum to the least; costs are not negative.

    Whoever has the least so far is taken further: who is first to be through has won, and most of
    the others were never finished.
    """
    running = [(0.0, i, 0) for i in range(len(found))]
    while True:
        total, i, done = heapq.heappop(running)
        if done == parts:
            return found[i]
        heapq.heappush(running, (total + cost(found[i], done), i, done + 1))


def unreachable(name: str, evaluations: int, steps: int, why: str) -> PlanError:
    """The error of a method that has no settings for a budget."""
    return PlanError(f"{name} cannot run on {evaluations} evaluations of {steps} steps: {why}")


def bisected(
    tried: Callable[[float], tuple[float, Candidate]],
    budget: int,
    *,
    first: float,
    lowest: float,
    times: int,
) -> tuple[float, Candidate]:
    """What is spent with the lowest threshold that stays within the budget, and its settings.

    `tried` says what a threshold spends: the lower it is, the more. The search starts with `first`,
    and halves the logarithms between `lowest` and `HIGHEST` so many times.
    """
    spent, best = tried(first)
    low, high = lowest, HIGHEST
    for _ in range(times):
        if spent >= budget:
            break
        middle = (low * high) ** 0.5
        mean, trial = tried(middle)
        if spent < mean <= budget:
            spent, best = mean, trial
        low, high = (middle, high) if mean > budget else (low, middle)
    return spent, best
