"""L2P (Shen et al., CVPR 2026, arXiv:2604.26365): learned linear weights a step.

Forecasts by fixed formulas are linear in past features; here the weights of every skipped step are
learned on a few recorded runs, by the mean squared error of what they predict.

Ours is a reading of the abstract alone, at the velocity in the place of a block's features: steps
are evaluated after a warm-up and then periodically, as in the forecasts it improves on, and least
squares gives the weights that training would come to.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tacache.stepper import weighted_sum
from tacache_lab.methods.caching import Now, Past, Rebuild
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.taylorseer import Periodic, PeriodSettings

HISTORIES = (2, 3, 4)
RIDGE = 1e-6  # of the mean square of a velocity: keeps the solution sound


class LearnedSettings(PeriodSettings):
    """The schedule, and one row a step: weights of the last evaluated velocities, newest first.

    Rows of evaluated steps are empty.
    """

    weights: tuple[tuple[float, ...], ...]


def learned_weights(
    velocities: Sequence[Tensor], anchors: Sequence[int], history: int
) -> tuple[tuple[float, ...], ...]:
    """Return the weights that predict each skipped step's velocity best, over all samples."""
    evaluated, past = frozenset(anchors), list[int]()
    rows: list[tuple[float, ...]] = []
    for n in range(len(velocities)):
        if n in evaluated:
            past.insert(0, n)
            rows.append(())
        else:
            rows.append(_least_squares([velocities[k] for k in past[:history]], velocities[n]))
    return tuple(rows)


def _least_squares(columns: Sequence[Tensor], target: Tensor) -> tuple[float, ...]:
    matrix = torch.stack([column.double().flatten() for column in columns])
    gram = matrix @ matrix.T
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(columns), dtype=gram.dtype).to(gram)
    weights = torch.linalg.solve(gram, matrix @ target.double().flatten())
    return tuple(weights.tolist())


class L2P(Periodic):
    """L2P on the velocity."""

    name = "l2p"
    citation = "Shen et al., Beyond Fixed Formulas: Learnable Linear Predictor, CVPR 2026"
    kept = max(HISTORIES)

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[LearnedSettings]:
        """Return what meets the budget, with weights over two to four velocities."""
        return [
            LearnedSettings(
                **period.model_dump(),
                weights=learned_weights(
                    recording.velocities, self.anchors(period, recording.times), history
                ),
            )
            for period in self.periods(recording, evaluations)
            for history in HISTORIES
        ]

    def rebuild(self, settings: PeriodSettings) -> Rebuild:
        """Return the weighted sum of the step."""
        assert isinstance(settings, LearnedSettings)
        rows = settings.weights

        def rebuild(past: Past, now: Now) -> Tensor:
            row = rows[now.step]
            return weighted_sum([visit.v for visit in past.anchors[: len(row)]], row)

        return rebuild
