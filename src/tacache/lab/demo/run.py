"""The demo: draw pictures or clips with full steps and by plans in turn, and compare them."""

import importlib.util
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.fidelity import capped, frame_changes, per_frame, psnr, ssim
from tacache.host import file_stem, warm_up, write
from tacache.lab.demo.record import ModelDemo, Picture, summed_up
from tacache.models import steady_threads
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.work.progress import track

ENCODER = ("imageio", "imageio_ffmpeg")
ENLARGED = 3  # an MP4 keeps colours at half of its size, so small clips are made larger
PROFILE = "demo.profile.json"
# What the embedded model draws: other words, a count, a colour, and two objects in their places.
PROMPTS = (
    "a puppy on a green background",
    "three penguins on a blue background",
    "a blue car",
    "a hamburger above a guitar",
)
# What it is calibrated on when that is asked for: none of the above.
CALIBRATION = (
    "a cat",
    "two strawberries on a blue background",
    "a purple umbrella",
    "an owl below a crescent moon",
)
# The same for the embedded model that makes clips: a way, a speed, a turn, and two objects.
VIDEO_PROMPTS = (
    "a cat moves to the left",
    "a rocket rises quickly on a black background",
    "a pizza spins clockwise",
    "a tiger moves right and a penguin moves left",
)
VIDEO_CALIBRATION = (
    "a dog moves to the right fast",
    "a blue balloon rising on a yellow background",
    "a heart shrinks",
    "a bear and a banana cross",
)


class Comparison(NamedTuple):
    """What to compare: prompts, with the pipeline's arguments and a seed."""

    prompts: Sequence[str]
    call: dict[str, Any]
    seed: int = 0
    calibration: Sequence[str] = CALIBRATION
    fps: int | None = None  # where the pipeline makes clips


class Drawn(NamedTuple):
    """What one call gave: (channels, height, width) in [0, 1], frames first, and its time."""

    pixels: Tensor
    seconds: float


def run_model_demo(
    pipe: Any,
    out: Path,
    asked: Comparison,
    planned: Callable[[Profile], Sequence[Plan]],
    profile: Profile | None = None,
    *,
    progress: bool = False,
) -> ModelDemo:
    """Every prompt with full steps and by each plan, from the same noise; write the files.

    `planned` makes the plans from the profile on the run's own grid. Without a profile, the
    pipeline is calibrated on a few other prompts first.
    """
    from tacache.diffusers import calibrate

    with steady_threads(pipe):
        if profile is None:
            profile = calibrate(pipe, asked.calibration, progress=progress, **asked.call)
        profile = profile.resample(_times(pipe, asked))
        plans = planned(profile)
        full, *fast = _draw_in_turn(pipe, plans, asked, progress)
    profile.save(out / PROFILE)
    rows = [_pictures(None, profile.steps, full, full, asked, out)]
    for plan, drawn in track(list(zip(plans, fast, strict=True)), "comparing them", progress):
        rows.append(_pictures(plan.rule, plan.evaluations, drawn, full, asked, out))
    if asked.fps is not None:
        _side_by_side([full, *fast], asked, out)
    files = [plan.save(out / f"{_name(plan)}.plan.json").name for plan in plans]
    return ModelDemo(
        model=profile.host.model or type(pipe).__name__,
        steps=profile.steps,
        seed=asked.seed,
        prompts=tuple(asked.prompts),
        budgets=tuple(map(summed_up, rows, [rows[0]] * len(rows), [None, *files])),
        pictures=tuple(picture for row in rows for picture in row),
        profile=PROFILE,
        fps=asked.fps,
        machine=_machine(pipe),
    )


def fidelity(reference: Tensor, made: Tensor) -> dict[str, float]:
    """How a picture compares to another, or a clip to another by its frames and its changes."""
    pair, alike = (reference[None], made[None]), partial(ssim, dtype=torch.float32)
    if made.ndim == 3:
        return {"psnr": capped(float(psnr(*pair))), "ssim": float(alike(*pair))}
    changes = tuple(map(frame_changes, pair))
    return {
        "psnr": capped(float(per_frame(psnr, *pair))),
        "ssim": float(per_frame(alike, *pair)),
        "change_psnr": capped(float(per_frame(psnr, *changes))),
        "change_ssim": float(per_frame(alike, *changes)),
    }


def _times(pipe: Any, asked: Comparison) -> tuple[float, ...]:
    """The grid of the asked call; nothing that happens once is left for the timed calls."""
    from tacache.diffusers import drive
    from tacache.diffusers.pipeline import PipelineHost

    warm_up(PipelineHost(pipe), asked.prompts[0], asked.call)
    with drive(pipe, prompt=asked.prompts[0], **asked.call) as run:
        return run.times


def _machine(pipe: Any) -> str:
    """Where the pipeline runs, in words; `steady_threads` keeps it to one core."""
    if pipe.device.type == "cpu":
        return f"one core of a {os.cpu_count()}-core {platform.machine()} machine"
    return f"the device {pipe.device}"


def _draw_in_turn(
    pipe: Any, plans: Sequence[Plan], asked: Comparison, progress: bool
) -> list[list[Drawn]]:
    """What full steps and each plan made of every prompt, a list a plan.

    One prompt is drawn in all ways before the next one. A machine that is busy for a while then
    slows all of them, and flatters none.
    """
    from tacache.diffusers import applied

    ways = [None, *plans]
    made: list[list[Drawn]] = [[] for _ in ways]
    jobs = [(prompt, n) for prompt in asked.prompts for n in range(len(ways))]
    noun = "pictures" if asked.fps is None else "clips"
    for prompt, n in track(jobs, f"drawing {len(jobs)} {noun}", progress):
        plan = ways[n]
        with nullcontext() if plan is None else applied(pipe, plan):
            made[n].append(_draw(pipe, prompt, asked))
    return made


def _draw(pipe: Any, prompt: str, asked: Comparison) -> Drawn:
    from tacache.diffusers.runs import run_arguments

    arguments = run_arguments([Sample(prompt, asked.seed)], asked.call)
    # on the CPU the time of this process: others that are busy would slow one way or another
    clock = time.process_time if pipe.device.type == "cpu" else time.perf_counter
    started = clock()
    made = pipe(**arguments, output_type="pt", return_dict=False)[0]
    pixels = made[0].float().cpu()  # waits for the device
    return Drawn(pixels, clock() - started)


def _pictures(
    rule: str | None,
    evaluations: int,
    drawn: Sequence[Drawn],
    full: Sequence[Drawn],
    asked: Comparison,
    out: Path,
) -> list[Picture]:
    """Write the pictures of one plan, and set each against its full-step picture."""
    made, way = [], "full" if rule is None else f"{rule}-{evaluations}"
    for i, (prompt, one, reference) in enumerate(zip(asked.prompts, drawn, full, strict=True)):
        file = _write(one.pixels, f"{_stem(i, asked)}-{way}", asked, out)
        numbers = {} if rule is None else fidelity(reference.pixels, one.pixels)
        picture = Picture(
            prompt=prompt,
            evaluations=evaluations,
            file=file.relative_to(out).as_posix(),
            seconds=one.seconds,
            rule=rule,
            **numbers,
        )
        made.append(picture)
    return made


def can_encode() -> bool:
    """Whether what writes MP4 files is installed."""
    return all(importlib.util.find_spec(package) is not None for package in ENCODER)


def _side_by_side(rows: Sequence[Sequence[Drawn]], asked: Comparison, out: Path) -> None:
    """One clip a prompt: full steps on the left, then every plan, the largest budget first.

    It is a GIF, and an MP4 as well where that can be written.
    """
    for i in range(len(asked.prompts)):
        clips = [row[i].pixels for row in rows]
        gap = torch.ones(*clips[0].shape[:-1], 2)
        parts = [part for clip in clips for part in (gap, clip)][1:]
        beside, name = torch.cat(parts, dim=-1), f"{_stem(i, asked)}-side-by-side"
        _write(beside, name, asked, out)
        if can_encode():
            larger = beside.repeat_interleave(ENLARGED, -1).repeat_interleave(ENLARGED, -2)
            _write(larger, name, asked, out, ".mp4")


def _name(plan: Plan) -> str:
    return f"{plan.rule}-{plan.evaluations}"


def _stem(i: int, asked: Comparison) -> str:
    return file_stem(i, asked.prompts[i], asked.seed)


def _write(pixels: Tensor, name: str, asked: Comparison, out: Path, suffix: str = ".gif") -> Path:
    folder = "pictures" if asked.fps is None else "clips"
    return write(pixels.movedim(-3, -1).numpy(), out / folder / name, suffix, asked.fps or 1)
