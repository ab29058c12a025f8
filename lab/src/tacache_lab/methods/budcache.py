"""BudCache (Lei et al., ICML 2026, arXiv:2606.13496): search the anchors of a fixed budget.

Simulated annealing over sets of K steps, then hill climbing, both on the final state's error on a
few calibration runs; between anchors the residual (or velocity) is reused. Its second stage, which
trains the time grid, is not part of this baseline. Published, a sweep of the climb moves the one
anchor that gains most, with 20 sweeps at most; here every anchor moves in its turn, so that a few
sweeps come to where no near move helps.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from tacache_lab.methods.caching import REUSES, AnchoredRule, AnchorSettings, Rebuild, Reuse, reused
from tacache_lab.methods.seam import Meter, RecordedProblem

DEFAULT_TRIES = 200  # of annealing
MAX_SWEEPS = 20  # of hill climbing, at most
HOTTEST, COLDEST = 0.05, 1e-5  # temperatures in units of the relative squared error
RADIUS = 3
NEAR_SHARE = 0.7  # of the moves stay within the radius
PAIR_SHARE = 0.1  # of them move two anchors
JUMPS = 2  # beyond the radius that climbing tries of each anchor
SAMPLES = 2  # published: one prompt
SHORT = 10  # tries of annealing for each setting that a short tuning may try
KEPT_RUNS = 8  # whose velocities are kept: those of the current set, the best and its neighbours

Anchors = tuple[int, ...]
Loss = Callable[[Anchors], float]


class BudCacheSettings(AnchorSettings):
    """The anchors found, and the search that found them."""

    reuse: Reuse
    tries: int
    seed: int


def first_guess(steps: int, evaluations: int) -> Anchors:
    """Return a computed prefix of K / 4 steps, the rest spread evenly after it."""
    prefix = min(max(1, evaluations // 4), evaluations)
    rest = evaluations - prefix
    spread = (prefix + (2 * i + 1) * (steps - prefix) // (2 * rest) for i in range(rest))
    return (*range(prefix), *spread)


def anneal(start: Anchors, steps: int, loss: Loss, tries: int, seed: int) -> Anchors:
    """Return the best set seen by simulated annealing that moves an anchor or two at a time.

    0 stays.
    """
    draw = random.Random(seed)
    current = best = start
    if not 1 < len(start) < steps:
        return start
    for i in range(tries):
        temperature = HOTTEST * (COLDEST / HOTTEST) ** (i / tries)
        candidate = _moved(current, steps, draw)
        worse = loss(candidate) - loss(current)
        if worse < 0 or draw.random() < math.exp(-worse / temperature):
            current = candidate
        if loss(current) < loss(best):
            best = current
    return best


def climb(start: Anchors, steps: int, loss: Loss, sweeps: int, seed: int) -> Anchors:
    """Move anchor after anchor to its best neighbour, until a sweep over all moves none."""
    draw, best = random.Random(seed), start
    for _ in range(sweeps):
        before = best
        for j in range(len(start) - 1, 0, -1):  # late ones first: less is evaluated for them
            best = min((best, *_neighbours(best, steps, best[j], draw)), key=loss)
        if best == before:
            break
    return best


def _moved(anchors: Anchors, steps: int, draw: random.Random) -> Anchors:
    free = _free(anchors, steps)
    if draw.random() < PAIR_SHARE and min(len(anchors) - 1, len(free)) > 1:
        sources, targets = draw.sample(anchors[1:], 2), draw.sample(free, 2)
        return tuple(sorted({*anchors, *targets} - {*sources}))
    source = draw.choice(anchors[1:])
    near = [n for n in free if abs(n - source) <= RADIUS]
    target = draw.choice(near if near and draw.random() < NEAR_SHARE else free)
    return _replaced(anchors, source, target)


def _neighbours(
    anchors: Anchors, steps: int, source: int, draw: random.Random
) -> Iterator[Anchors]:
    """Yield the sets with this anchor moved within the radius, and a few with it anywhere else."""
    free = _free(anchors, steps)
    near = [n for n in free if abs(n - source) <= RADIUS]
    far = [n for n in free if abs(n - source) > RADIUS]
    for target in (*near, *draw.sample(far, min(JUMPS, len(far)))):
        yield _replaced(anchors, source, target)


def _free(anchors: Anchors, steps: int) -> list[int]:
    return sorted(set(range(1, steps)) - set(anchors))


def _replaced(anchors: Anchors, source: int, target: int) -> Anchors:
    return tuple(sorted({*anchors, target} - {source}))


class SharedStarts(Meter):
    """The velocity function of one run, which takes over what runs with the same start evaluated.

    Moving an anchor changes nothing before it: the search is half as long, and finds the same.
    """

    def __init__(
        self, recording: RecordedProblem, anchors: Anchors, kept: OrderedDict[Anchors, Tensor]
    ) -> None:
        super().__init__(recording)
        self._anchors, self._kept, self._calls = anchors, kept, 0

    def __call__(self, x: Tensor, t: float, rows: Sequence[int] | None = None) -> Tensor:
        """Return the velocity at the next anchor; kept ones by the anchors up to there."""
        if rows is not None:
            return super().__call__(x, t, rows)
        self._calls += 1
        start = self._anchors[: self._calls]
        if start not in self._kept:
            self._kept[start] = super().__call__(x, t)
        self._kept.move_to_end(start)
        if len(self._kept) > KEPT_RUNS * len(self._anchors):
            self._kept.popitem(last=False)
        return self._kept[start]


class BudCache(AnchoredRule[BudCacheSettings]):
    """BudCache's first stage; any budget, deterministic for a seed."""

    name = "budcache"
    citation = "Lei et al., Budget-Constrained Step-Level Diffusion Caching, ICML 2026"

    def __init__(self, tries: int = DEFAULT_TRIES, seed: int = 0) -> None:
        self.tries, self.seed = tries, seed

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[BudCacheSettings]:
        """Return the anchors found with each reuse.

        A short search has one sample and does not climb.
        """
        few = recording.first(SAMPLES if recording.most is None else 1)
        return [self._search(few, evaluations, reuse) for reuse in REUSES]

    def _search(
        self, recording: RecordedProblem, evaluations: int, reuse: Reuse
    ) -> BudCacheSettings:
        known: dict[Anchors, float] = {}
        kept: OrderedDict[Anchors, Tensor] = OrderedDict()

        def settings(anchors: Anchors) -> BudCacheSettings:
            return BudCacheSettings(anchors=anchors, reuse=reuse, tries=self.tries, seed=self.seed)

        def loss(anchors: Anchors) -> float:
            def error() -> tuple[float]:
                model = SharedStarts(recording, anchors, kept)
                return (recording.error(self.sample(model, recording, settings(anchors))),)

            if anchors not in known:
                (known[anchors],) = recording.tried(f"{reuse} {anchors}", error)
            return known[anchors]

        start = first_guess(recording.steps, evaluations)
        tries, sweeps = self.tries, MAX_SWEEPS
        if recording.most is not None:
            tries, sweeps = min(tries, SHORT * recording.most), 0
        annealed = anneal(start, recording.steps, loss, tries, self.seed)
        return settings(climb(annealed, recording.steps, loss, sweeps, self.seed))

    def rebuild(self, settings: BudCacheSettings) -> Rebuild:
        """Return the residual x + r_j, or v_j."""
        return reused(settings.reuse)
