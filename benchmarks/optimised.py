"""Weights of a fitted plan optimised through the model, as NeuralSolver and DyWeight learn theirs.

    python -m benchmarks.optimised --embed inputs           text and noise of 64 + 24 samples
    python -m benchmarks.optimised inputs optimised.jsonl   optimise: minutes on a GPU
    python -m benchmarks.optimised --table optimised.jsonl

Anchors and memory are those of the plans that ship. Adam lowers the mean log error of the final
state over 64 calibration samples, through all evaluations of the run (arXiv:2505.21114 and
2603.11607 do so for the coefficients of a multistep solver), from the plan's own weights and from
straight lines. Pictures of 24 test prompts, to full steps, say what that gains on the closed form.
A record that is there is not made again. Gradients are taken with TF32 on a GPU; the full runs and
the runs that are judged are in float32.
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.direct import log_drift, walked
from benchmarks.instant import (
    Model,
    compared,
    picture_model,
    picture_text,
    solved,
    video_model,
    video_text,
)
from benchmarks.quality import read
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tacache import models
from tacache.instant import linear_rows
from tacache.plan import Plan

NAMES = ("tiny-flux", "tiny-wan")
BUDGETS = (13, 10, 7)
STARTS = ("fitted", "lines")
STEPS, SAMPLES, TESTS = 50, 64, 24
FIRST_SEED = 1_000_000  # of calibration, as in the benchmark
ROUNDS, RATE = 200, 3e-3  # steps of Adam, and its first learning rate, which falls to zero
ROWS = 64  # samples that are walked together

Velocity = Callable[[Tensor, float], Tensor]


class Optimised(NamedTuple):
    """Weights after Adam, and the mean log error before each of its steps."""

    weights: list[Tensor]
    losses: list[float]


def start_of(plan: Plan, start: str) -> list[Tensor]:
    """The plan's own weights, or those of straight lines through its last two velocities."""
    assert plan.weights is not None
    rows = list(plan.weights)
    if start == "lines":
        lines = linear_rows(plan.times, plan.anchors)
        rows = [
            (*line, *(0.0,) * len(row))[: len(row)] for line, row in zip(lines, rows, strict=True)
        ]
    return [torch.tensor(row) for row in rows]


def optimise(
    velocity_of: Callable[[Tensor], Velocity],
    noise: Tensor,
    wanted: Tensor,
    plan: Plan,
    start: Sequence[Tensor],
    rounds: int = ROUNDS,
) -> Optimised:
    """Weights by Adam on the final error, through the model; `velocity_of` is given its rows."""
    weights = [row.clone().to(noise).requires_grad_() for row in start]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rounds)
    parts, losses = torch.arange(len(noise), device=noise.device).split(ROWS), []
    for _ in range(rounds):
        optimizer.zero_grad()
        total = 0.0
        for rows in parts:
            end = walked(velocity_of(rows), noise[rows], plan, weights)
            loss = log_drift(end, wanted[rows]).sum() / len(noise)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        optimizer.step()
        falling.step()
    return Optimised([row.detach() for row in weights], losses)


def checkpointed(model: Model, rows: Tensor) -> Velocity:
    """The model's velocity of some samples, which keeps no activations for the gradient."""

    def velocity(x: Tensor, t: float) -> Tensor:
        value: Tensor = checkpoint(model.velocity, x, t, rows, use_reentrant=False)
        return value

    return velocity


@contextmanager
def rounded_products() -> Iterator[None]:
    """Multiply matrices in TF32 for a while; cuDNN's attention has no gradient at these sizes."""
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, True
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        products.allow_tf32 = before


def measured(
    model: Model, budgets: Sequence[int], done: set[tuple[str, int, str]]
) -> Iterator[dict[str, Any]]:
    """The missing records of a model: the closed form, and Adam from either start."""
    times = model.grids[STEPS]
    with torch.no_grad():
        full = solved(model, times, [(1.0,)] * STEPS)
        pictures = model.decode(full[SAMPLES:])
    for evaluations, start in product(budgets, STARTS):
        if (model.name, evaluations, start) in done:
            continue
        plan = models.embedded(model.name).plan(evaluations)
        began = time.perf_counter()
        first = start_of(plan, start)
        noise, wanted = model.noise[:SAMPLES], full[:SAMPLES]
        with rounded_products():
            best = optimise(lambda rows: checkpointed(model, rows), noise, wanted, plan, first)
        seconds = time.perf_counter() - began
        entry = {"model": model.name, "evaluations": evaluations, "start": start}
        with torch.no_grad():
            for name, weights in (("before", first), ("after", best.weights)):
                end = judged_ends(model, plan, weights)
                entry[name] = compared(model, end, full[SAMPLES:], pictures)
        yield entry | {
            "samples": SAMPLES,
            "noise_sha256": hashlib.sha256(model.noise.cpu().numpy().tobytes()).hexdigest(),
            "rounds": ROUNDS,
            "evaluations_spent": SAMPLES * (STEPS + 3 * ROUNDS * evaluations),
            "seconds": round(seconds, 1),
            "log_drift": [round(best.losses[0], 4), round(best.losses[-1], 4)],
            "weights": [[round(float(w), 6) for w in row] for row in best.weights],
        }


def judged_ends(model: Model, plan: Plan, weights: Sequence[Tensor]) -> Tensor:
    """Where the test samples end with these weights."""
    rows = torch.arange(SAMPLES, len(model.noise), device=model.noise.device)
    weights = [row.to(model.noise) for row in weights]
    return walked(lambda x, t: model.velocity(x, t, rows), model.noise[rows], plan, weights)


@torch.no_grad()
def embed(folder: Path) -> None:
    """Write what a machine without the text encoders needs of both models."""
    from tacache.diffusers import drive
    from tacache.prompts import read_prompts

    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        pipe, facts, call = models.load(name), models.embedded(name), models.default_call(name)
        prompts = read_prompts(facts.prompts("calibration"))
        texts = [prompts[i % len(prompts)] for i in range(SAMPLES)]
        texts += read_prompts(facts.prompts("test"))[:TESTS]
        noise = []
        for i, text in enumerate(texts):
            seed = FIRST_SEED + i if i < SAMPLES else 0
            generator = torch.Generator().manual_seed(seed)
            with drive(pipe, prompt=text, generator=generator, **call) as run:
                noise.append(run.noise.clone())
                times = list(run.times)
        kept = {
            "folder": str(facts.folder.relative_to(Path.cwd())),
            "text": video_text(pipe, texts) if name == "tiny-wan" else picture_text(pipe, texts),
            "noise": torch.cat(noise),
            "times": times,
            "guidance": call.get("true_cfg_scale", call.get("guidance_scale")),
        }
        torch.save(kept, folder / f"{name}-optimised.pt")


def load(name: str, inputs: Path, device: str) -> Model:
    """A model with its prepared inputs."""
    kept = torch.load(inputs / f"{name}-optimised.pt", weights_only=True, map_location=device)
    make = video_model if name == "tiny-wan" else picture_model
    folder, guidance = Path(kept["folder"]), float(kept["guidance"])
    velocity, decode = make(folder, kept["text"], guidance, device, kept)
    return Model(name, velocity, decode, kept["noise"], {STEPS: tuple(kept["times"])})


def table(records: Sequence[dict[str, Any]]) -> str:
    """Mean PSNR of the test pictures before and after, with the 5th percentile, a row each."""
    rows = [
        "| model | evaluations | start | before | after Adam | error of its own samples | spent |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in records:
        psnr = [
            f"{entry[when]['psnr']['mean']:.2f} ({entry[when]['psnr']['p5']:.2f})"
            for when in ("before", "after")
        ]
        before, after = entry["log_drift"]
        change = f"{100 * math.expm1(after - before):.0f} %"
        spent = f"{entry['evaluations_spent']:,}"
        cells = [entry["model"], entry["evaluations"], entry["start"], *psnr, change, spent]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> None:
    """Prepare, optimise or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--embed", action="store_true", help="write the inputs")
    parser.add_argument("--table", action="store_true", help="show records")
    parser.add_argument("--models", nargs="*", default=NAMES)
    parser.add_argument("--budgets", nargs="*", type=int, default=BUDGETS)
    options = parser.parse_args()
    if options.embed:
        return embed(options.inputs)
    if options.table:
        return print(table(read(options.inputs)))
    records = read(options.output)
    done = {(entry["model"], entry["evaluations"], entry["start"]) for entry in records}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with options.output.open("a", encoding="utf-8") as file:
        for name in options.models:
            for entry in measured(load(name, options.inputs, device), options.budgets, done):
                file.write(json.dumps(entry) + "\n")
                file.flush()
                print(table([entry]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
