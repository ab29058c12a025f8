"""The fewest evaluations that reach a quality: a few budgets are tried, from one set of full runs.

More evaluations are taken to be nearer. The search starts at a guess, doubles its stride until one
budget reaches the quality and another does not, and halves what lies between them.
"""

from collections.abc import Callable

from tacache.errors import PlanError
from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import default_evaluations, like_evaluations
from tacache.plan import Plan


def tried_plans(
    fit: Callable[[int], Plan], goal: QualityGoal, least: int, most: int, guess: int
) -> list[Plan]:
    """Return every plan that was fitted on the way, by rising evaluations.

    The fewest evaluations that reach the goal are among them; where none does, `most` is. A PSNR
    that no plan can have, since there are no pictures, is a PlanError.
    """
    plans: dict[int, Plan] = {}

    def reaches(budget: int) -> bool:
        plans[budget] = fit(budget)
        certificate = plans[budget].certificate
        if goal.min_psnr is not None and goal.reached_by(certificate) is None:
            raise PlanError(
                "min_psnr is the PSNR of pictures, and these calls give none, such as with "
                "output_type='latent': let them give pictures, or ask for like_steps"
            )
        return goal.promised_by(certificate)

    _search(reaches, least, most, guess)
    return [plans[budget] for budget in sorted(plans)]


def most_tries(least: int, most: int, guess: int) -> int:
    """Return how many budgets a search tries at most."""
    return max(_search(fewest.__le__, least, most, guess) for fewest in range(least, most + 2))


def guess_for(goal: QualityGoal, steps: int, least: int, most: int) -> int:
    """Return the budget to begin with: what an instant plan takes, which is a little too many."""
    if goal.like_steps is None:
        instant: int | None = default_evaluations(steps)
    else:
        instant = like_evaluations(goal.like_steps)
    return max(least, min(most, most if instant is None else instant))


def _search(reaches: Callable[[int], bool], least: int, most: int, guess: int) -> int:
    """Try budgets until the fewest that reach are known, and return how many were tried."""
    tries, stride = 1, 1
    if reaches(guess):
        low, high = least - 1, guess  # the highest known not to reach, the lowest known to
        while high - low > 1:
            budget = max(low + 1, high - stride)
            tries += 1
            if not reaches(budget):
                low = budget
                break
            high, stride = budget, 2 * stride
    else:
        low, high = guess, most + 1
        while high - low > 1:
            budget = min(high - 1, low + stride)
            tries += 1
            if reaches(budget):
                high = budget
                break
            low, stride = budget, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        tries += 1
        if reaches(middle):
            high = middle
        else:
            low = middle
    return tries
