"""Floating-point operations of a run, counted by torch; those of a call by its evaluations."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tacache.prompts import Sample

if TYPE_CHECKING:
    from tacache_lab.bench.host_calls import Calls

SHORT, LONG = 2, 3  # steps; one more evaluation apart (Mochi cannot count to one)


class CallFlops(NamedTuple):
    """The operations of one guided evaluation, and of all that comes before and after the loop."""

    evaluation: int
    around: int

    def of(self, evaluations: float) -> int:
        """Return the operations of a call with so many evaluations, or with equivalent work."""
        return self.around + round(evaluations * self.evaluation)


def call_flops(caller: "Calls", subject: Sample) -> CallFlops | None:
    """Count two short calls that differ in their steps.

    The result is None where their counts do not differ: torch does not see compiled code.
    """
    # in this thread: the counter sees no other
    short, longer = (
        count_flops(functools.partial(caller.plain_call, subject, steps)) for steps in (SHORT, LONG)
    )
    few, more = (caller.amount(caller.grid(steps)[:-1]) for steps in (SHORT, LONG))
    if longer <= short or more <= few:
        return None
    evaluation = round((longer - short) / (more - few))
    around = short - round(few * evaluation)
    return CallFlops(evaluation, around) if around >= 0 else None


def count_flops(run: Callable[[], object]) -> int:
    """Return the floating-point operations of matrix products, convolutions and attention.

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
    """Return the operations of unmasked attention; shapes are (batch, heads, tokens, channels)."""
    batch, heads, queries, channels = query
    return 2 * batch * heads * queries * key[2] * (channels + value[3])
