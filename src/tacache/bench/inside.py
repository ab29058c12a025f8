"""Rivals that cache inside the model, as methods: the real pipeline with their hooks in place.

An evaluation is a step in which the model's last block ran for the prompt, as counted there. A
skipped step still runs a part of the model: what all steps cost together is counted beside it, in
evaluations ("worth").
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from pydantic import JsonValue
from torch import Tensor

from tacache.baselines import Problem
from tacache.bench.lessons import Lesson
from tacache.bench.records import plain
from tacache.bench.seam import Calls
from tacache.decomposition import norm
from tacache.files import Frozen
from tacache.velocity import euler

if TYPE_CHECKING:  # they load diffusers, which not every host goes with
    from tacache.diffusers.peers import Peer, Tried

TUNED = 2  # calibration samples that thresholds are searched on
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Inside:
    """A cache inside the model, tuned for the budget or at a published setting."""

    baseline: "Peer[Any]"
    variant: str | None = None
    inside: ClassVar[bool] = True

    @property
    def budgeted(self) -> bool:
        """At a published setting it has a budget of its own."""
        return self.variant is None

    @property
    def taught(self) -> bool:
        """At a published setting it needs no samples."""
        return self.variant is None

    def prepare(self, lesson: Lesson, evaluations: int | None) -> Frozen:
        """Tune it on a few calibration samples, in runs of the real pipeline."""
        from tacache.diffusers.peers import check_supported

        self.baseline.available()
        check_supported(lesson.caller.pipe)
        if self.variant is not None:
            published: Frozen = self.baseline.published[self.variant]
            self.baseline.check(lesson.caller.pipe.transformer, published)
            return published
        assert evaluations is not None
        settings: Frozen = self.baseline.fit(LessonTrials(lesson, self.baseline), evaluations)
        return settings

    def sample(self, problem: Problem, settings: Any) -> Tensor:
        """Every step of the full grid: the cache itself says where the model is evaluated."""
        x = problem.noise
        for t, t_next in pairwise(problem.times):
            x = euler(x, problem.velocity(x, t), t, t_next)
        return x

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """All of them."""
        return plain(settings)


@cache
def peers() -> dict[str, "Peer[Any]"]:
    """Caches inside the model by name: none without diffusers, whose models they are for."""
    try:
        from tacache.diffusers.peers import PEERS
    except ImportError:
        return {}
    return PEERS


def within(method: Any, caller: Calls, settings: Any) -> AbstractContextManager[None]:
    """What must be in place at the pipeline while a method samples: nothing, or its cache."""
    if isinstance(method, Inside):
        from tacache.diffusers.peers import Cache

        return caller.inside(Cache(method.baseline, settings))
    return nullcontext()


class LessonTrials:
    """Runs of a cache on the first samples of a lesson; settings are tried once."""

    def __init__(self, lesson: Lesson, peer: "Peer[Any]") -> None:
        self._lesson, self._peer = lesson, peer
        self._subjects = lesson.subjects[:TUNED]
        self._ends = [lesson.walk(i).states[-1:] for i in range(len(self._subjects))]
        self._known: dict[Any, Tried] = {}

    @property
    def steps(self) -> int:
        """N, the number of steps of a run."""
        return self._lesson.caller.steps

    @property
    def family(self) -> str:
        """The name of the model's family."""
        from tacache.diffusers.peers.families import family_of

        return family_of(self._lesson.caller.pipe.transformer).name

    def tried(self, settings: Any) -> "Tried":
        """The mean evaluations and the mean of |x - x_N|^2 / |x_N|^2."""
        from tacache.diffusers.peers import Tried

        if settings not in self._known:
            made = [self._run(i, settings, lambda _: None) for i in range(len(self._subjects))]
            errors = [_error(x, end) for (x, *_), end in zip(made, self._ends, strict=True)]
            self._known[settings] = Tried(mean(spent for _, spent, _ in made), mean(errors))
        return self._known[settings]

    def seen(self, settings: Any, look: Callable[[Any], Seen]) -> list[Seen]:
        """What there is to see in the model after each sample's run."""
        return [self._run(i, settings, look)[2] for i in range(len(self._subjects))]

    @torch.no_grad()
    def _run(
        self, number: int, settings: Any, look: Callable[[Any], Seen]
    ) -> tuple[Tensor, int, Seen]:
        caller, method = self._lesson.caller, Inside(self._peer)
        with within(method, caller, settings), caller.open(self._subjects[number]) as velocity:

            def ticking(x: Tensor, t: float) -> Tensor:
                self._lesson.tick()
                return velocity(x, t)

            x = method.sample(Problem(ticking, velocity.run.noise, caller.times), settings)
            return x, len(velocity.evaluated), look(caller.pipe.transformer)


def _error(x: Tensor, end: Tensor) -> float:
    error = float((norm(x.double() - end.double()) / norm(end.double())) ** 2)
    return error if error < float("inf") else float("inf")  # a NaN is as bad
