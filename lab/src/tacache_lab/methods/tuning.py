"""How settings are found that spend a budget: what rivals outside and inside a model share."""

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tacache.errors import PlanError
from tacache.storage.files import Frozen

Candidate = TypeVar("Candidate")
SLACK = 2  # evaluations that a setting may leave of its budget: it may yet be better
MAX_THRESHOLD = 1e6  # a threshold no run reaches
MAX_SEARCHED_THRESHOLD = 10.0  # up to which thresholds are searched, on a log scale


class TuningRuns(NamedTuple):
    """How many settings are run on all calibration samples, and how many on a few."""

    on_all: int
    on_few: int


def nearly(evaluations: int) -> range:
    """Return the numbers of evaluations that count as spending the budget, the budget first."""
    return range(evaluations, max(evaluations - SLACK, 1) - 1, -1)


def spending(by_steps: Mapping[tuple[int, ...], Candidate], evaluations: int) -> list[Candidate]:
    """Return the candidates with the most evaluated steps up to the budget, or a few fewer.

    `found` has them by the steps they evaluate.
    """
    most = max((len(steps) for steps in by_steps if len(steps) <= evaluations), default=0)
    return [
        candidate for steps, candidate in by_steps.items() if most - SLACK <= len(steps) <= most
    ]


def spread(candidates: Sequence[Candidate], most: int | None) -> list[Candidate]:
    """Return so many candidates at most, from one end of the list to the other; all for None."""
    if most is None or len(candidates) <= most:
        return list(candidates)
    if most == 1:
        return [candidates[0]]
    return [candidates[round(i * (len(candidates) - 1) / (most - 1))] for i in range(most)]


def named(settings: Frozen) -> str:
    """Return a short name that no other settings have."""
    content = f"{type(settings).__name__} {settings.model_dump_json()}"
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def least(
    candidates: Sequence[Candidate], cost: Callable[[Candidate, int], float], parts: int
) -> Candidate:
    """Return the candidate whose costs of all parts sum to the least; costs are not negative.

    Whoever has the least so far is taken further: who is first to be through has won, and most of
    the others were never finished.
    """
    running = [(0.0, i, 0) for i in range(len(candidates))]
    while True:
        total, i, done = heapq.heappop(running)
        if done == parts:
            return candidates[i]
        heapq.heappush(running, (total + cost(candidates[i], done), i, done + 1))


def unreachable(name: str, evaluations: int, steps: int, why: str) -> PlanError:
    """Return the error of a method that has no settings for a budget."""
    return PlanError(f"{name} cannot run on {evaluations} evaluations of {steps} steps: {why}")


def bisected(
    tried: Callable[[float], tuple[float, Candidate]],
    budget: int,
    *,
    first: float,
    lowest: float,
    times: int,
) -> tuple[float, Candidate]:
    """Return what the lowest threshold within the budget spends, and its settings.

    `tried` says what a threshold spends: the lower it is, the more. The search starts with `first`,
    and halves the logarithms between `lowest` and `MAX_SEARCHED_THRESHOLD` so many times.
    """
    spent, best = tried(first)
    low, high = lowest, MAX_SEARCHED_THRESHOLD
    for _ in range(times):
        if spent >= budget:
            break
        middle = (low * high) ** 0.5
        mean, trial = tried(middle)
        if spent < mean <= budget:
            spent, best = mean, trial
        low, high = (middle, high) if mean > budget else (low, middle)
    return spent, best
