"""Which plan a request follows: by the budget, the deadline or the fidelity that it asks for."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tacache.host.settings import Setting
from tacache.host.wish import SPEEDUP
from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.schedule import budget_for
from tacache.serving.wanted import Refused, Wanted
from tacache.storage.agreement import agrees
from tacache.storage.store import PlanStore

# what a deadline chooses from where no plan is stored for a setting, as speedups
INSTANT_SPEEDUPS = (4.0, 3.0, 2.0)

FinishIn = Callable[[int], float | None]  # seconds from now, by evaluations; None if not known


class Offer(NamedTuple):
    """One way to make a run: a plan, or all steps where there is none, and what it is known for."""

    evaluations: int
    plan: Plan | None = None
    psnr: float | None = None  # measured; full steps are what it is measured against

    def keeps(self, psnr: float) -> bool:
        """Whether a result is known to be this near to that of full steps."""
        return self.psnr is not None and self.psnr >= psnr


class Budgets:
    """The ways in which runs of a model can be made: stored plans, instant ones, and full steps."""

    def __init__(self, store: PlanStore | None = None, speedup: float = SPEEDUP) -> None:
        self.store, self.speedup = PlanStore() if store is None else store, speedup

    def stored(self, run: Setting) -> list[Offer]:
        """The fitted plans that are stored for just such a run, the smallest budget first."""
        plans = (*self.store.plans(), *self.store.shipped_plans())
        budgets = {
            one.plan.evaluations
            for one in plans
            if one.plan.rule == "fitted" and agrees(one.plan, run.origin, run.times, run.breaks)
        }
        return [self.offer(run, budget) for budget in sorted(budgets)]

    def offer(self, run: Setting, evaluations: int) -> Offer:
        """A run with so many evaluations: by the stored plan, an instant one, or all steps."""
        evaluations = max(evaluations, run.parts)
        if evaluations >= run.steps:
            return Offer(run.steps, None, math.inf)
        found = self.store.find(run.origin, run.times, evaluations, run.breaks)
        if found is not None:
            measured = found.plan.certificate
            return Offer(evaluations, found.plan, None if measured is None else measured.psnr)
        plan = instant_plan(run.times, evaluations, breaks=run.breaks)
        return Offer(evaluations, plan.model_copy(update={"host": run.origin}))

    def offers(self, run: Setting, wanted: Wanted) -> list[Offer]:
        """What a request may be given before its deadline is looked at, smallest first."""
        if wanted.evaluations is not None:
            if wanted.evaluations > run.steps:
                raise Refused(
                    f"a run has {run.steps} steps, so evaluations are at most {run.steps}",
                    param="evaluations",
                )
            found = [self.offer(run, wanted.evaluations)]
        elif wanted.speedup is not None:
            found = [self.offer(run, budget_for(run.steps, wanted.speedup))]
        elif wanted.min_psnr is not None or wanted.deadline_s is not None:
            found = self.stored(run) or self._instant(run, wanted)
            found.append(self.offer(run, run.steps))
        else:
            found = [self.offer(run, budget_for(run.steps, self.speedup))]
        floor = wanted.min_psnr
        kept = found if floor is None else [one for one in found if one.keeps(floor)]
        if not kept:
            raise Refused(
                f"{found[0].evaluations} evaluations are not known to keep {floor:g} dB on this "
                "model at this size: leave evaluations and speedup out, and enough are made",
                param="min_psnr",
            )
        return kept

    def _instant(self, run: Setting, wanted: Wanted) -> list[Offer]:
        if wanted.min_psnr is not None:  # nothing is known of them
            return []
        return [self.offer(run, budget_for(run.steps, one)) for one in INSTANT_SPEEDUPS]


def chosen(
    offers: Sequence[Offer],
    wanted: Wanted,
    *,
    loaded: FinishIn,
    alone: FinishIn,
    is_under_load: bool,
) -> Offer:
    """The offer that a request gets, or a Refused that says when to try again.

    Without a deadline it is the smallest. With one it is the largest that is done in time, and
    under load the smallest, so that others are in time as well. `loaded` and `alone` say in how
    many seconds so many evaluations would be made, with the requests there are and without them.
    """
    deadline = wanted.deadline_s
    if deadline is None:
        return offers[0]
    in_time = [one for one in offers if _seconds(loaded, one) <= deadline]
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
    """The answer to a request that came at a bad time, with the seconds after which to retry."""
    wait = max(1, math.ceil(seconds))
    return Refused(
        f"{reason}; try again in {wait} s", status=503, code="overloaded", retry_after=wait
    )


def _seconds(finish_in: FinishIn, offer: Offer) -> float:
    """When an offer would be done; at once where no wave was measured yet."""
    seconds = finish_in(offer.evaluations)
    return 0.0 if seconds is None else seconds
