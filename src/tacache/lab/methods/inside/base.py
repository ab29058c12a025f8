"""What every cache inside a model has: settings, how it is put in, and how it meets a budget."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tacache.lab.methods.inside.attaching import Site
from tacache.lab.methods.seam import Described
from tacache.lab.methods.tuning import LOOSEST, bisected, spread, unreachable
from tacache.storage.files import Frozen

LOWEST, BISECTIONS = 1e-3, 10  # of the search for a threshold
# of a choice: how many samples candidates are tried on, and how many of them are left
ROUNDS = ((1, 12), (2, 4), (8, 1))

Settings = TypeVar("Settings", bound=Frozen)
Look = Callable[[Any], Sequence[float]]  # what it sees in a transformer


class Trials(Protocol):
    """Real runs on calibration samples, for a cache to be tuned by."""

    @property
    def steps(self) -> int:
        """N, the number of steps of a run."""

    @property
    def family(self) -> str:
        """The name of the model's family, such as "flux" (`families`)."""

    @property
    def most(self) -> int | None:
        """How many settings are run, where not all are."""

    def evaluations(self, settings: Any) -> float:
        """How many evaluations these settings take, the mean of a few samples."""

    def error(self, settings: Any, samples: int) -> float:
        """How far the first samples, at most all of them, end from the reference, the mean."""

    def seen(self, settings: Any, look: Look) -> list[Sequence[float]]:
        """Run a few samples, and look at the transformer after each."""


class InsideCache(Described[Settings]):
    """A rival that is a cache inside the model: how it is put in, and how it is tuned."""

    @abstractmethod
    def install(self, site: Site, settings: Settings) -> None:
        """Put it into the model, in a new state; the caller takes it out again."""

    @abstractmethod
    def candidates(self, trials: Trials, evaluations: int) -> Sequence[Settings]:
        """Settings that spend the budget or a little less; empty where none come so low."""

    def check(self, transformer: Any, settings: Settings) -> None:
        """Raise PlanError where these settings mean nothing for a model; most always do."""

    def available(self) -> None:
        """Raise HostError where what it needs is not there; most need nothing."""

    def fit(self, trials: Trials, evaluations: int) -> Settings:
        """Its best settings for a budget: the candidate that ends nearest to the reference.

        A try is a run of the whole model: only the best of a round are tried on more samples.
        """
        found = self.candidates(trials, evaluations)
        if not found:
            raise unreachable(self.name, evaluations, trials.steps, self.needs)
        left = spread(found, trials.most)
        for samples, kept in ROUNDS:
            if len(left) > kept:
                left = sorted(left, key=lambda one: trials.error(one, samples))[:kept]
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
        """Settings that differ in all but the threshold, which is found for each."""

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[Settings]:
        """Each variant with the lowest threshold that stays within the budget."""
        variants = self.variants(trials.steps, evaluations)
        found = [tightest(trials, settings, evaluations) for settings in variants]
        if variants and not any(found):
            fewest = min(trials.evaluations(with_threshold(one, LOOSEST)) for one in variants)
            nearest = f"the nearest it comes is {fewest:g}"
            raise unreachable(self.name, evaluations, trials.steps, nearest)
        return [settings for settings in found if settings is not None]


def with_threshold(settings: Settings, threshold: float) -> Settings:
    """The same settings with another threshold."""
    update: dict[str, Any] = {"threshold": threshold}
    return settings.model_copy(update=update)


def tightest(trials: Trials, settings: Settings, evaluations: int) -> Settings | None:
    """The lowest threshold whose mean of real runs stays within the budget, by bisection."""

    def tried(threshold: float) -> tuple[float, Settings]:
        trial = with_threshold(settings, threshold)
        return trials.evaluations(trial), trial

    first = 0.0 if evaluations == trials.steps else LOOSEST
    spent, best = bisected(tried, evaluations, first=first, lowest=LOWEST, times=BISECTIONS)
    return best if spent <= evaluations else None
