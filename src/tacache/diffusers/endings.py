"""Runs that ended before their plan did are found at the next occasion and warned of."""

from typing import Any

from tacache.diffusers.calls import logger
from tacache.stepper import Stepper


def tell_unfinished(stepper: Stepper) -> str | None:
    """Warn if a walk did not reach its end, and return the warning."""
    found = unfinished(stepper)
    if found is not None:
        logger.warning(found)
    return found


def unfinished(stepper: Stepper) -> str | None:
    """Return why the result of this walk is not that of its plan, or None."""
    plan = stepper.plan
    if stepper.step >= plan.steps:
        return None
    if stepper.step == 0:
        return (
            f"a run of {plan.steps} steps was prepared under a plan, but no step was made with the "
            "scheduler: a loop that integrates by hand sees the anchors alone, and its result is "
            "not that of the full run"
        )
    reached, end = plan.times[stepper.step], plan.times[-1]
    return (
        f"a run under a plan ended at step {stepper.step} of {plan.steps} (noise level "
        f"{reached:.4g} in place of {end:.4g}), so its result is unfinished: the call was stopped, "
        "or its loop leaves its last timesteps out and cannot follow a plan"
    )


def repeats(before: Any, now: Any) -> bool:
    """Whether a call that prepares a run is another one than the call that did so before.

    A pipeline may prepare its run twice in one call, but not twice at one place of its code.
    """
    return before is not None and now is not None and before[0] is now[0] and now[1] <= before[1]
