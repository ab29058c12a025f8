"""The plans that a demo compares: ours and the paper's, at the same numbers of evaluations."""

from collections.abc import Sequence

from tacache.instant import instant_plan
from tacache.models import Embedded
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.schedule import MAX_SKIP, walk


def fewest(steps: int) -> int:
    """The fewest evaluations that the paper's rule can make: it skips so many steps at most."""
    return len(walk([MAX_SKIP] * steps))


def plans_for(shipped: Embedded, profile: Profile, budgets: Sequence[int]) -> list[Plan]:
    """For each budget our fitted plan and the paper's, and our instant plan for the first one.

    A fitted plan belongs to its own number of steps: where none ships, the instant one stands in.
    The paper's rule is left out of budgets that it cannot meet.
    """
    found = []
    for n, budget in enumerate(budgets):
        plan = shipped.plan(budget) if budget in shipped.plans() else None
        fitted = [plan] if plan is not None and plan.steps == profile.steps else []
        found += fitted
        if budget >= fewest(profile.steps):
            found.append(make_plan(profile, evaluations=budget))
        if n == 0 or not fitted:
            found.append(instant_plan(profile.times, budget, breaks=profile.breaks))
    return found


def equivalent_steps(shipped: Embedded, budgets: Sequence[int], steps: int) -> dict[int, float]:
    """How many Euler steps the shipped plans for the flow are worth, as their certificates say."""
    found = {}
    for budget, file in shipped.plans("flow").items():
        plan = Plan.load(file)
        certificate = plan.certificate
        if budget in budgets and plan.steps == steps and certificate is not None:
            found[budget] = certificate.equivalent_steps
    return {budget: worth for budget, worth in found.items() if worth is not None}
