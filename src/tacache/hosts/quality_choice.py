"""How a run comes as near as is asked for: by a stored plan, by an instant one, or in full.

Every host chooses by these functions, so that the same words get the same plan.
"""

from typing import NamedTuple

from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import instant_plan, like_evaluations
from tacache.plan import Plan
from tacache.storage.signature import RunSignature, target_of
from tacache.storage.store import PlanStore, Stored


class QualityChoice(NamedTuple):
    """A stored plan whose certificate promises a quality, or an instant plan; else full steps."""

    stored: Stored | None = None
    instant: Plan | None = None

    @property
    def plan(self) -> Plan | None:
        """Return the plan to follow; None where all steps are made."""
        return self.instant if self.stored is None else self.stored.plan


def quality_choice(goal: QualityGoal, run: RunSignature, store: PlanStore) -> QualityChoice:
    """Return what a run follows: of stored plans that promise the quality, the smallest budget.

    Without one, nearness to the flow is left to an instant plan, unless fits on this model miss it.
    """
    stored = next(iter(promising(goal, run, store)), None)
    if stored is not None:
        return QualityChoice(stored)
    return QualityChoice(instant=None if is_missed(goal, run, store) else instant_for(goal, run))


def promising(goal: QualityGoal, run: RunSignature, store: PlanStore) -> list[Stored]:
    """Return the stored plans that promise a quality: the best of each budget, smallest first."""
    fitted = store.fitted_for(run.origin, run.times, run.breaks, run.latents)
    budgets = sorted({entry.plan.evaluations for entry in fitted})
    best = (
        goal.fewest((e for e in fitted if e.plan.evaluations == budget), lambda e: e.plan)
        for budget in budgets
    )
    return [entry for entry in best if entry is not None]


def is_missed(goal: QualityGoal, run: RunSignature, store: PlanStore) -> bool:
    """Return whether stored plans that skip no more than one step were fitted for it, and miss it.

    What was fitted to the flow says nothing of how near to the full run a plan may come.
    """
    fitted = (
        entry.plan for entry in store.fitted_for(run.origin, run.times, run.breaks, run.latents)
    )
    largest = [
        goal.reached_by(plan.certificate)
        for plan in fitted
        if target_of(plan) == goal.target and plan.evaluations >= run.steps - 1
    ]
    reached = [figure for figure in largest if figure is not None]
    return bool(reached) and max(reached) < goal.wanted


def instant_for(goal: QualityGoal, run: RunSignature) -> Plan | None:
    """Return an instant plan for the flow by the committed table; None where there is none.

    So it is for a PSNR, of which nothing is known in advance, for more Euler steps than were
    measured, and where the run's own steps cost no more.
    """
    if goal.like_steps is None:
        return None
    table = like_evaluations(goal.like_steps, clip=makes_clips(run))
    if table is None:
        return None
    evaluations = max(table, run.parts)
    most = run.steps - 1 if goal.kept_by_all(run.steps) else run.steps
    if evaluations > most:
        return None
    plan = instant_plan(
        run.times, evaluations, breaks=run.breaks, target="flow", latents=run.latents
    )
    return plan.model_copy(update={"origin": run.origin})


def makes_clips(run: RunSignature) -> bool:
    """Return whether a run makes several frames, by its call or the latents of one sample."""
    frames, shape = (run.origin.call or {}).get("num_frames"), run.origin.latent_shape or ()
    return (isinstance(frames, int) and frames > 1) or (len(shape) == 4 and shape[1] > 1)


def measured_on(*, clip: bool) -> str:
    """Return on what instant plans were measured."""
    return "clips of tiny-wan" if clip else "pictures of tiny-flux"


def instant_reason(goal: QualityGoal, evaluations: int, *, clip: bool = False) -> str:
    """Return why an instant plan is followed, in a clause."""
    return (
        f"{evaluations} evaluations were {goal.words} on {measured_on(clip=clip)}; with this model "
        "and these steps that was not measured"
    )


def full_reason(goal: QualityGoal, steps: int) -> str:
    """Return why all steps of a run are made, in a clause."""
    if goal.kept_by_all(steps):
        return f"no plan that skips some of them is known to reach what is asked for, {goal.words}"
    return f"not even they reach what is asked for, {goal.words}, and no plan is known to"
