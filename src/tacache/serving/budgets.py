"""Which plan a request follows: by the budget, the deadline or the fidelity that it asks for."""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tacache.fitting.quality_goal import QualityGoal
from tacache.grid import budget_for
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.hosts.quality_choice import (
    full_reason,
    instant_reason,
    makes_clips,
    promising,
    quality_choice,
)
from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.serving.protocol import Refused, RequestBody
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore

logger = logging.getLogger("tacache.serving")

# what a deadline chooses from where no plan is stored for a setting, as speedups
INSTANT_SPEEDUPS = (4.0, 3.0, 2.0)

FinishIn = Callable[[int], float | None]  # seconds from now, by evaluations; None if not known


class Offer(NamedTuple):
    """One way to make a run: a plan, or all steps where there is none."""

    evaluations: int
    plan: Plan | None = None


class Budgets:
    """The ways in which runs of a model can be made: stored plans, instant ones, and full steps.

    `usual` is what requests get that do not say how fast or how near they shall be.
    """

    def __init__(
        self, store: PlanStore | None = None, usual: AccelerateOptions | None = None
    ) -> None:
        self.store = PlanStore() if store is None else store
        self._usual = usual or AccelerateOptions()

    def stored(self, run: RunSignature) -> list[Offer]:
        """Return the fitted plans that are stored for such a run, the smallest budget first."""
        stored = self.store.fitted_for(run.origin, run.times, run.breaks, run.latents)
        budgets = {entry.plan.evaluations for entry in stored}
        return [self.offer(run, budget) for budget in sorted(budgets)]

    def offer(self, run: RunSignature, evaluations: int) -> Offer:
        """Return a run with so many evaluations: by a stored plan, an instant one, or all steps."""
        evaluations = max(evaluations, run.parts)
        if evaluations >= run.steps:
            return Offer(run.steps)
        stored = self.store.find(run.origin, run.times, evaluations, run.breaks, run.latents)
        if stored is not None:
            return Offer(evaluations, stored.plan)
        plan = instant_plan(run.times, evaluations, breaks=run.breaks, latents=run.latents)
        return Offer(evaluations, plan.model_copy(update={"origin": run.origin}))

    def offers(self, run: RunSignature, wanted: RequestBody) -> list[Offer]:
        """Return what a request may be given before its deadline is looked at, smallest first."""
        if wanted.evaluations is not None:
            if wanted.evaluations > run.steps:
                raise Refused(
                    f"a run has {run.steps} steps, so evaluations are at most {run.steps}",
                    param="evaluations",
                )
            return [self.offer(run, wanted.evaluations)]
        if wanted.speedup is not None:
            return [self.offer(run, budget_for(run.steps, wanted.speedup))]
        goal = wanted.goal or self._usual.goal
        if goal is not None:
            return self._near(run, goal)
        if wanted.deadline_s is not None:
            budgets = (budget_for(run.steps, speedup) for speedup in INSTANT_SPEEDUPS)
            instant = (self.offer(run, budget) for budget in budgets)
            return [*(self.stored(run) or instant), self.offer(run, run.steps)]
        return [self.offer(run, self._usual.budget(run.steps, run.steps, run.parts))]

    def _near(self, run: RunSignature, goal: QualityGoal) -> list[Offer]:
        """Return what has a quality: stored plans that promise it, else an instant one, all steps.

        Where nothing is known to have it, all steps are made, which the log says.
        """
        offers = [
            Offer(entry.plan.evaluations, entry.plan) for entry in promising(goal, run, self.store)
        ]
        instant = None if offers else quality_choice(goal, run, self.store).instant
        if instant is not None:
            _tell_once(
                "an instant plan is followed: "
                + instant_reason(goal, instant.evaluations, clip=makes_clips(run))
            )
            offers.append(Offer(instant.evaluations, instant))
        if not offers:
            reason = full_reason(goal, run.steps)
            _tell_once(f"all of {run.steps} steps are made: {reason}")
        if not offers or goal.kept_by_all(run.steps):
            offers.append(Offer(run.steps))
        return offers


@functools.lru_cache(maxsize=64)  # clients may ask for any number
def _tell_once(text: str) -> None:
    logger.warning("%s", text)


def chosen(
    offers: Sequence[Offer],
    wanted: RequestBody,
    *,
    loaded: FinishIn,
    alone: FinishIn,
    is_under_load: bool,
) -> Offer:
    """Return the offer that a request gets, or a Refused that says when to try again.

    Without a deadline it is the smallest. With one it is the largest that is done in time, and
    under load the smallest, so that others are in time as well. `loaded` and `alone` say in how
    many seconds so many evaluations would be made, with the requests there are and without them.
    """
    deadline = wanted.deadline_s
    if deadline is None:
        return offers[0]
    in_time = [offer for offer in offers if _seconds(loaded, offer) <= deadline]
    if in_time:
        return in_time[0] if is_under_load else in_time[-1]
    smallest = offers[0]
    least, expected = _seconds(alone, smallest), _seconds(loaded, smallest)
    if least > deadline:
        raise Refused(
            f"{smallest.evaluations} evaluations take about {least:.2g} s, even with nothing else "
            f"to do: deadline_s is {deadline:g}",
            param="deadline_s", code="deadline_too_short",
        )  # fmt: skip
    raise busy(
        f"nothing that was asked for is done within {deadline:g} s: {smallest.evaluations} "
        f"evaluations would take about {expected:.2g} s now",
        expected - deadline,
    )


def busy(reason: str, seconds: float) -> Refused:
    """Return the answer to a request that came at a bad time, with the seconds to wait."""
    wait = max(1, math.ceil(seconds))
    return Refused(
        f"{reason}; try again in {wait} s", status=503, code="overloaded", retry_after=wait
    )


def _seconds(finish_in: FinishIn, offer: Offer) -> float:
    """Return when an offer would be done; at once where no batch was measured yet."""
    seconds = finish_in(offer.evaluations)
    return 0.0 if seconds is None else seconds
