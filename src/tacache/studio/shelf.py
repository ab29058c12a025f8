"""The plans that a studio can choose from: those that ship with its model, and the plan store."""

from typing import NamedTuple

from tacache.errors import PlanError
from tacache.plan import Plan
from tacache.storage.agreement import target_of
from tacache.storage.store import PlanStore
from tacache.studio.model import StudioModel

MOST = 1000  # plans in the store that the page adds to


class Shelved(NamedTuple):
    """A plan with its name, and whether it ships with the model."""

    name: str
    plan: Plan
    ships: bool = False

    @property
    def target(self) -> str:
        """What a fitted plan was fitted to: `run` or `flow`."""
        return target_of(self.plan)

    @property
    def title(self) -> str:
        """One line for a list of plans."""
        rule = "fitted to the flow" if self.target == "flow" else self.plan.rule
        origin = "ships with the model" if self.ships else self.name
        return f"{self.plan.evaluations} of {self.plan.steps} steps, {rule} ({origin})"


class Shelf:
    """What fits one model, of all plans that are stored on this machine or ship with it."""

    def __init__(self, model: StudioModel, store: PlanStore) -> None:
        self._model, self._store = model, store

    def plans(self) -> list[Shelved]:
        """Plans for this model, by evaluations; those that ship come first among equals."""
        found = [*self._shipped(), *(Shelved(one.name, one.plan) for one in self._store.plans())]
        fitting = [one for one in found if self._model.fits(one.plan)]
        return sorted(fitting, key=lambda one: (one.plan.evaluations, one.plan.rule, one.name))

    def named(self, name: str) -> Shelved:
        """The plan of this name."""
        for one in self.plans():
            if one.name == name:
                return one
        raise PlanError("this plan is no longer there: choose another one")

    def fitted(self, evaluations: int, target: str) -> Shelved:
        """The fitted plan with so many evaluations or, where there is none, the nearest."""
        found = [one for one in self.plans() if one.plan.rule == "fitted" and one.target == target]
        if not found:
            word = "fitted to the flow" if target == "flow" else "fitted"
            raise PlanError(
                f"there is no plan {word} for {self._model.name} yet: learn one under Make, or "
                "choose another rule"
            )
        return min(found, key=lambda one: (abs(one.plan.evaluations - evaluations), one.ships))

    def put(self, plan: Plan) -> Shelved:
        """Add a plan to the store; it must be one for this model."""
        if not self._model.fits(plan):
            raise PlanError(
                f"the plan was made for {plan.host.model or 'an unknown model'} with {plan.steps} "
                f"steps, this is {self._model.name} with {self._model.steps}: open the studio with "
                "the model and the steps it was made for"
            )
        if len(self._store.plans()) >= MOST:
            raise PlanError(f"the plan store has {MOST} plans: remove some of them first")
        return Shelved(self._store.put(plan).name, plan)

    def _shipped(self) -> list[Shelved]:
        return [
            Shelved(f"{folder.parent.name}-{one.name}", one.plan, True)
            for folder in self._store.shipped
            for one in PlanStore(folder, shipped=()).plans()
        ]
