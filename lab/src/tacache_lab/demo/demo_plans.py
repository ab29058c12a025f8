"""The plans that a demo compares: ours and the paper's, at the same numbers of evaluations."""

from collections.abc import Sequence

from tacache.instant import instant_plan
from tacache.models import SUFFIXES, Embedded
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.ssc import MAX_SKIP, walk


def fewest(steps: int) -> int:
    """Return the fewest evaluations that the paper's rule can make.

    It skips so many steps at most.
    """
    return len(walk([MAX_SKIP] * steps))


def plans_for(shipped: Embedded, profile: Profile, budgets: Sequence[int]) -> list[Plan]:
    """Return for each budget an instant plan, the fitted one if it ships, and the paper's.

    A fitted plan belongs to its own number of steps. The paper's rule is left out of budgets that
    it cannot meet.
    """
    plans = []
    for budget in budgets:
        plans.append(instant_plan(profile.times, budget, breaks=profile.breaks))
        plans += shipped_plans(shipped, budget, profile.steps)
        if budget >= fewest(profile.steps):
            plans.append(make_plan(profile, evaluations=budget))
    return plans


def shipped_plans(shipped: Embedded, budget: int, steps: int) -> list[Plan]:
    """Return the plan that ships for this budget of so many steps and the run, if there is one."""
    files = shipped.folder.glob(f"plans/*{SUFFIXES['run']}")
    plans = [Plan.load(file) for file in files if not file.name.endswith(SUFFIXES["flow"])]
    return [plan for plan in plans if (plan.evaluations, plan.steps) == (budget, steps)][:1]
