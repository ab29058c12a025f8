"""What really ran inside a transformer, counted at its layers.

A cache may wrap a block, replace a list of blocks or predict a layer: whatever it does, a linear
layer inside a block is called only where its block's own code runs. So those are counted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tacache_lab.methods.inside.families import attention_of, blocks_of

UNGUIDED = "uncond"  # the guidance branch that does not decide whether a step was evaluated


class BlockMeter:
    """Counts the work of a transformer's blocks during one call of its pipeline.

    Work is that of linear layers: weights times tokens. Step 0 is whole in every cache, and is the
    unit: `equivalent_evaluations` says how many such steps all work amounts to. A step counts as
    evaluated where the attention of the last block ran for the prompt itself, in its "cond" branch.
    """

    def __init__(self) -> None:
        self.branch = ""
        self.branches: dict[str, None] = {}  # in the order they were seen
        self.steps = 0
        self._work = self._whole = 0
        self._late = False

    def enter(self, branch: str) -> None:
        """Note that the pipeline is about to call the model for this guidance branch."""
        self.branch = branch
        self.branches[branch] = None

    def took(self) -> bool:
        """Return whether the model was evaluated since this was asked last; ask once a step."""
        if self.steps == 0:
            self._whole = self._work
        self.steps += 1
        late, self._late = self._late, False
        return late

    @property
    def equivalent_evaluations(self) -> float:
        """Return how many whole evaluations the work amounts to."""
        return self._work / self._whole if self._whole else 0.0

    def count(self, layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        """Count a call of a linear layer."""
        weights = sum(weight.numel() for weight in layer.parameters(recurse=False))
        self._work += weights * inputs[0].shape[:-1].numel()

    def mark(self, *_: Any) -> None:
        """Note that the last block's attention was called."""
        self._late = self._late or self.branch != UNGUIDED


@contextmanager
def metered(transformer: Any) -> Iterator[BlockMeter]:
    """Count what runs in a transformer's blocks for the length of a `with` block."""
    meter, blocks = BlockMeter(), blocks_of(transformer)
    layers = [layer for block in blocks for layer in block.modules() if type(layer) is nn.Linear]
    handles = [layer.register_forward_hook(meter.count) for layer in layers]
    handles.append(attention_of(transformer, blocks[-1]).to_q.register_forward_hook(meter.mark))
    transformer.cache_context = _watched(transformer.cache_context, meter)
    try:
        yield meter
    finally:
        del transformer.cache_context  # the class's own shows again
        for handle in handles:
            handle.remove()


def _watched(plain: Callable[..., Any], meter: BlockMeter) -> Callable[..., Any]:
    def cache_context(name: str, **more: Any) -> Any:
        meter.enter(name)
        return plain(name, **more)

    return cache_context
