"""What requests ask for, who of them goes first, and who may share a wave."""

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tacache.errors import TACacheError
from tacache.serving.joining import JoinableCall


class Cancelled(TACacheError):  # noqa: N818 - not a mistake of anybody
    """The request was cancelled before it was finished."""


What = Literal["evaluation", "decoding", "other"]


@dataclass(eq=False)
class Ask:
    """One evaluation that a request waits for."""

    call: JoinableCall
    request: Any  # has `is_cancelled`, `adapters`, `size`, `number` and `answered`
    what: What = "other"
    since: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def answer(self, result: Any = None, error: BaseException | None = None) -> None:
        """Let the request go on, with a result or an error."""
        self.result, self.error = result, error
        self.request.answered = time.monotonic()
        self.done.set()


def wave_of(pending: Sequence[Ask], most: int, alone: set[Hashable]) -> list[Ask]:
    """Who would be in the next wave: the one who came first and all who may join it."""
    if not pending:
        return []
    ordered = sorted(pending, key=goes_first)
    group = _group(ordered[0], alone)
    chosen, total = list[Ask](), 0
    for ask in ordered:
        if _group(ask, alone) != group or (chosen and total + ask.call.rows > most):
            continue
        chosen.append(ask)
        total += ask.call.rows
    return chosen


def goes_first(ask: Ask) -> tuple[bool, int]:
    """Who goes first: what requests begin or end with, before evaluations; then who came first."""
    return ask.what == "evaluation", ask.request.number


def _group(ask: Ask, alone: set[Hashable]) -> Hashable:
    """What asks of one wave have in common."""
    return id(ask) if is_alone(ask, alone) else (ask.call.key, ask.request.adapters)


def is_alone(ask: Ask, alone: set[Hashable]) -> bool:
    """Whether an ask shares no wave: it cannot be compared, or joining it went wrong before."""
    return ask.call.key is None or ask.call.key in alone
