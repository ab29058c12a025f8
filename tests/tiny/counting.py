"""What a tiny pipeline's denoisers do while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@contextmanager
def counted(pipe: DiffusionPipeline, denoisers: tuple[str, ...]) -> Iterator[list[nn.Module]]:
    """A list that grows by one at every forward call of a denoiser."""
    calls: list[nn.Module] = []
    modules = [getattr(pipe, name) for name in denoisers]
    handles = [
        module.register_forward_hook(lambda called, *_: calls.append(called)) for module in modules
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def frozen(pipe: DiffusionPipeline, denoisers: tuple[str, ...]) -> Iterator[None]:
    """Denoisers whose output is always that of their first call that gave such shapes."""
    outputs: dict[Any, Any] = {}

    def first(module: nn.Module, _: Any, output: Any) -> Any:
        shapes = [leaf.shape for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        return outputs.setdefault((module, tuple(shapes)), output)

    handles = [getattr(pipe, name).register_forward_hook(first) for name in denoisers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
