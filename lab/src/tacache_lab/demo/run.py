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
from tacache.hosts import file_stem, warm_up, write
from tacache.models import steady_threads
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.work.progress import track
from tacache_lab.demo.demo_request import DemoRequest
from tacache_lab.demo.record import PLAIN, DemoPicture, ModelDemo, summed_up

ENCODER = ("imageio", "imageio_ffmpeg")
ENLARGED = 3  # an MP4 keeps colours at half of its size, so small clips are made larger
PROFILE = "demo.profile.json"


class DemoWay(NamedTuple):
    """One way to draw: by a plan, or with so many plain steps; full steps have no rule."""

    rule: str | None
    evaluations: int
    plan: Plan | None = None

    @property
    def name(self) -> str:
        """Return what its files are called."""
        return "full" if self.rule is None else f"{self.rule}-{self.evaluations}"


class DemoDrawing(NamedTuple):
    """What one call gave: (channels, height, width) in [0, 1], frames first, and its time."""

    pixels: Tensor
    seconds: float


def run_model_demo(
    pipe: Any,
    out: Path,
    request: DemoRequest,
    planned: Callable[[Profile], Sequence[Plan]],
    profile: Profile | None = None,
    *,
    progress: bool = False,
) -> ModelDemo:
    """Return every prompt with full steps and by each plan, from the same noise; write the files.

    `planned` makes the plans from the profile on the run's own grid. Without a profile, the
    pipeline is calibrated on a few other prompts first.
    """
    from tacache.diffusers import calibrate

    folder = out / request.part
    with steady_threads(pipe):
        if profile is None:
            profile = calibrate(pipe, request.calibration, progress=progress, **request.call)
        profile = profile.resample(_times(pipe, request))
        ways = ways_to_draw(profile.steps, planned(profile), request.plain)
        drawn = _draw_in_turn(pipe, ways, request, progress)
    saved = profile.save(folder / PROFILE)
    rows = [
        _pictures(way, images, drawn[0], request, out)
        for way, images in track(
            list(zip(ways, drawn, strict=True)), f"comparing {profile.steps} steps", progress
        )
    ]
    if request.fps is not None:
        _side_by_side(drawn, request, folder)
    return ModelDemo(
        model=profile.origin.model or type(pipe).__name__,
        steps=profile.steps,
        seed=request.seed,
        prompts=tuple(request.prompts),
        budgets=tuple(map(summed_up, rows, [rows[0]] * len(rows), _saved(ways, folder, out))),
        pictures=tuple(picture for row in rows for picture in row),
        profile=_from(out, saved),
        fps=request.fps,
        machine=_machine(pipe),
    )


def ways_to_draw(steps: int, plans: Sequence[Plan], plain: Sequence[int]) -> list[DemoWay]:
    """Return full steps, and then plain steps and plans, the most evaluations first."""
    fewer = [DemoWay(PLAIN, budget) for budget in plain]
    planned = [DemoWay(plan.rule, plan.evaluations, plan) for plan in plans]
    return [
        DemoWay(None, steps),
        *sorted([*fewer, *planned], key=lambda way: way.evaluations, reverse=True),
    ]


def fidelity(reference: Tensor, image: Tensor) -> dict[str, float]:
    """Return how a picture compares to another, or a clip by its frames and its changes."""
    pair, alike = (reference[None], image[None]), partial(ssim, dtype=torch.float32)
    if image.ndim == 3:
        return {"psnr": capped(float(psnr(*pair))), "ssim": float(alike(*pair))}
    changes = tuple(map(frame_changes, pair))
    return {
        "psnr": capped(float(per_frame(psnr, *pair))),
        "ssim": float(per_frame(alike, *pair)),
        "change_psnr": capped(float(per_frame(psnr, *changes))),
        "change_ssim": float(per_frame(alike, *changes)),
    }


def _times(pipe: Any, request: DemoRequest) -> tuple[float, ...]:
    """Return the grid of the asked call; nothing that happens once is left for the timed calls."""
    from tacache.diffusers import drive
    from tacache.diffusers.calls import run_arguments
    from tacache.diffusers.pipeline import PipelineHost

    warm_up(PipelineHost(pipe), request.prompts[0], request.call)
    # With a generator of its own, since another part may draw from the shared one meanwhile.
    with drive(
        pipe, **run_arguments([Sample(request.prompts[0], request.seed)], request.call)
    ) as run:
        return run.times


def _machine(pipe: Any) -> str:
    """Return where the pipeline runs, in words; `steady_threads` keeps it to one core."""
    if pipe.device.type == "cpu":
        return f"one core of a {os.cpu_count()}-core {platform.machine()} machine"
    return f"the device {pipe.device}"


def _draw_in_turn(
    pipe: Any, ways: Sequence[DemoWay], request: DemoRequest, progress: bool
) -> list[list[DemoDrawing]]:
    """Return what each way made of every prompt, a list a way.

    All ways take their turn at one prompt before the next prompt. A machine that is busy for a
    while then slows all of them, and flatters none.
    """
    from tacache.diffusers import applied

    drawn: list[list[DemoDrawing]] = [[] for _ in ways]
    jobs = [(prompt, n) for prompt in request.prompts for n in range(len(ways))]
    noun = "pictures" if request.fps is None else "clips"
    task = f"{ways[0].evaluations} steps: drawing {len(jobs)} {noun}"
    for prompt, n in track(jobs, task, progress):
        plan = ways[n].plan
        with nullcontext() if plan is None else applied(pipe, plan):
            drawn[n].append(_draw(pipe, prompt, _of_way(request, ways[n])))
    return drawn


def _of_way(request: DemoRequest, way: DemoWay) -> DemoRequest:
    """Return the request with as many steps as plain steps have."""
    if way.rule != PLAIN:
        return request
    return request._replace(call={**request.call, "num_inference_steps": way.evaluations})


def _draw(pipe: Any, prompt: str, request: DemoRequest) -> DemoDrawing:
    from tacache.diffusers.calls import run_arguments

    arguments = run_arguments([Sample(prompt, request.seed)], request.call)
    # on the CPU the time of this thread, since others that are busy would slow some ways
    clock = time.thread_time if pipe.device.type == "cpu" else time.perf_counter
    started = clock()
    images = pipe(**arguments, output_type="pt", return_dict=False)[0]
    pixels = images[0].float().cpu()  # waits for the device
    return DemoDrawing(pixels, clock() - started)


def _pictures(
    way: DemoWay,
    drawn: Sequence[DemoDrawing],
    full: Sequence[DemoDrawing],
    request: DemoRequest,
    out: Path,
) -> list[DemoPicture]:
    """Write the pictures of one way, and set each against its full-step picture."""
    pictures = []
    for i, (prompt, sample, reference) in enumerate(zip(request.prompts, drawn, full, strict=True)):
        name = f"{_stem(i, request)}-{way.name}"
        file = _write(sample.pixels, name, request, out / request.part)
        numbers = {} if way.rule is None else fidelity(reference.pixels, sample.pixels)
        picture = DemoPicture(
            prompt=prompt,
            evaluations=way.evaluations,
            file=_from(out, file),
            seconds=sample.seconds,
            rule=way.rule,
            **numbers,
        )
        pictures.append(picture)
    return pictures


def _saved(ways: Sequence[DemoWay], folder: Path, out: Path) -> list[str | None]:
    """Write the plans, and return each way's file, as the record names it."""
    return [
        None if way.plan is None else _from(out, way.plan.save(folder / f"{way.name}.plan.json"))
        for way in ways
    ]


def _from(out: Path, file: Path) -> str:
    return file.relative_to(out).as_posix()


def can_encode() -> bool:
    """Return whether what writes MP4 files is installed."""
    return all(importlib.util.find_spec(package) is not None for package in ENCODER)


def _side_by_side(rows: Sequence[Sequence[DemoDrawing]], request: DemoRequest, out: Path) -> None:
    """Write one clip a prompt: full steps on the left, then every plan, the largest first.

    It is a GIF, and an MP4 as well where that can be written.
    """
    for i in range(len(request.prompts)):
        clips = [row[i].pixels for row in rows]
        gap = torch.ones(*clips[0].shape[:-1], 2)
        parts = [part for clip in clips for part in (gap, clip)][1:]
        beside, name = torch.cat(parts, dim=-1), f"{_stem(i, request)}-side-by-side"
        _write(beside, name, request, out)
        if can_encode():
            larger = beside.repeat_interleave(ENLARGED, -1).repeat_interleave(ENLARGED, -2)
            _write(larger, name, request, out, ".mp4")


def _stem(i: int, request: DemoRequest) -> str:
    return file_stem(i, request.prompts[i], request.seed)


def _write(
    pixels: Tensor, name: str, request: DemoRequest, out: Path, suffix: str = ".gif"
) -> Path:
    folder = "pictures" if request.fps is None else "clips"
    return write(pixels.movedim(-3, -1).numpy(), out / folder / name, suffix, request.fps or 1)
