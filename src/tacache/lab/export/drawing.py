"""A way to draw the samples of an export, whatever the host: what hosts and their runner share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tacache.lab.bench.jobs import Job
from tacache.lab.bench.records import Key
from tacache.lab.bench.runner import Bench
from tacache.lab.bench.seam import Subject
from tacache.lab.export.orders import Order
from tacache.plan import Plan

# a subject and where a draft may go, without suffix -> the draft's file and the record's fields
Draws = Callable[[Subject, Path], tuple[Path, dict[str, Any]]]


class Drawing(NamedTuple):
    """A way to draw: what its records are called, what they share, and the drawing itself."""

    method: str
    evaluations: int | None
    shared: dict[str, Any]
    draw: Draws

    def key(self, subject: Subject) -> Key:
        """Of the record of a subject."""
        return Key(self.method, self.evaluations, *subject)


class Studio(Protocol):
    """A model that can draw."""

    def caller(self, job: Job) -> Any:
        """A caller of the benchmark, or its facts: `host`, `times`, `steps` and `device`."""

    def drawing(self, bench: Bench, order: Order) -> AbstractContextManager[Drawing]:
        """The way to draw that is asked for, ready for the length of a `with` block."""


def anchor_times(plan: Plan) -> tuple[float, ...]:
    """When a plan evaluates the model, as records have it."""
    return tuple(round(plan.times[n], 6) for n in plan.anchors)
