"""The rules to choose from, and the plan that each of them leads to."""

from collections.abc import Callable
from typing import NamedTuple

from tacache.errors import PlanError
from tacache.instant import instant_plan
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.schedule import least_max_skip
from tacache.studio.model import StudioModel
from tacache.studio.shelf import Shelf

FEWEST = 3  # evaluations that the page offers


class Known(NamedTuple):
    """What a plan is made of: the model, the plans for it, and what a person has measured."""

    model: StudioModel
    shelf: Shelf
    profile: Profile | None = None
    own: Plan | None = None


class Choice(NamedTuple):
    """A plan, and a sentence about where it comes from."""

    plan: Plan
    sentence: str


def _fitted(known: Known, evaluations: int, target: str = "run") -> Choice:
    found = known.shelf.fitted(evaluations, target)
    where = "ships with the model" if found.ships else f"is {found.name} of the plan store"
    sentence = f"The plan {where}."
    if found.plan.evaluations != evaluations:
        sentence = (
            f"No fitted plan has {evaluations} evaluations, so the one with "
            f"{found.plan.evaluations} is used. {sentence}"
        )
    return Choice(found.plan, sentence)


def _tasu(known: Known, evaluations: int) -> Choice:
    if known.profile is None:
        raise PlanError("there is no profile of this model yet: measure or load one under Make")
    steps = known.profile.steps
    longest = least_max_skip(steps, evaluations)
    plan = make_plan(known.profile, evaluations=evaluations, max_skip=longest)
    return Choice(plan, f"The plan follows from a profile of {known.profile.samples} runs.")


def _linear(known: Known, evaluations: int) -> Choice:
    plan = instant_plan(known.model.times, evaluations, breaks=known.model.breaks)
    return Choice(plan, "Nothing was measured for this plan.")


def _own(known: Known, evaluations: int) -> Choice:
    if known.own is None:
        raise PlanError(
            "you have no plan of your own yet: set thresholds under Understand, or learn or load a "
            "plan under Make"
        )
    return Choice(known.own, "The plan is the one that you made or loaded last.")


# name -> the word on the page, and what makes the plan
RULES: dict[str, tuple[str, Callable[[Known, int], Choice]]] = {
    "fitted": ("Fitted", _fitted),
    "flow": ("Fitted to the flow", lambda known, evaluations: _fitted(known, evaluations, "flow")),
    "tasu": ("TASU, the paper's rule", _tasu),
    "linear": ("Linear, at once", _linear),
    "own": ("My own plan", _own),
}


def choose(known: Known, rule: str, evaluations: int) -> Choice:
    """The plan of a rule for a number of evaluations."""
    if rule not in RULES:
        raise PlanError(f"there is no rule {rule!r}: choose one of the list")
    if not FEWEST <= evaluations <= known.model.steps:
        raise PlanError(f"choose {FEWEST} to {known.model.steps} evaluations, not {evaluations}")
    return RULES[rule][1](known, evaluations)


def first_rule(known: Known) -> str:
    """The best rule that has a plan without any work."""
    for rule in ("fitted", "tasu"):
        try:
            choose(known, rule, max(FEWEST, known.model.steps // 4))
        except PlanError:
            continue
        return rule
    return "linear"
