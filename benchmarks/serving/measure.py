"""Seconds of one call of a denoiser by its rows, the input of the simulation.

    python -m benchmarks.serving.measure --device cuda -o batches.json
    python -m benchmarks.serving.measure --models tiny-flux --rows 1 2 4 8 -o batches.json

tiny-flux has its own weights, in float32; FLUX.1-dev's and Wan 1.3B's architectures have random
ones, in bfloat16. `passes` is how many calls one evaluation takes (two where guidance runs a second
one). What does not fit into memory is left out. Seconds of a GPU are on the clock, with nobody else
using it; those of a processor are the ones this process had it, with OMP_NUM_THREADS=1.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.fullsize.models import build
from benchmarks.fullsize.records import device_name, versions
from benchmarks.fullsize.timing import Clock
from benchmarks.serving.pipelines import TEXTS, tiny_flux
from torch import Tensor

WITHOUT_ROWS = ("txt_ids", "img_ids")


@dataclass(frozen=True)
class Served:
    """One model at one size."""

    name: str
    model: str
    call: dict[str, Any]
    rows: tuple[int, ...]
    passes: int = 1


SERVED = (
    Served("tiny-flux", "tiny-flux", {"height": 128, "width": 128}, (1, 2, 4, 8, 16, 32), 2),
    Served("flux-512", "flux", {"height": 512, "width": 512}, (1, 2, 4, 8)),
    Served("flux-1024", "flux", {"height": 1024, "width": 1024}, (1, 2, 4, 8)),
    Served("wan-480p-17f", "wan", {"num_frames": 17}, (1, 2, 4), 2),
)


def load(model: str, device: str, tiny: bool) -> tuple[Any, dict[str, Any]]:
    """The pipeline and the arguments that every call of it has."""
    if model != "tiny-flux":
        built = build(model, torch.device(device), tiny=tiny)
        return built.pipe, built.call
    pipe = tiny_flux(device)
    config = pipe.transformer.config
    shapes = ((1, 32, config.joint_attention_dim), (1, config.pooled_projection_dim))
    return pipe, {
        name: torch.randn(s, device=device) for name, s in zip(TEXTS, shapes, strict=True)
    }


class Caught(Exception):  # noqa: N818
    """Ends a call of a pipeline once its arguments are known."""


@contextmanager
def catching(owner: Any, name: str, seen: list[Any]) -> Iterator[None]:
    """Note with what a method is called first, and stop there."""

    def catch(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))
        raise Caught

    setattr(owner, name, catch)
    try:
        yield
    except Caught:
        pass
    finally:
        delattr(owner, name)


def with_rows(name: str, value: Any, rows: int) -> Any:
    """An argument of one row for several rows."""
    if not isinstance(value, Tensor) or name in WITHOUT_ROWS or not value.dim():
        return value
    return value.repeat(rows, *[1] * (value.dim() - 1))


def seconds(call: Callable[[], object], clock: Clock, repeats: int) -> float:
    """The median of some calls, after one that does not count.

    On a processor it is the time this process had it, whoever else uses the machine.
    """
    taken, read = [], time.perf_counter if clock.is_cuda else time.process_time
    with torch.no_grad():
        for _ in range(repeats + 1):
            clock.settle()
            start = read()
            call()
            clock.settle()
            taken.append(read() - start)
    return statistics.median(taken[1:])


def measured(
    served: Served, pipe: Any, call: dict[str, Any], rows: Sequence[int], repeats: int
) -> dict[str, Any]:
    """Seconds of the denoiser and of the decoder by their rows."""
    clock = Clock(pipe.transformer.device)
    first: list[Any] = []
    decoded: list[Any] = []
    call = call | served.call | {"num_inference_steps": 2}
    with catching(pipe.transformer, "forward", first):
        pipe(**call, output_type="latent")
    arguments = first[0][1]
    with catching(pipe.vae, "decode", decoded):
        pipe(**call, output_type="pt")
    args, named = decoded[0]
    by_rows: dict[str, float] = {}
    for count in rows:
        many = {name: with_rows(name, value, count) for name, value in arguments.items()}
        try:
            by_rows[str(count)] = seconds(partial(pipe.transformer, **many), clock, repeats)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
    return {
        "model": served.name,
        "passes": served.passes,
        "call": served.call,
        "seconds": by_rows,
        "decode_seconds": seconds(partial(pipe.vae.decode, *args, **named), clock, repeats),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    names = [served.name for served in SERVED]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", nargs="+", type=int, help="in place of each model's own")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="small classes, for a test")
    parser.add_argument("--note", default="")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    words = list(sys.argv[1:] if arguments is None else arguments)
    written = {
        "device": device_name(torch.device(options.device)),
        "note": options.note,
        "versions": versions(),
        "command": " ".join(["python -m benchmarks.serving.measure", *words]),
        "batches": [],
    }
    loaded: tuple[str, Any, dict[str, Any]] = ("", None, {})
    for served in (served for served in SERVED if served.name in options.models):
        if loaded[0] != served.model:
            loaded = ("", None, {})  # frees the one before
            loaded = (served.model, *load(served.model, options.device, options.tiny))
        chosen = (
            replace(served, call={}) if options.tiny and served.model != "tiny-flux" else served
        )
        figures = measured(chosen, *loaded[1:], options.rows or served.rows, options.repeats)
        print(json.dumps(figures), flush=True)
        written["batches"].append(figures)
        options.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
