"""What a fitted plan was measured to do."""

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tacache.storage.files import Frozen

OF_THE_FLOW = ("flow_drift", "equivalent_steps")  # left out of files while they are unset


class Certificate(Frozen):
    """What a fitted plan was measured to do, on calibration samples that no weight was fitted to.

    All numbers are means over these samples. Drift is the distance to the full-step result, divided
    by that result's norm. PSNR is of decoded pictures, in dB, if the host has a decoder. A plan
    that was fitted to the flow also has its distance to the flow, and the number of Euler steps
    that are as near to it.
    """

    held_out: Annotated[int, Field(ge=1)]
    drift: Annotated[float, Field(ge=0)]
    fit_drift: Annotated[float, Field(ge=0)]  # of the samples the weights were fitted to
    psnr: float | None = None
    evaluations_spent: Annotated[int, Field(ge=1)]  # model evaluations, the full runs included
    date: str
    flow_drift: Annotated[float, Field(ge=0)] | None = None
    equivalent_steps: Annotated[float, Field(gt=0)] | None = None

    @model_serializer(mode="wrap")
    def _without_unset(self, as_usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_usual(self)
        unset = [name for name in OF_THE_FLOW if fields[name] is None]
        return {name: value for name, value in fields.items() if name not in unset}

    def nearness(self, evaluations: int) -> str | None:
        """How near to the flow so many evaluations come, in one sentence; None if not measured."""
        if self.equivalent_steps is None:
            return None
        return near_as(evaluations, self.equivalent_steps)


def near_as(evaluations: int, steps: float) -> str:
    """The sentence that tells nearness to the flow in Euler steps."""
    return f"{evaluations} evaluations, as near to the flow as {steps:.0f} Euler steps"
