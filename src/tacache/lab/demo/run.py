"""The demo: calibrate a model, plan, draw pictures or clips, and compare them."""

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.fidelity import capped, frame_changes, per_frame, psnr, ssim
from tacache.host import file_stem, warm_up, write
from tacache.models import steady_threads
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.prompts import Sample
from tacache.storage.atomic import write_atomically
from tacache.storage.files import Frozen
from tacache.work.progress import track

ENCODER = ("imageio", "imageio_ffmpeg")
ENLARGED = 3  # an MP4 keeps colours at half of its size, so small clips are made larger
# What the embedded model draws: an object, other words, a count, a colour, two objects, a place.
PROMPTS = (
    "a rocket",
    "a puppy on a green background",
    "three penguins on a blue background",
    "a blue car",
    "a banana and a carrot",
    "a hamburger above a guitar",
)
# What it is calibrated on when that is asked for: none of the above.
CALIBRATION = (
    "a cat",
    "two strawberries on a blue background",
    "a purple umbrella",
    "an owl below a crescent moon",
)
# The same for the embedded model that makes clips: a way, a speed, a colour, two objects.
VIDEO_PROMPTS = (
    "a cat moves to the left",
    "a rocket rises quickly on a black background",
    "a puppy bounces up and down",
    "a green apple getting bigger slowly",
    "a pizza spins clockwise",
    "a tiger moves right and a penguin moves left",
)
VIDEO_CALIBRATION = (
    "a dog moves to the right fast",
    "a blue balloon rising on a yellow background",
    "a heart shrinks",
    "a bear and a banana cross",
)


class Picture(Frozen):
    """One prompt with one number of evaluations, and how it compares to full steps.

    Of a clip, PSNR and SSIM are means over its frames, and `change_` says the same of the
    differences of neighbouring frames: whether it moves alike.
    """

    prompt: str
    evaluations: int
    file: str
    seconds: float
    psnr: float | None = None
    ssim: float | None = None
    change_psnr: float | None = None
    change_ssim: float | None = None


class Budget(Frozen):
    """One number of evaluations: means over the prompts; full steps have no plan."""

    evaluations: int
    seconds: float
    speedup: float
    psnr: float | None = None
    ssim: float | None = None
    change_psnr: float | None = None
    change_ssim: float | None = None
    plan: str | None = None


class ModelDemo(Frozen):
    """What the demo measured on a model; files are named from the demo's folder."""

    model: str
    steps: int
    seed: int
    prompts: tuple[str, ...]
    budgets: tuple[Budget, ...]
    pictures: tuple[Picture, ...]
    profile: str
    fps: int | None = None  # of clips

    @property
    def noun(self) -> str:
        """The word for what was made."""
        return "picture" if self.fps is None else "clip"


class Comparison(NamedTuple):
    """What to compare: prompts and budgets, with the pipeline's arguments and a seed."""

    prompts: Sequence[str]
    budgets: Sequence[int]
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
    profile: Profile | None = None,
    *,
    progress: bool = False,
) -> ModelDemo:
    """Every prompt with full steps and with each budget, from the same noise; write the files.

    Without a profile, the pipeline is calibrated on a few other prompts first.
    """
    from tacache.diffusers import calibrate
    from tacache.diffusers.flow import run_times
    from tacache.diffusers.pipeline import PipelineHost

    with steady_threads(pipe):
        if profile is None:
            profile = calibrate(pipe, asked.calibration, progress=progress, **asked.call)
        warm_up(PipelineHost(pipe), asked.prompts[0], asked.call)
        full = [_draw(pipe, text, asked) for text in track(asked.prompts, "full steps", progress)]
        profile = profile.resample(run_times(pipe.scheduler))
        profile.save(out / "demo.profile.json")
        plans = [make_plan(profile, evaluations=budget) for budget in asked.budgets]
        fast = [_draw_planned(pipe, plan, asked, progress) for plan in plans]
    rows = [_pictures("full", profile.steps, full, full, asked, out)]
    for plan, drawn in zip(plans, fast, strict=True):
        name = str(plan.evaluations)
        rows.append(_pictures(name, plan.evaluations, drawn, full, asked, out))
    if asked.fps is not None:
        _side_by_side([full, *fast], asked, out)
    files = [plan.save(out / f"demo-{plan.evaluations}.plan.json").name for plan in plans]
    result = ModelDemo(
        model=profile.host.model or type(pipe).__name__,
        steps=profile.steps,
        seed=asked.seed,
        prompts=tuple(asked.prompts),
        budgets=tuple(map(_means, rows, [rows[0]] * len(rows), [None, *files])),
        pictures=tuple(picture for row in rows for picture in row),
        profile="demo.profile.json",
        fps=asked.fps,
    )
    write_atomically(out / "demo.json", result.model_dump_json(indent=2) + "\n")
    return result


def fidelity(reference: Tensor, made: Tensor) -> dict[str, float]:
    """How a picture compares to another, or a clip to another by its frames and its changes."""
    pair = (reference[None], made[None])
    if made.ndim == 3:
        return {"psnr": capped(float(psnr(*pair))), "ssim": float(ssim(*pair))}
    changes = tuple(map(frame_changes, pair))
    return {
        "psnr": capped(float(per_frame(psnr, *pair))),
        "ssim": float(per_frame(ssim, *pair)),
        "change_psnr": capped(float(per_frame(psnr, *changes))),
        "change_ssim": float(per_frame(ssim, *changes)),
    }


def _draw(pipe: Any, prompt: str, asked: Comparison) -> Drawn:
    from tacache.diffusers.runs import run_arguments

    arguments = run_arguments([Sample(prompt, asked.seed)], asked.call)
    started = time.perf_counter()
    made = pipe(**arguments, output_type="pt", return_dict=False)[0]
    pixels = made[0].float().cpu()  # waits for the device
    return Drawn(pixels, time.perf_counter() - started)


def _draw_planned(pipe: Any, plan: Plan, asked: Comparison, progress: bool) -> list[Drawn]:
    from tacache.diffusers import applied

    with applied(pipe, plan):
        prompts = track(asked.prompts, f"{plan.evaluations} evaluations", progress)
        return [_draw(pipe, prompt, asked) for prompt in prompts]


def _pictures(
    name: str,
    evaluations: int,
    drawn: Sequence[Drawn],
    full: Sequence[Drawn],
    asked: Comparison,
    out: Path,
) -> list[Picture]:
    """Write the pictures of one budget, and set each against its full-step picture."""
    made = []
    for i, (prompt, one, reference) in enumerate(zip(asked.prompts, drawn, full, strict=True)):
        file = _write(one.pixels, f"{_stem(i, asked)}-{name}", asked, out)
        numbers = {} if one is reference else fidelity(reference.pixels, one.pixels)
        picture = Picture(
            prompt=prompt,
            evaluations=evaluations,
            file=file.relative_to(out).as_posix(),
            seconds=one.seconds,
            **numbers,
        )
        made.append(picture)
    return made


def can_encode() -> bool:
    """Whether what writes MP4 files is installed."""
    return all(importlib.util.find_spec(package) is not None for package in ENCODER)


def _side_by_side(rows: Sequence[Sequence[Drawn]], asked: Comparison, out: Path) -> None:
    """One clip a prompt: full steps on the left, then every budget, the largest first.

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


def _stem(i: int, asked: Comparison) -> str:
    return file_stem(i, asked.prompts[i], asked.seed)


def _write(pixels: Tensor, name: str, asked: Comparison, out: Path, suffix: str = ".gif") -> Path:
    folder = "pictures" if asked.fps is None else "clips"
    return write(pixels.movedim(-3, -1).numpy(), out / folder / name, suffix, asked.fps or 1)


def _means(row: list[Picture], full: list[Picture], plan: str | None) -> Budget:
    seconds = sum(picture.seconds for picture in row)
    names = ("psnr", "ssim", "change_psnr", "change_ssim")
    return Budget(
        evaluations=row[0].evaluations,
        seconds=seconds / len(row),
        speedup=sum(picture.seconds for picture in full) / seconds,
        plan=plan,
        **{name: _mean([getattr(picture, name) for picture in row]) for name in names},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
