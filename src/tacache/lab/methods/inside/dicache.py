"""DiCache in a transformer: the first block probes, the others run where it says so."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tacache.lab.methods.dicache import DiCacheSettings, DiCacheState
from tacache.lab.methods.inside.attaching import Site
from tacache.lab.methods.inside.base import Thresholded
from tacache.lab.methods.inside.families import blocks_of, family_of
from tacache.lab.methods.tuning import LOOSEST

RETENTIONS = (0.2, 0.1, 0.0)  # published: 0.2; small budgets cannot afford it
CAPS = (1.5, 2.0)

Forward = Callable[..., Any]


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
        """Both caps, without retention and with the longest one the budget has room for."""
        longest = next(r for r in RETENTIONS if r * steps < evaluations)
        return [
            DiCacheSettings(threshold=LOOSEST, retention=retention, cap=cap)
            for retention, cap in product(dict.fromkeys((longest, 0.0)), CAPS)
        ]

    def install(self, site: Site, settings: DiCacheSettings) -> None:
        """Wrap the forward of every block."""
        passage = Passage(site, settings)
        first, *others, last = blocks_of(site.transformer)
        first.forward = passage.probing(first.forward)
        for block in others:
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
        """The first block: it always runs, and says whether the others do."""

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
        """A block that runs, or hands on what it gets."""

        def step(*args: Any, **named: Any) -> Any:
            return (forward if self._runs else self._passed)(*args, **named)

        return step

    def ending(self, forward: Forward) -> Forward:
        """The last block: where it runs, what all have added is remembered."""
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
