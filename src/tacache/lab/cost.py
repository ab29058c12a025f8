"""What a run costs: time, floating-point operations and memory."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from tacache.errors import HostError
from tacache.storage.files import Frozen

Output = TypeVar("Output")
Device = torch.device | str


class Cost(Frozen):
    """The cost of one run; None where this device cannot tell, and `notes` say why."""

    latency: float  # seconds, the median of `repeats`
    repeats: tuple[float, ...]
    flops: int
    peak_memory: int | None  # bytes
    notes: tuple[str, ...] = ()


def measure_cost(
    run: Callable[[], object], device: Device, repeats: int = 5, warmup: int = 1
) -> Cost:
    """Time, operations and memory of `run`, each measured in runs of its own."""
    seconds = latencies(run, device, repeats, warmup)
    memory = peak_memory(run, device)
    return Cost(
        latency=statistics.median(seconds),
        repeats=tuple(seconds),
        flops=count_flops(run),
        peak_memory=memory,
        notes=() if memory is not None else (no_memory_note(device),),
    )


def latencies(
    run: Callable[[], object], device: Device, repeats: int = 5, warmup: int = 1
) -> list[float]:
    """Seconds of each of `repeats` runs, after `warmup` runs that do not count."""
    if repeats < 1 or warmup < 0:
        raise HostError(f"{repeats} repeats after {warmup} warm-ups cannot be timed: time one")
    for _ in range(warmup):
        run()
    return [timed(run, device)[1] for _ in range(repeats)]


def timed(run: Callable[[], Output], device: Device) -> tuple[Output, float]:
    """What `run` gives and its seconds; on CUDA between two events, all work finished."""
    device = torch.device(device)
    if device.type != "cuda":
        _finish(device)
        start = time.perf_counter()
        output = run()
        _finish(device)
        return output, time.perf_counter() - start
    with torch.cuda.device(device):
        event = cast(Any, torch.cuda.Event)  # untyped
        before, after = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        before.record()
        output = run()
        after.record()
        torch.cuda.synchronize()
        return output, float(before.elapsed_time(after)) / 1000


def count_flops(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products, convolutions and attention of one run.

    A multiplication and an addition are two, as torch counts. Kernels from outside torch (the
    flash-attn package, quantised layers) and compiled code are not seen.
    """
    from torch.utils.flop_counter import FlopCounterMode

    # torch has formulas for attention on CUDA only
    on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
    with FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        run()
    return int(counter.get_total_flops())


def attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Of attention with tensors of these shapes (batch, heads, tokens, channels), unmasked."""
    batch, heads, queries, channels = query
    return 2 * batch * heads * queries * key[2] * (channels + value[3])


def peak_memory(run: Callable[[], object], device: Device) -> int | None:
    """The most bytes that tensors took on the device during a run; None but on CUDA."""
    device = torch.device(device)
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def no_memory_note(device: Device) -> str:
    """Why there is no peak memory."""
    return f"peak memory not run: torch does not count it on {torch.device(device).type}"


def _finish(device: torch.device) -> None:
    if device.type == "mps":
        torch.mps.synchronize()
