"""DiCache in a FLUX-type transformer: the first block probes, the others run where it says so."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tacache.baselines.dicache import DiCacheSettings, DiCacheState
from tacache.diffusers.peers.attaching import Site
from tacache.diffusers.peers.base import LOOSEST, Thresholded
from tacache.diffusers.peers.metering import blocks_of

RETENTIONS = (0.2, 0.1, 0.0)  # published: 0.2; small budgets cannot afford it
CAPS = (1.5, 2.0)

Streams = tuple[Tensor, Tensor]  # what a block returns: text and picture


class DiCache(Thresholded[DiCacheSettings]):
    """DiCache by its formula, for each guidance branch apart."""

    name = "dicache"
    citation = "Bu et al., DiCache: Let Diffusion Model Determine Its Own Cache, 2025"
    published = MappingProxyType({"flux": DiCacheSettings(threshold=0.4)})

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
    """One way through the blocks: the state of each branch, and of the forward that is under way.

    A block gets hidden_states and encoder_hidden_states by name, and returns both, text first.
    """

    def __init__(self, site: Site, settings: DiCacheSettings) -> None:
        self._meter = site.meter
        self._states: dict[str, DiCacheState] = defaultdict(
            lambda: DiCacheState(settings, site.steps)
        )
        self._runs = True
        self._entered: tuple[Tensor, Tensor] | None = None  # the picture before; what probing adds

    @property
    def _state(self) -> DiCacheState:
        return self._states[self._meter.branch]

    def probing(self, forward: Callable[..., Streams]) -> Callable[..., Streams]:
        """The first block: it always runs, and says whether the others do."""

        def probe(*, hidden_states: Tensor, **others: Any) -> Streams:
            text, picture = forward(hidden_states=hidden_states, **others)
            self._runs, part = self._state.due(picture), picture - hidden_states
            self._entered = hidden_states, part
            if self._runs:
                return text, picture
            return text, hidden_states + self._state.estimate(part)

        return probe

    def passing(self, forward: Callable[..., Streams]) -> Callable[..., Streams]:
        """A block that runs, or hands on what it gets."""

        def step(*, hidden_states: Tensor, encoder_hidden_states: Tensor, **others: Any) -> Streams:
            if not self._runs:
                return encoder_hidden_states, hidden_states
            return forward(
                hidden_states=hidden_states, encoder_hidden_states=encoder_hidden_states, **others
            )

        return step

    def ending(self, forward: Callable[..., Streams]) -> Callable[..., Streams]:
        """The last block: where it runs, what all have added is remembered."""
        step = self.passing(forward)

        def end(**arguments: Any) -> Streams:
            text, picture = step(**arguments)
            if self._runs:
                assert self._entered is not None  # by the first block
                start, part = self._entered
                self._state.remember(part, picture - start)
            return text, picture

        return end
