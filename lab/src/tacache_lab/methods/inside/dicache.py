"""DiCache (Bu et al., 2025, arXiv:2508.17356): a shallow probe says when to run the deep blocks.

The first block (the probe) runs at every step. A sums the relative change of its output from step
to step; the other blocks are skipped while A < delta. What all blocks together add to their input
(r) is then r_{-2} + g (r_{-1} - r_{-2}) from the last two evaluated steps, where g says how far the
probe's own part p has gone: mean|p - p_{-2}| / mean|p_{-1} - p_{-2}|, between 1 and a cap. The
first part of the run is always evaluated.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from tacache.storage.files import Frozen
from tacache.tasu import divide, working_dtype
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.inside.families import blocks_of, family_of
from tacache_lab.methods.inside.inside_cache import Thresholded
from tacache_lab.methods.online import mean_abs, relative_change
from tacache_lab.methods.tuning import MAX_THRESHOLD

RETENTIONS = (0.2, 0.1, 0.0)  # published: 0.2; small budgets cannot afford it
CAPS = (1.5, 2.0)

Forward = Callable[..., Any]


class DiCacheSettings(Frozen):
    """The threshold of the summed change, the share always evaluated, and the cap of g.

    With `both_ends` one step more at the beginning is evaluated, and the last: so on FLUX.
    """

    threshold: Annotated[float, Field(ge=0)]
    retention: Annotated[float, Field(ge=0, le=1)] = 0.2
    cap: Annotated[float, Field(ge=1)] = 1.5
    both_ends: bool = False


def gain(p: Tensor, last: Tensor, before_last: Tensor, cap: float) -> Tensor:
    """Return the g of each sample: how far its probe has gone since the last but one evaluation."""
    way = divide(mean_abs(p - before_last), mean_abs(last - before_last))
    return way.clamp(1.0, cap)


def rebuilt(last: Tensor, before_last: Tensor, g: Tensor) -> Tensor:
    """Return r_{-2} + g (r_{-1} - r_{-2}), in the dtype of r."""
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
        """Return whether the deep blocks must run at this step, whose probe came out as this."""
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
        """Keep what the probe added at an evaluated step, and what all blocks added."""
        self._past = [*self._past[-1:], (p, r)]

    def estimate(self, p: Tensor) -> Tensor:
        """Return what all blocks would add at a skipped step.

        With one evaluation known, what they did.
        """
        if len(self._past) == 1:
            return self._past[0][1]
        (p_before, r_before), (p_last, r_last) = self._past
        g = gain(p, p_last, p_before, self.settings.cap)
        return rebuilt(r_last, r_before, g)


class DiCache(Thresholded[DiCacheSettings]):
    """DiCache by its formula, for each guidance branch apart."""

    name = "dicache"
    citation = "Bu et al., DiCache: Let Diffusion Model Determine Its Own Cache, 2025"
    published = MappingProxyType(
        {
            "flux": DiCacheSettings(threshold=0.4, both_ends=True),
            "wan": DiCacheSettings(threshold=0.08, cap=2.0),
        }
    )

    def variants(self, steps: int, evaluations: int) -> Sequence[DiCacheSettings]:
        """Return both caps, without retention and with the longest one the budget has room for."""
        longest = next(r for r in RETENTIONS if r * steps < evaluations)
        return [
            DiCacheSettings(threshold=MAX_THRESHOLD, retention=retention, cap=cap)
            for retention, cap in product(dict.fromkeys((longest, 0.0)), CAPS)
        ]

    def install(self, site: Site, settings: DiCacheSettings) -> None:
        """Wrap the forward of every block."""
        passage = Passage(site, settings)
        first, *between, last = blocks_of(site.transformer)
        first.forward = passage.probing(first.forward)
        for block in between:
            block.forward = passage.passing(block.forward)
        last.forward = passage.ending(last.forward)


class Passage:
    """One way through the blocks: the state of each branch, and of the forward under way."""

    def __init__(self, site: Site, settings: DiCacheSettings) -> None:
        self._meter, self._family = site.meter, family_of(site.transformer)
        self._states: dict[str, DiCacheState] = defaultdict(
            lambda: DiCacheState(settings, site.steps)
        )
        self._runs = True
        self._entered: tuple[Tensor, Tensor] | None = None  # the picture before; what probing adds

    @property
    def _state(self) -> DiCacheState:
        return self._states[self._meter.branch]

    def probing(self, forward: Forward) -> Forward:
        """Return the first block: it always runs, and says whether the others do."""

        def probe(*args: Any, **named: Any) -> Any:
            start, output = self._family.entering(args, named), forward(*args, **named)
            picture = self._family.leaving(output)
            self._runs, part = self._state.due(picture), picture - start
            self._entered = start, part
            if self._runs:
                return output
            return self._family.replacing(output, start + self._state.estimate(part))

        return probe

    def passing(self, forward: Forward) -> Forward:
        """Return a block that runs, or hands on what it gets."""

        def step(*args: Any, **named: Any) -> Any:
            return (forward if self._runs else self._passed)(*args, **named)

        return step

    def ending(self, forward: Forward) -> Forward:
        """Return the last block: where it runs, what all have added is remembered."""
        step = self.passing(forward)

        def end(*args: Any, **named: Any) -> Any:
            output = step(*args, **named)
            if self._runs:
                assert self._entered is not None  # by the first block
                start, part = self._entered
                self._state.remember(part, self._family.leaving(output) - start)
            return output

        return end

    def _passed(self, *args: Any, **named: Any) -> Any:
        return self._family.passing(args, named)
