"""Baselines as methods of the benchmark."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue
from torch import Tensor

from tacache.storage.files import Frozen
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.records import plain
from tacache_lab.methods import BASELINES, SamplingProblem
from tacache_lab.methods.simple import GridSettings


@dataclass(frozen=True)
class Rival:
    """A baseline, tuned for the budget or at a published setting, whatever budget that leads to."""

    baseline: Any
    variant: str | None = None

    @property
    def budgeted(self) -> bool:
        """Return whether it is tuned; a published setting has a budget of its own."""
        return self.variant is None

    @property
    def calibrated(self) -> bool:
        """Return a published setting and a solver on a shorter grid need no calibration samples."""
        return self.variant is None and bool(self.baseline.tuned)

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return the published setting, or the one that is best for the budget."""
        settings: Frozen
        if self.variant is not None:
            settings = self.baseline.published[self.variant]
        else:
            assert evaluations is not None
            settings = self.fit(calibration_set, evaluations)
        return settings

    def fit(self, calibration_set: CalibrationSet, evaluations: int) -> Any:
        """Tune it on the calibration samples, where it has anything to tune."""
        outline = nullcontext(calibration_set.outline)
        with calibration_set.recording() if self.calibrated else outline as recording:
            return self.baseline.fit(recording, evaluations)

    def sample(self, problem: SamplingProblem, settings: Any) -> Tensor:
        """Run the baseline."""
        x: Tensor = self.baseline.run(problem, settings).x
        return x

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """Return all settings."""
        return plain(settings)


class EulerRun(Rival):
    """Euler's method on the host's grid of so many steps, more than the full run has or fewer."""

    def __init__(self, steps: int) -> None:
        super().__init__(BASELINES["fewer"], str(steps))

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return the grid; nothing is measured for it."""
        assert self.variant is not None
        return GridSettings(times=calibration_set.outline.shorter(int(self.variant)))
