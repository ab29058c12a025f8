"""The plans that a studio can choose from: shipped and stored ones, and files that people bring."""

from pathlib import Path
from typing import NamedTuple

from tacache.errors import PlanError, ProfileError
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.files import load_either
from tacache.storage.signature import target_of
from tacache.storage.store import PlanStore, Stored
from tacache.studio.model import StudioModel, full_steps

MAX_PLANS = 1000  # plans in the store that the page adds to
MAX_BYTES = 2**20  # bytes of a file that somebody brings: a plan of 50 steps has a few thousand


class Shelved(NamedTuple):
    """A plan with its name, and whether it ships with the model."""

    name: str
    plan: Plan
    ships: bool = False

    @property
    def target(self) -> str:
        """Return what a fitted plan was fitted to: `run` or `flow`."""
        return target_of(self.plan)

    @property
    def title(self) -> str:
        """Return one line for a list of plans."""
        rule = "fitted to the flow" if self.target == "flow" else self.plan.rule
        origin = "shipped" if self.ships else self.name
        return f"{self.plan.evaluations} of {full_steps(self.plan)} steps, {rule} ({origin})"


class Shelf:
    """What fits one model, of all plans that are stored on this machine or ship with it."""

    def __init__(self, model: StudioModel, store: PlanStore) -> None:
        self._model, self.store = model, store

    def plans(self) -> list[Shelved]:
        """Return plans for this model, by evaluations; those that ship come first among equals."""
        stored = [*self.store.shipped_plans(), *self.store.plans()]
        fitting = [self.shelved(entry) for entry in stored if self._model.fits(entry.plan)]
        return sorted(
            fitting,
            key=lambda shelved: (shelved.plan.evaluations, shelved.plan.rule, not shelved.ships),
        )

    def shelved(self, stored: Stored) -> Shelved:
        """Return a plan of the store as the page names it."""
        return Shelved(stored.name, stored.plan, self.store.ships(stored))

    def fitted(self) -> list[Shelved]:
        """Return the fitted plans for this model."""
        return [shelved for shelved in self.plans() if shelved.plan.rule == "fitted"]

    def named(self, name: str) -> Shelved:
        """Return the plan of this name."""
        for shelved in self.plans():
            if shelved.name == name:
                return shelved
        raise PlanError("this plan is no longer there: choose another one")

    def nearest(self, evaluations: int, target: str) -> Shelved:
        """Return the fitted plan with so many evaluations or, where there is none, the nearest."""
        plans = [shelved for shelved in self.fitted() if shelved.target == target]
        if not plans:
            word = "fitted to the flow" if target == "flow" else "fitted"
            raise PlanError(
                f"there is no plan {word} for {self._model.name} with {self._model.steps} steps "
                "yet: learn one under Make, or choose another rule"
            )
        return min(
            plans, key=lambda shelved: (abs(shelved.plan.evaluations - evaluations), shelved.ships)
        )

    def put(self, plan: Plan) -> Shelved:
        """Add a plan to the store; it must be one for this model."""
        if not self._model.fits(plan):
            raise PlanError(
                f"the plan was made for {plan.origin.model or 'an unknown model'} with "
                f"{full_steps(plan)} steps, this is {self._model.name} with {self._model.steps}: "
                "open the studio with the model, and set the steps, that it was made for"
            )
        if len(self.store.plans()) >= MAX_PLANS:
            raise PlanError(f"the plan store has {MAX_PLANS} plans: remove some of them first")
        return Shelved(self.store.put(plan).name, plan)


def read_upload(path: Path) -> Plan | Profile:
    """Return the plan or profile of a file; an error says in one sentence why it is neither."""
    return load_either(path, Plan, Profile, name=path.name[:80], max_bytes=MAX_BYTES)


def profile_on(profile: Profile, times: tuple[float, ...], model: str) -> Profile:
    """Return a profile that somebody brings, on the grid of the model, if it is the model's."""
    if profile.origin.model not in (None, model):
        raise ProfileError(f"the profile is of {profile.origin.model}, this is {model}")
    return profile.resample(times)
