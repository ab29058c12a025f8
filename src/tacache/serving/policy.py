"""Who is in the next batch, how many rows it has, and when it starts: pure functions of what waits.

Who came first goes first, and all whose calls can be joined to that one may share its batch.
"""

from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from tacache.serving.request import EvaluationRequest, GenerationRequest

PATIENCE = 0.05  # of a batch's time: how long it waits for a request that came before


class Situation(NamedTuple):
    """What the next batch depends on, beside what waits."""

    now: float  # by time.monotonic(), as all times here
    running: int  # requests that run, whether or not they wait
    max_rows: int  # that fit and pay, at the size of whoever goes first
    max_wait_s: float  # how long a batch waits for others
    last_ended: float = 0.0  # when the batch before ended
    last: Sequence[GenerationRequest] = ()  # whose evaluations were in it
    full_seconds: float = 0.0  # that a batch of the size of whoever goes first takes; 0: not known
    single: Container[Hashable] = ()  # kinds of calls that are not joined


class NextBatch(NamedTuple):
    """The evaluations of the next batch, and in how many seconds it starts."""

    evaluations: list[EvaluationRequest]
    wait_s: float

    @property
    def rows(self) -> int:
        """Return the rows of all evaluations."""
        return sum(evaluation.call.rows for evaluation in self.evaluations)


def goes_first(waiting: Sequence[EvaluationRequest]) -> EvaluationRequest:
    """Return who goes first: what begins or ends a request, before evaluations; then by age."""
    return min(waiting, key=_order)


def next_batch(waiting: Sequence[EvaluationRequest], situation: Situation) -> NextBatch:
    """Return who shares the batch of the one that goes first, and when that batch starts.

    It starts at once where it is full or nobody else can come. A full batch still waits a moment
    for a request that came before those in it, if that one will ask for an evaluation again.
    """
    ordered = sorted(waiting, key=_order)
    first = ordered[0]
    if is_single(first, situation):
        return NextBatch([first], 0.0)
    batch, rows = [first], first.call.rows
    for evaluation in ordered[1:]:
        if _group(evaluation) != _group(first) or rows + evaluation.call.rows > situation.max_rows:
            continue
        batch.append(evaluation)
        rows += evaluation.call.rows
    if len(waiting) >= situation.running:
        return NextBatch(batch, 0.0)
    is_full = rows >= situation.max_rows
    wait = _patience(first, waiting, situation) if is_full else situation.max_wait_s
    since = max(first.since, situation.last_ended)  # those of the last batch may come again
    return NextBatch(batch, wait - (situation.now - since))


def is_single(evaluation: EvaluationRequest, situation: Situation) -> bool:
    """Return whether it shares no batch: it cannot be compared, or joining its kind went wrong."""
    kind = evaluation.call.key
    return kind is None or kind in situation.single


def _order(evaluation: EvaluationRequest) -> tuple[bool, int]:
    return evaluation.kind == "evaluation", evaluation.generation.number


def _group(evaluation: EvaluationRequest) -> Hashable:
    """Return what evaluations of one batch have in common."""
    return evaluation.call.key, evaluation.generation.adapters


def _patience(
    first: EvaluationRequest, waiting: Sequence[EvaluationRequest], situation: Situation
) -> float:
    """Return how long a full batch waits for a request of the last one that came before."""
    here = {id(evaluation.generation) for evaluation in waiting}
    late = [
        generation
        for generation in situation.last
        if generation.number < first.generation.number
        and id(generation) not in here
        and generation.comes_back
    ]
    if first.kind != "evaluation" or not late:
        return 0.0
    return min(situation.max_wait_s, PATIENCE * situation.full_seconds)
