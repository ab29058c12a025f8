"""A frontier: several plans fitted from the same full runs, with what each budget reaches."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from tacache.errors import PlanError, TACacheError
from tacache.plan import Plan
from tacache.storage.files import FileRecord, Frozen


class Point(Frozen):
    """One budget: the plan's file, and its certificate's figures."""

    evaluations: Annotated[int, Field(ge=1)]
    speedup: Annotated[float, Field(ge=1)]
    drift: Annotated[float, Field(ge=0)]
    psnr: float | None = None
    plan: str


class Frontier(FileRecord):
    """Points by rising evaluations; files are named from the frontier's folder."""

    FORMAT: ClassVar[str] = "tacache-frontier"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = PlanError
    REMEDY: ClassVar[str] = "Fit again, or restore the file from where it came from"

    points: tuple[Point, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        budgets = [point.evaluations for point in self.points]
        if not budgets or budgets != sorted(set(budgets)):
            raise PlanError(f"a frontier has one point a budget, rising, not {budgets}")
        return self


def point_of(plan: Plan, file: str) -> Point:
    """Return a fitted plan as a point of a frontier."""
    if plan.certificate is None:
        raise PlanError("only a fitted plan with a certificate goes on a frontier")
    return Point(
        evaluations=plan.evaluations,
        speedup=plan.speedup,
        drift=plan.certificate.drift,
        psnr=plan.certificate.psnr,
        plan=file,
    )
