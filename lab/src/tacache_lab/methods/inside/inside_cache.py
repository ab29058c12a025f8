"""What every cache inside a model has: settings, how it is put in, and how it meets a budget."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tacache.storage.files import Frozen
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.seam import Described
from tacache_lab.methods.tuning import (
    MAX_THRESHOLD,
    TuningRuns,
    bisected,
    spread,
    unreachable,
)

LOWEST, BISECTIONS = 1e-3, 10  # of the search for a threshold
# of a choice: how many samples candidates are tried on, and how many of them are left
ROUNDS = ((1, 12), (2, 4), (8, 1))

Settings = TypeVar("Settings", bound=Frozen)
Look = Callable[[Any], Sequence[float]]  # what it sees in a transformer


class Trials(Protocol):
    """Real runs on calibration samples, for a cache to be tuned by."""

    @property
    def steps(self) -> int:
        """Return N, the number of steps of a run."""

    @property
    def family(self) -> str:
        """Return the name of the model's family, such as "flux" (`families`)."""

    @property
    def most(self) -> int | None:
        """Return how many settings are run, where not all are."""

    def grid(self, steps: int) -> Sequence[float]:
        """Return the grid of so many steps."""

    def evaluations(self, settings: Any) -> float:
        """Return how many evaluations these settings take, the mean of a few samples."""

    def error(self, settings: Any, samples: int) -> float:
        """Return how far the first samples end from the reference, the mean."""

    def seen(self, settings: Any, look: Look) -> list[Sequence[float]]:
        """Run a few samples, and look at the transformer after each."""


class InsideCache(Described[Settings]):
    """A rival that is a cache inside the model: how it is put in, and how it is tuned."""

    skip_cost: float = 0.0  # about the share of an evaluation that a skipped step takes

    @abstractmethod
    def install(self, site: Site, settings: Settings) -> None:
        """Put it into the model, in a new state; the caller takes it out again."""

    @abstractmethod
    def candidates(self, trials: Trials, evaluations: int) -> Sequence[Settings]:
        """Return settings that spend the budget or a little less; empty where none come so low."""

    def tuning_runs(self, steps: int, evaluations: int, most: int) -> TuningRuns:
        """Return about how many runs tuning takes, with so many settings at most."""
        return TuningRuns(on_all=most, on_few=0)

    def check(self, transformer: Any, settings: Settings) -> None:
        """Raise PlanError where these settings mean nothing for a model; most always do."""

    def available(self) -> None:
        """Raise HostError where what it needs is not there; most need nothing."""

    def fit(self, trials: Trials, evaluations: int) -> Settings:
        """Return its best settings for a budget: the candidate that ends nearest to the reference.

        A try is a run of the whole model: only the best of a round are tried on more samples.
        """
        candidates = self.candidates(trials, evaluations)
        if not candidates:
            raise unreachable(self.name, evaluations, trials.steps, self.needs)
        left = spread(candidates, trials.most)
        for samples, kept in ROUNDS:
            if len(left) > kept:
                left = sorted(left, key=lambda settings: trials.error(settings, samples))[:kept]
        return left[0]


@dataclass(frozen=True)
class Cache:
    """A cache with its settings, ready to be put into a model."""

    kind: InsideCache[Any]
    settings: Any

    def install(self, site: Site) -> None:
        """Put it into the model."""
        self.kind.available()
        self.kind.install(site, self.settings)


class Thresholded(InsideCache[Settings]):
    """A cache with a `threshold`: the lower it is, the more is evaluated."""

    @abstractmethod
    def variants(self, steps: int, evaluations: int) -> Sequence[Settings]:
        """Return settings that differ in all but the threshold, which is found for each."""

    def tuning_runs(self, steps: int, evaluations: int, most: int) -> TuningRuns:
        """Return a search for the threshold of each variant, and a comparison of several."""
        variants = len(self.variants(steps, evaluations))
        return TuningRuns(min(variants, most) if variants > 1 else 0, variants * BISECTIONS)

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[Settings]:
        """Return each variant with the lowest threshold that stays within the budget."""
        variants = self.variants(trials.steps, evaluations)
        best = [tightest(trials, settings, evaluations) for settings in variants]
        if variants and not any(best):
            fewest = min(
                trials.evaluations(with_threshold(variant, MAX_THRESHOLD)) for variant in variants
            )
            nearest = f"the nearest it comes is {fewest:g}"
            raise unreachable(self.name, evaluations, trials.steps, nearest)
        return [settings for settings in best if settings is not None]


def with_threshold(settings: Settings, threshold: float) -> Settings:
    """Return the same settings with another threshold."""
    update: dict[str, Any] = {"threshold": threshold}
    return settings.model_copy(update=update)


def tightest(trials: Trials, settings: Settings, evaluations: int) -> Settings | None:
    """Return the lowest threshold whose mean of real runs stays within the budget, by bisection."""

    def tried(threshold: float) -> tuple[float, Settings]:
        trial = with_threshold(settings, threshold)
        return trials.evaluations(trial), trial

    first = 0.0 if evaluations == trials.steps else MAX_THRESHOLD
    spent, best = bisected(tried, evaluations, first=first, lowest=LOWEST, times=BISECTIONS)
    return best if spent <= evaluations else None
