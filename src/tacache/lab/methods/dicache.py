"""DiCache (Bu et al., 2025, arXiv:2508.17356): a shallow probe says when to run the deep blocks.

The first block (the probe) runs at every step. A sums the relative change of its output from step
to step; the other blocks are skipped while A < delta. What all blocks together add to their input
(r) is then r_{-2} + g (r_{-1} - r_{-2}) from the last two evaluated steps, where g says how far the
probe's own part p has gone: mean|p - p_{-2}| / mean|p_{-1} - p_{-2}|, between 1 and a cap. The
first part of the run is always evaluated. Where it needs the model's blocks, see
`tacache.lab.methods.inside`; here are its formulas.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tacache.decomposition import divide, working_dtype
from tacache.lab.methods.online import mean_abs, relative_change
from tacache.storage.files import Frozen


class DiCacheSettings(Frozen):
    """The threshold of the summed change, the share always evaluated, and the cap of g.

    With `both_ends` one step more at the beginning is evaluated, and the last: so on FLUX.
    """

    threshold: Annotated[float, Field(ge=0)]
    retention: Annotated[float, Field(ge=0, le=1)] = 0.2
    cap: Annotated[float, Field(ge=1)] = 1.5
    both_ends: bool = False


def gain(p: Tensor, last: Tensor, before_last: Tensor, cap: float) -> Tensor:
    """The g of each sample: how far its probe has gone since the last but one evaluation."""
    way = divide(mean_abs(p - before_last), mean_abs(last - before_last))
    return way.clamp(1.0, cap)


def rebuilt(last: Tensor, before_last: Tensor, g: Tensor) -> Tensor:
    """r_{-2} + g (r_{-1} - r_{-2}), in the dtype of r."""
    precise, wide = working_dtype(last), [-1] + [1] * (last.dim() - 1)
    change = last.to(precise) - before_last.to(precise)
    return (before_last.to(precise) + g.reshape(wide) * change).to(last.dtype)


class DiCacheState:
    """What one guidance branch of one run knows; `due` and then `remember` or `estimate` a step.

    A batch is evaluated together, as soon as one of its samples is due.
    """

    def __init__(self, settings: DiCacheSettings, steps: int) -> None:
        self.settings = settings
        first = int(settings.retention * steps + 0.5) + settings.both_ends
        self._always = {*range(first), *([steps - 1] if settings.both_ends else [])}
        self._step, self._total = -1, torch.zeros(())
        self._probe: Tensor | None = None
        self._past: list[tuple[Tensor, Tensor]] = []  # (p, r) of the last two evaluations

    def due(self, probe: Tensor) -> bool:
        """Whether the deep blocks must run at this step, whose probe came out as this."""
        self._step += 1
        if self._probe is not None:
            self._total = self._total.to(probe.device) + relative_change(probe, self._probe)
        self._probe = probe
        summed = float(self._total.max())
        if self._past and self._step not in self._always and summed < self.settings.threshold:
            return False
        self._total = torch.zeros(())
        return True

    def remember(self, p: Tensor, r: Tensor) -> None:
        """An evaluated step: what the probe added, and what all blocks added."""
        self._past = [*self._past[-1:], (p, r)]

    def estimate(self, p: Tensor) -> Tensor:
        """What all blocks would add at a skipped step; with one evaluation known, what they did."""
        if len(self._past) == 1:
            return self._past[0][1]
        (p_before, r_before), (p_last, r_last) = self._past
        g = gain(p, p_last, p_before, self.settings.cap)
        return rebuilt(r_last, r_before, g)
