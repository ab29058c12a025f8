"""What a skipped step costs, relative to one pass over the latent (reading and writing it once).

    python benchmarks/skip_cost.py -o benchmarks/results/skip_cost.jsonl

Appends one record per latent, dtype and way of stepping. On CUDA times come from events around many
steps in a row, so they include the launches wherever those are what takes the time.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import torch

from tacache.grid import time_grid
from tacache.plan import Plan
from tacache.tasu import Arc, advance, init_direction, realign, start_arc

LATENTS = {
    "FLUX 1024x1024": (1, 4096, 64),
    "Wan 832x480x81": (1, 16, 21, 60, 104),
}
REPEATS, STEPS = 15, 100


def main() -> None:
    """Measure everything on the fastest device there is and append the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        for latent, shape in LATENTS.items():
            for dtype in (torch.float32, torch.bfloat16):
                for record in measure(latent, shape, dtype, device, not options.no_compile):
                    file.write(json.dumps(record) + "\n")
                    print(
                        f"{latent:15} {record['dtype']:9} {record['step']:22} "
                        f"{record['microseconds']:9.1f} us  {record['passes']:6.2f} passes"
                    )


def measure(
    latent: str, shape: tuple[int, ...], dtype: torch.dtype, device: str, compiled: bool
) -> Iterator[dict[str, object]]:
    """Records of one latent."""
    torch.manual_seed(0)
    v_previous = torch.randn(shape, device=device).to(dtype)
    v = (v_previous.float() + 0.05 * torch.randn(shape, device=device)).to(dtype)
    plan = Plan(
        rule="tasu",
        times=tuple(time_grid(50, shift=3.0)),
        anchors=(0, 1),
        magnitude=(0.3,) * 50,
        direction=(0.02,) * 50,
    )
    updates = cycle([plan.update(n) for n in range(1, 49)])
    arc = start_arc(v, v_previous).advance(*next(updates))
    ways: dict[str, Callable[[], object]] = {
        "one pass": v.clone,
        "skip": lambda: arc.advance(*next(updates)).velocity().to(dtype),
        "first skip": lambda: start_arc(v, v_previous).advance(*next(updates)).velocity().to(dtype),
        "skip, as in eq. 12-13": literal(v, v_previous, plan, dtype),
    }
    if compiled:
        ways["skip, compiled"] = fused(arc, plan, dtype, device)
    baseline = 0.0
    for step, call in ways.items():
        seconds = median_seconds(call, device)
        baseline = baseline or seconds
        yield {
            "latent": latent,
            "shape": shape,
            "dtype": str(dtype).removeprefix("torch."),
            "step": step,
            "microseconds": round(seconds * 1e6, 2),
            "passes": round(seconds / baseline, 3),
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
            "torch": torch.__version__,
        }


def literal(
    v: torch.Tensor, v_previous: torch.Tensor, plan: Plan, dtype: torch.dtype
) -> Callable[[], torch.Tensor]:
    """The recursion written as the paper has it, for comparison."""
    p, now = init_direction(v, v_previous), v.float()
    growth, turn = plan.update(10)
    return lambda: advance(now, realign(p, now), growth, turn).to(dtype)


def fused(arc: Arc, plan: Plan, dtype: torch.dtype, device: str) -> Callable[[], torch.Tensor]:
    """The skip as one compiled function; its numbers come in tensors, so that it compiles once."""

    def skip(base, p, along, across, turns, growth, turn):  # type: ignore[no-untyped-def]
        turned = turns * along.abs()
        along, across = growth * along - turn * along.sign() * across, growth * across
        return (along * base + (across + turn * turned) * p).to(dtype)

    table = cycle(torch.tensor([plan.update(n) for n in range(1, 49)], device=device).unbind())
    compiled = torch.compile(skip, fullgraph=True)
    return lambda: compiled(*arc, *next(table).unbind())


def median_seconds(call: Callable[[], object], device: str) -> float:
    """Median over repeats of the time per call, warm."""
    for _ in range(10):
        call()
    return statistics.median(_time(call, device) for _ in range(REPEATS)) / STEPS


def _time(call: Callable[[], object], device: str) -> float:
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(STEPS):
            call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(STEPS):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


if __name__ == "__main__":
    main()
