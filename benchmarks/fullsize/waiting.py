"""Where the host waits for the device: a profiler's trace, and CUDA's own debug mode."""

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.fullsize.models import Built
from benchmarks.fullsize.timing import Clock, by_iteration, wrapped_step
from torch.profiler import ProfilerActivity, profile

WAITED = "called a synchronizing CUDA operation"  # what the debug mode warns with
WAITS = ("Synchronize", "Memcpy DtoH", "aten::_local_scalar_dense")


def _run(built: Built, clock: Clock, steps: int, ended: Any = None) -> None:
    built.pipe(
        **built.call,
        num_inference_steps=steps,
        generator=torch.Generator(clock.device).manual_seed(0),
        output_type="latent",
        callback_on_step_end=ended,
    )


def traced_waits(built: Built, clock: Clock, steps: int) -> tuple[dict[str, int], dict[str, float]]:
    """Events of a call's denoising loop in which the host waits, by name; and the device's pauses.

    The profiler itself waits when it ends; calls are compared with each other, so that falls out.
    """
    activities = [ProfilerActivity.CPU]
    if clock.is_cuda:
        activities.append(ProfilerActivity.CUDA)
    trace, pipe = profile(activities=activities), built.pipe

    def opened(*args: Any, **kwargs: Any) -> Any:
        clock.settle()
        trace.start()
        return type(pipe).progress_bar(pipe, *args, **kwargs)

    def ended(pipe: Any, i: int, t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if i + 1 == pipe.num_timesteps:
            trace.stop()
        return {}

    pipe.progress_bar = opened
    try:
        _run(built, clock, steps, ended)
    finally:
        del pipe.progress_bar
    events = list(trace.events() or ())
    names = Counter(event.name for event in events if any(wait in event.name for wait in WAITS))
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA"
    ]
    return dict(sorted(names.items())), pauses(spans, pipe.num_timesteps)


def pauses(spans: Iterable[tuple[float, float]], evaluations: int) -> dict[str, float]:
    """How long the device has nothing to do between the first evaluation and the end of the loop.

    In the first one the host is not ahead yet. A microsecond between kernels is the device's own.
    """
    ordered = sorted(spans)
    if not ordered:
        return {"longest": 0.0, "total": 0.0, "share": 0.0}
    begin, end = ordered[0][0], max(span[1] for span in ordered)
    begin += (end - begin) / evaluations
    reached, gaps = begin, [0.0]
    for start, stop in ordered:
        if start > reached:
            gaps.append(start - reached)
        reached = max(reached, stop)
    total = sum(gaps)
    return {"longest": max(gaps), "total": total, "share": total / (end - begin)}


def waits_in_steps(built: Built, clock: Clock, steps: int) -> list[int]:
    """How often each iteration's steps of the scheduler wait, as CUDA's debug mode counts."""
    counts: list[int] = []
    iterations = 0

    def ended(pipe: Any, i: int, t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        nonlocal iterations
        iterations = i + 1
        return {}

    def around(scheduler: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = _watched(clock, step, *args, **kwargs)
        counts.append(sum(WAITED in str(warning.message) for warning in caught))
        return result

    with wrapped_step(built.pipe.scheduler, around):
        _run(built, clock, steps, ended)
    return by_iteration(counts, iterations)


def _watched(clock: Clock, step: Any, *args: Any, **kwargs: Any) -> Any:
    if not clock.is_cuda:
        return step(*args, **kwargs)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        return step(*args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode(before)
