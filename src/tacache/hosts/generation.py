"""Pictures and clips from prompts, with a plan, without one, or both side by side."""

import re
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tacache.fidelity import capped, psnr
from tacache.hosts.base import Call, Host, Pixels
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.storage.atomic import writing
from tacache.storage.files import Frozen


class Output(Frozen):
    """One prompt and seed: its file, and how it compares to full steps where that was asked."""

    prompt: str
    seed: int
    file: str
    seconds: float
    evaluations: int | None = None
    full_file: str | None = None
    pair_file: str | None = None  # the full picture on the left, this one on the right
    full_seconds: float | None = None
    psnr: float | None = None


class Request(NamedTuple):
    """What to generate with: the plan (None for what the host carries) and its arguments."""

    plan: Plan | None
    call: Call
    compare: bool = False
    clip_suffix: str = ".mp4"
    fps: int = 16


def generate(host: Host, sample: Sample, request: Request, stem: Path) -> Output:
    """Make one picture or clip, write it to `stem` with its suffix, and compare if asked.

    Without a plan the host runs as it was loaded: one that carries a plan follows it.
    """
    with host.follow(request.plan, request.call) as call:
        pixels, seconds = _timed(host, sample, call)
        followed = host.run_plan
    output = Output(
        prompt=sample.text,
        seed=sample.seed,
        file=str(write(pixels, stem, request.clip_suffix, request.fps)),
        seconds=seconds,
        evaluations=None if followed is None else followed.evaluations,
    )
    if not request.compare:
        return output
    with host.full():
        full, full_seconds = _timed(host, sample, request.call)
    pair = np.concatenate([full, pixels], axis=-2)
    compared = {
        **{
            f"{name}_file": str(
                write(
                    shown, stem.with_name(f"{stem.name}-{name}"), request.clip_suffix, request.fps
                )
            )
            for name, shown in (("full", full), ("pair", pair))
        },
        "full_seconds": full_seconds,
        "psnr": capped(
            float(psnr(*(torch.from_numpy(picture)[None] for picture in (full, pixels))))
        ),
    }
    return output.model_copy(update=compared)


def warm_up(host: Host, prompt: str, call: Call) -> None:
    """Run two steps, so that no first-time cost falls into a comparison of times."""
    host.draw(Sample(prompt, 0), host.with_steps(call, 2))


def file_stem(index: int, prompt: str | None, seed: int) -> str:
    """Return a name that sorts by prompt and can be read: 0003-a-red-apple-s7."""
    words = re.sub(r"[^a-z0-9]+", "-", (prompt or "").lower()).strip("-")[:48].rstrip("-")
    return f"{index:04d}-{words or 'prompt'}-s{seed}"


def write(pixels: Pixels, stem: Path, clip_suffix: str = ".mp4", fps: int = 16) -> Path:
    """Write a picture as PNG, a clip with the asked suffix; the file is complete or not there."""
    from PIL import Image

    frames = [
        Image.fromarray((frame.clip(0, 1) * 255).round().astype(np.uint8))
        for frame in (pixels if pixels.ndim == 4 else pixels[None])
    ]
    suffix = clip_suffix if pixels.ndim == 4 else ".png"
    target = stem.with_name(stem.name + suffix)
    with writing(target) as draft:
        if suffix == ".png":
            frames[0].save(draft)
        elif suffix == ".webp":  # without loss
            moving = {"save_all": True, "duration": round(1000 / fps), "loop": 0}
            frames[0].save(draft, append_images=frames[1:], lossless=True, **moving)
        else:
            from diffusers.utils import export_to_gif, export_to_video

            if suffix == ".gif":
                export_to_gif(frames, str(draft), fps=fps)
            else:
                export_to_video(frames, str(draft), fps=fps, macro_block_size=None)
    return target


def _timed(host: Host, sample: Sample, call: Call) -> tuple[Pixels, float]:
    """Return a sample's picture, and how many seconds it took."""
    _synchronize()
    started = time.perf_counter()
    pixels = host.draw(sample, call)
    _synchronize()
    return pixels, time.perf_counter() - started


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
