"""Where fitted plans go: the plan store, and files where some are asked for."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tacache.cli.arguments import check_folder
from tacache.cli.printing import tell
from tacache.errors import StorageError
from tacache.plan import Plan
from tacache.storage.frontier import Frontier, point_of
from tacache.storage.store import PlanStore, Stored


@dataclass(frozen=True)
class PlanTarget:
    """Where plans go: into the store, and into a file or, where there are several, a folder."""

    out: Path | None
    alone: bool
    store: PlanStore = field(default_factory=PlanStore)

    def checked(self) -> Self:
        """Return this place, after refusing one that takes no files."""
        if self.out is None:
            check_folder(self.store.folder)
        elif self.alone:
            Plan.check_target(self.out)
        else:
            check_folder(self.out)
        return self

    def kept(self, model: str, facts: list[Any]) -> Path:
        """Return where a killed fit finds its runs: beside its file, or by a hash of the facts."""
        if self.out is not None:
            out = self.out.resolve()  # also of `.` and `..`
            return out.with_name(f"{out.name}.runs")
        named = hashlib.sha256(json.dumps([model, facts], sort_keys=True).encode()).hexdigest()
        return self.store.folder.parent / "fits" / f"{Path(model).name}-{named[:12]}.runs"

    def save(self, plans: Sequence[Plan]) -> list[Stored]:
        """Save the plans and return those of the store; a store that refuses one is told.

        Without a file the store is the only place, and its refusal is an error.
        """
        if self.out is not None and self.alone:
            plans[0].save(self.out)
        elif self.out is not None:
            for plan in plans:
                plan.save(self.out / f"{plan.evaluations}.plan.json")
            names = [f"{plan.evaluations}.plan.json" for plan in plans]
            frontier_of(plans, names).save(self.out / "frontier.json")
        try:
            return [self.store.put(plan) for plan in plans]
        except StorageError as error:
            if self.out is None:
                raise
            tell(f"tacache: the plan store was left as it is: {error}")
            return []

    def names(self, plans: Sequence[Plan], saved: Sequence[Stored]) -> list[str]:
        """Return what each plan is called: its file, or its name in the store."""
        if self.out is not None:
            return [f"{plan.evaluations}.plan.json" for plan in plans]
        return [stored.name for stored in saved]

    def where(self, saved: Sequence[Stored]) -> str:
        """Return where the plans are, in words."""
        stored = f"in the plan store as {saved[0].name}" if self.alone and saved else ""
        stored = f"in the plan store, {self.store.folder}" if saved and not self.alone else stored
        if self.out is None:
            return stored[0].upper() + stored[1:]
        return f"Written to {self.out}" + ("" if self.alone else "/") + (stored and f"; {stored}")


def frontier_of(plans: Sequence[Plan], names: Sequence[str]) -> Frontier:
    """Return what these plans reach, each by its name."""
    named = zip(plans, names, strict=True)
    return Frontier(points=tuple(point_of(plan, name) for plan, name in named))
