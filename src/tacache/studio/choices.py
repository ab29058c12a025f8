"""The rules and the qualities to choose from, and the plan that each of them leads to."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tacache.errors import PlanError
from tacache.extensions import RIVALS, extensions
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts.quality_choice import full_reason, instant_reason, makes_clips, quality_choice
from tacache.instant import default_evaluations, instant_plan
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.ssc import least_max_skip
from tacache.studio.model import StudioModel, full_steps
from tacache.studio.shelf import Shelf, Shelved

if TYPE_CHECKING:
    from tacache.studio.drawing import Drawn
    from tacache.studio.turns import Watch

MIN_EVALUATIONS = 3  # evaluations that the page offers


class RivalMethods(Protocol):
    """Methods of others on a studio's model: the lab brings them where it is installed."""

    def draw(self, name: str, evaluations: int, sample: Sample, watch: "Watch") -> "Drawn":
        """Make a sample by a method; the caller has the model's turn."""
        ...


class Known(NamedTuple):
    """What a plan is made of: the model, the plans for it, and what a person has measured."""

    model: StudioModel
    shelf: Shelf
    profile: Profile | None = None
    own: Plan | None = None
    rivals: RivalMethods | None = None


class PlanChoice(NamedTuple):
    """A plan, and a sentence about where it comes from."""

    plan: Plan
    sentence: str


def _fitted(known: Known, evaluations: int, target: str = "run") -> PlanChoice:
    shelved = known.shelf.nearest(evaluations, target)
    sentence = _origin_of(shelved)
    if shelved.plan.evaluations != evaluations:
        sentence += f" It is the one nearest to {evaluations} evaluations."
    return PlanChoice(shelved.plan, sentence)


def _origin_of(shelved: Shelved) -> str:
    which = (
        "The plan ships with the model" if shelved.ships else f"The plan {shelved.name} is stored"
    )
    goal = "flow, a much finer run" if shelved.target == "flow" else "full run"
    return f"{which}, and was fitted to the {goal}."


def _tasu(known: Known, evaluations: int) -> PlanChoice:
    if known.profile is None:
        raise PlanError("there is no profile of this model yet: measure or load one under Make")
    longest = least_max_skip(known.profile.steps, evaluations)
    plan = make_plan(known.profile, evaluations=evaluations, max_skip=longest)
    return PlanChoice(plan, f"The plan follows from a profile of {known.profile.samples} runs.")


def _linear(known: Known, evaluations: int) -> PlanChoice:
    model = known.model
    plan = instant_plan(model.times, evaluations, breaks=model.breaks, latents=model.latents)
    return PlanChoice(plan, "The plan is instant: it follows from the noise levels alone.")


def _own(known: Known, evaluations: int) -> PlanChoice:
    if known.own is None:
        raise PlanError(
            "you have no plan of your own yet: set thresholds under Understand, or learn or load a "
            "plan under Make"
        )
    if (steps := full_steps(known.own)) != known.model.steps:
        raise PlanError(f"your own plan is for {steps} steps: set the steps to {steps}")
    return PlanChoice(known.own, "The plan is the one that you made or loaded last.")


# name -> the word on the page, and what makes the plan
RULES: dict[str, tuple[str, Callable[[Known, int], PlanChoice]]] = {
    "fitted": ("Fitted", _fitted),
    "flow": ("Fitted to the flow", lambda known, evaluations: _fitted(known, evaluations, "flow")),
    "tasu": ("The paper's rule", _tasu),
    "linear": ("Instant", _linear),
    "own": ("My own plan", _own),
}


def choose(known: Known, rule: str, evaluations: int) -> PlanChoice:
    """Return the plan of a rule for a number of evaluations."""
    if rule not in RULES:
        raise PlanError(f"there is no rule {rule!r}: choose one of the list")
    if not MIN_EVALUATIONS <= evaluations <= known.model.steps:
        raise PlanError(
            f"choose {MIN_EVALUATIONS} to {known.model.steps} evaluations, not {evaluations}"
        )
    return RULES[rule][1](known, evaluations)


def choose_quality(known: Known, goal: QualityGoal) -> PlanChoice:
    """Return the plan that every host follows for a quality, or all steps where there is none."""
    model, shelf = known.model, known.shelf
    stored, instant = quality_choice(goal, model.signature, shelf.store)
    if stored is not None:
        return PlanChoice(stored.plan, _origin_of(shelf.shelved(stored)))
    if instant is not None:
        reason = instant_reason(goal, instant.evaluations, clip=makes_clips(model.signature))
        return PlanChoice(instant, f"The plan is instant: {reason}.")
    reason, best = full_reason(goal, model.steps), goal.best_of([s.plan for s in shelf.fitted()])
    return PlanChoice(
        Plan.full(model.times),
        f"Every step runs the model: {reason}; {best}. Learn a plan under Make, or ask for less.",
    )


def typical_choice(known: Known, rule: str = "fitted") -> tuple[str, int]:
    """Return a rule and a number of evaluations to begin with: the usual one for so many steps.

    The rule stays where it has a plan at once; without a fitted plan it is the instant one.
    """
    usual = max(MIN_EVALUATIONS, default_evaluations(known.model.steps))
    if rule in rival_names():
        return rule, usual
    for name in (rule, "fitted"):
        try:
            return name, choose(known, name, usual).plan.evaluations
        except PlanError:
            continue
    return "linear", usual


def rivals_on(model: StudioModel) -> RivalMethods | None:
    """Return the lab's methods on a model, or None without the lab."""
    lab: Any = _lab()
    methods: RivalMethods | None = None if lab is None else lab.Rivals(model)
    return methods


def rival_names() -> dict[str, str]:
    """Return the word on the page for each method of others, by the lab's name."""
    lab: Any = _lab()
    return {} if lab is None else dict(lab.RIVALS)


@functools.cache
def _lab() -> ModuleType | None:
    point = extensions(RIVALS).get("studio")
    return None if point is None else point.load()
