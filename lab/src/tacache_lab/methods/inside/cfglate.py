"""Guidance gated off late (Castillo et al., Adaptive Guidance, arXiv:2312.12487).

The first steps run the model with the prompt and without it, the later ones with the prompt only:
the guided velocity is then that of the prompt. Such a step is half an evaluation. All steps of the
grid are taken, so that only a shorter grid comes below half of the evaluations.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from tacache.errors import PlanError
from tacache.storage.files import Frozen
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.inside.inside_cache import InsideCache, Trials
from tacache_lab.methods.inside.metering import UNGUIDED


class LateGuidanceSettings(Frozen):
    """The share of the steps that has guidance, and the grid; empty: that of full steps."""

    guided: Annotated[float, Field(gt=0, le=1)] = 0.5
    times: tuple[float, ...] = ()


class LateGuidance(InsideCache[LateGuidanceSettings]):
    """Euler's method with guidance in its first steps only."""

    name = "cfg-late"
    citation = "Castillo et al., Adaptive Guidance: Training-free Acceleration, 2023"
    needs = "its first step has guidance"
    published = MappingProxyType({"flux": LateGuidanceSettings(), "wan": LateGuidanceSettings()})

    def candidates(self, trials: Trials, evaluations: int) -> Sequence[LateGuidanceSettings]:
        """Return all grids with as many guided steps as spend the budget, a step being two halves.

        The shortest has guidance in all of its steps.
        """
        longest = min(2 * evaluations - 1, trials.steps)
        return [
            LateGuidanceSettings(
                guided=(2 * evaluations - steps) / steps, times=tuple(trials.grid(steps))
            )
            for steps in range(evaluations, longest + 1)
        ]

    def install(self, site: Site, settings: LateGuidanceSettings) -> None:
        """Give what the model says with the prompt in the place of what it would say without."""
        if site.branches < 2 and settings.guided < 1:
            raise PlanError(f"{self.name} leaves passes of guidance out, and this call has none")
        all_steps = len(settings.times) - 1 if settings.times else site.steps
        guided = round(settings.guided * all_steps)
        forward, steps, last = site.transformer.forward, 0, None

        def gated(*args: Any, **named: Any) -> Any:
            nonlocal steps, last
            if site.meter.branch == UNGUIDED:
                return forward(*args, **named) if steps <= guided else last
            steps, last = steps + 1, forward(*args, **named)
            return last

        site.transformer.forward = gated
