"""FastFlow (Bajpai et al., ICLR 2026, arXiv:2602.11105): a bandit says how many steps to skip.

At each evaluated step an arm is how many of the next steps are skipped, their velocities continued
by the finite difference of the last two evaluated ones. An arm pays the steps it saves less a price
times the squared error of the continued velocity where the model is evaluated next; each step keeps
a bandit of its own.

Ours is a reading of the abstract. A bandit's arm comes to the one with the best mean reward, and
what each arm pays is known from the recorded runs: so the best arm is taken at once, with the error
relative to the velocity. The price is the threshold that meets a budget.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacache.stepper import weighted_sum
from tacache.tasu import relative_distance
from tacache_lab.methods.caching import AnchoredRule, AnchorSettings, Now, Past, Rebuild
from tacache_lab.methods.seam import RecordedProblem
from tacache_lab.methods.taylorseer import extrapolation_weights, taylor

MAX_ARM = 15  # steps that are skipped at once, at most
WARM_UPS = (2, 1, 3, 4)  # a finite difference needs two evaluations
PRICES = np.geomspace(1e-2, 1e8, 161)  # of an error of 1, in skipped steps


class FastFlowSettings(AnchorSettings):
    """The steps that the bandit evaluates, and the price of an error that led to them."""

    warm_up: int
    price: float


def continued(past: Past, now: Now) -> Tensor:
    """Return v_j continued by the finite difference of the last two evaluated velocities."""
    weights = extrapolation_weights([visit.t for visit in past.anchors], now.t, 1, taylor)
    return weighted_sum([visit.v for visit in past.anchors[: len(weights)]], weights)


class ArmErrors:
    """Squared relative errors of continued velocities on recorded runs, each worked out once."""

    def __init__(self, recording: RecordedProblem) -> None:
        self._velocities, self._times = recording.velocities, recording.times
        self._known: dict[tuple[int, int, int], float] = {}

    def of(self, before: int, last: int, arrival: int) -> float:
        """Return the mean over samples at a step, from the two steps evaluated before."""
        key = before, last, arrival
        if key not in self._known:
            clock = [self._times[n] for n in dict.fromkeys((last, before))]
            weights = extrapolation_weights(clock, self._times[arrival], 1, taylor)
            v = weighted_sum(
                [self._velocities[last], self._velocities[before]][: len(clock)], weights
            )
            error = relative_distance(v, self._velocities[arrival])
            self._known[key] = float(torch.mean(error**2))
        return self._known[key]


def best_arms(errors: ArmErrors, steps: int, warm_up: int, price: float) -> tuple[int, ...]:
    """Return the steps that are evaluated where every arm is the one that pays best."""
    anchors = list(range(min(warm_up, steps)))
    while anchors[-1] < steps - 1:
        last, before = anchors[-1], anchors[-2] if len(anchors) > 1 else anchors[-1]
        arms = range(min(MAX_ARM, steps - 2 - last) + 1)
        rewards = [arm - price * errors.of(before, last, last + 1 + arm) for arm in arms]
        anchors.append(last + 1 + int(np.argmax(rewards)))
    return tuple(anchors)


class FastFlow(AnchoredRule[FastFlowSettings]):
    """FastFlow on the velocity; the last step is always evaluated."""

    name = "fastflow"
    citation = "Bajpai et al., FastFlow: Accelerating ... with Bandit Inference, ICLR 2026"
    needs = "it evaluates its first step and the last, and skips 15 steps at most"

    def candidates(
        self, recording: RecordedProblem, evaluations: int
    ) -> Sequence[FastFlowSettings]:
        """Return what the prices that meet the budget lead to, for each warm-up."""
        errors = ArmErrors(recording)
        settings = [
            FastFlowSettings(
                anchors=best_arms(errors, recording.steps, warm_up, price),
                warm_up=warm_up,
                price=price,
            )
            for warm_up in WARM_UPS
            for price in map(float, PRICES)
        ]
        return self.meeting(settings, recording.times, evaluations)

    def rebuild(self, settings: FastFlowSettings) -> Rebuild:
        """Return the finite difference."""
        return continued
