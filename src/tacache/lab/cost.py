"""Floating-point operations of a run, counted by torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def count_flops(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products, convolutions and attention of one run.

    A multiplication and an addition are two, as torch counts. Kernels from outside torch (the
    flash-attn package, quantised layers) and compiled code are not seen.
    """
    from torch.utils.flop_counter import FlopCounterMode

    # torch has formulas for attention on CUDA only
    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        run()
    return int(counter.get_total_flops())


def _attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """The operations of unmasked attention; shapes are (batch, heads, tokens, channels)."""
    batch, heads, queries, channels = query
    return 2 * batch * heads * queries * key[2] * (channels + value[3])
