"""Rules that walk the full grid and skip: anchors known before the run, and a reconstruction."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

from torch import Tensor

from tacache.storage.files import Frozen
from tacache.tasu import working_dtype
from tacache.velocity import euler
from tacache_lab.methods.seam import Baseline, Meter, SamplingProblem, Settings, Visit, last_state
from tacache_lab.methods.tuning import SLACK, spending

# What is kept at an anchor: its velocity v, or v - x, to which a later state is added.
Reuse = Literal["residual", "velocity"]
REUSES: tuple[Reuse, ...] = ("residual", "velocity")
KEPT = 3  # evaluated steps that most reconstructions look back to
MAX_SPAN = 6  # steps back that a reconstruction may look


class Past(NamedTuple):
    """What a reconstruction may look at, newest first: evaluated steps, and all steps."""

    anchors: tuple[Visit, ...] = ()
    steps: tuple[Visit, ...] = ()

    def then(self, visit: Visit, *, evaluated: bool, kept: int | None = KEPT) -> "Past":
        """Return the past one step later; it keeps some anchors (None: all) and a few steps."""
        anchors = (visit, *self.anchors)[:kept] if evaluated else self.anchors
        return Past(anchors, (visit, *self.steps[: MAX_SPAN - 1]))


class Now(NamedTuple):
    """The skipped step whose velocity is asked for."""

    step: int
    t: float
    t_next: float
    x: Tensor


Rebuild = Callable[[Past, Now], Tensor]


def walk_anchors(
    model: Meter,
    x: Tensor,
    times: Sequence[float],
    anchors: Iterable[int],
    rebuild: Rebuild,
    kept: int | None = KEPT,
) -> Iterator[Visit]:
    """Yield Euler over the full grid, step by step: evaluate at anchors, rebuild between them."""
    evaluated, past = frozenset(anchors), Past()
    for n, (t, t_next) in enumerate(pairwise(times)):
        if n in evaluated:
            v = model(x, t)
        else:
            v = rebuild(past, Now(n, t, t_next, x)).to(past.steps[0].v.dtype)
        visit = Visit(n, t, x, v)
        yield visit
        past = past.then(visit, evaluated=n in evaluated, kept=kept)
        x = euler(x, v, t, t_next)


def reused(reuse: Reuse) -> Rebuild:
    """Return the last anchor's velocity v_j as it is, or its residual: x + (v_j - x_j)."""

    def residual(past: Past, now: Now) -> Tensor:
        last = past.anchors[0]
        return now.x.to(working_dtype(now.x)) + (last.v - last.x)

    def velocity(past: Past, now: Now) -> Tensor:
        return past.anchors[0].v

    return residual if reuse == "residual" else velocity


class CachingRule(Baseline[Settings]):
    """A baseline whose anchors follow from its settings and the grid alone.

    `kept` is how many evaluated steps its reconstruction looks back to; None: all.
    """

    kept: int | None = KEPT

    @abstractmethod
    def anchors(self, settings: Settings, times: Sequence[float]) -> tuple[int, ...]:
        """Return the steps that are evaluated."""

    @abstractmethod
    def rebuild(self, settings: Settings) -> Rebuild:
        """Return how the others are reconstructed."""

    def visits(self, model: Meter, problem: SamplingProblem, settings: Settings) -> Iterator[Visit]:
        """Follow the anchors over the full grid."""
        anchors = self.anchors(settings, problem.times)
        rebuild = self.rebuild(settings)
        return walk_anchors(model, problem.noise, problem.times, anchors, rebuild, kept=self.kept)

    def sample(self, model: Meter, problem: SamplingProblem, settings: Settings) -> Tensor:
        """Return where following the anchors ends."""
        return last_state(self.visits(model, problem, settings), problem.times)

    def meeting(
        self, candidates: Iterable[Settings], times: Sequence[float], evaluations: int
    ) -> list[Settings]:
        """Return the settings with the most anchors up to the budget or a few fewer, one a set."""
        by_anchors: dict[tuple[int, ...], Settings] = {}
        for candidate in candidates:
            by_anchors.setdefault(self.anchors(candidate, times), candidate)
        return spending(by_anchors, evaluations)


class AnchorSettings(Frozen):
    """The steps to evaluate."""

    anchors: tuple[int, ...]


Anchored = TypeVar("Anchored", bound=AnchorSettings)


class AnchoredRule(CachingRule[Anchored]):
    """A baseline that finds its anchors when it is tuned: they are among its settings."""

    def anchors(self, settings: Anchored, times: Sequence[float]) -> tuple[int, ...]:
        """Return the steps that were found."""
        return settings.anchors


def with_reuses(settings: Iterable[Settings]) -> list[Settings]:
    """Return each of these settings with both ways to reuse what an anchor gave."""
    return [base.model_copy(update={"reuse": reuse}) for base in settings for reuse in REUSES]


def between(sums: Iterable[float]) -> list[float]:
    """Return one threshold for every set of sums that lie below a threshold, lowest first."""
    ordered = sorted({0.0, *sums})
    return [0.0, *((a + b) / 2 for a, b in pairwise(ordered)), 2 * ordered[-1] + 1]


def intervals_for(
    anchors: Callable[[int], tuple[int, ...]], steps: int, evaluations: int
) -> tuple[int, ...]:
    """Return the intervals with the most anchors up to the budget, or a few fewer.

    `anchors(interval)` are the steps a periodic rule evaluates.
    """
    counts = {n: len(anchors(n)) for n in range(1, steps + 1)}
    most = max((count for count in counts.values() if count <= evaluations), default=0)
    return tuple(n for n, count in counts.items() if most - SLACK <= count <= most)
