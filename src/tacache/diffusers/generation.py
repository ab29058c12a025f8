"""Pictures and clips from prompts, with a plan, without one, or both side by side."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tacache.diffusers.host import applied, without_plan
from tacache.diffusers.runs import Run, check_call_names, run_arguments
from tacache.fidelity import psnr
from tacache.plan import Plan
from tacache.storage.outputs import Output, file_stem

__all__ = ["Made", "Output", "Request", "file_stem", "generate", "warm_up", "write"]


class Made(NamedTuple):
    """What one call gave: values in [0, 1], (height, width, channels), a clip with frames first."""

    pixels: NDArray[np.float32]
    seconds: float


class Request(NamedTuple):
    """What to generate with: the plan (None for full steps) and the pipeline's arguments."""

    plan: Plan | None
    call: dict[str, Any]
    compare: bool = False
    clip_suffix: str = ".mp4"
    fps: int = 16


def generate(pipe: Any, prompt: str, seed: int, request: Request, stem: Path) -> Output:
    """Make one picture or clip, write it to `stem` with its suffix, and compare if asked.

    Without a plan the pipeline runs as it was loaded: one that was saved with a plan follows it.
    """
    check_call_names(pipe, request.call)
    with nullcontext() if request.plan is None else applied(pipe, request.plan):
        made = _make(pipe, prompt, seed, request.call)
        followed = getattr(pipe.scheduler, "run_plan", None)
    output = Output(
        prompt=prompt,
        seed=seed,
        file=str(write(made.pixels, stem, request)),
        seconds=made.seconds,
        evaluations=None if followed is None else followed.evaluations,
    )
    if not request.compare:
        return output
    with without_plan(pipe):
        full = _make(pipe, prompt, seed, request.call)
    full_file = write(full.pixels, stem.with_name(f"{stem.name}-full"), request)
    fidelity = psnr(*(torch.from_numpy(one.pixels)[None] for one in (full, made)))
    compared = {
        "full_file": str(full_file),
        "full_seconds": full.seconds,
        "psnr": min(float(fidelity), 999.0),  # JSON has no infinity
    }
    return output.model_copy(update=compared)


def write(pixels: NDArray[np.float32], stem: Path, request: Request) -> Path:
    """A PNG, or a clip with the asked suffix; complete or not there."""
    from diffusers.utils import export_to_gif, export_to_video
    from PIL import Image

    stem.parent.mkdir(parents=True, exist_ok=True)
    frames = [
        Image.fromarray((frame.clip(0, 1) * 255).round().astype(np.uint8))
        for frame in (pixels if pixels.ndim == 4 else pixels[None])
    ]
    suffix = request.clip_suffix if pixels.ndim == 4 else ".png"
    target, draft = stem.with_name(stem.name + suffix), stem.with_name(f".{stem.name}{suffix}")
    try:
        if suffix == ".png":
            frames[0].save(draft)
        elif suffix == ".gif":
            export_to_gif(frames, str(draft), fps=request.fps)
        elif suffix == ".webp":  # without loss
            moving = {"save_all": True, "duration": round(1000 / request.fps), "loop": 0}
            frames[0].save(draft, append_images=frames[1:], lossless=True, **moving)
        else:
            export_to_video(frames, str(draft), fps=request.fps, macro_block_size=None)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def warm_up(pipe: Any, prompt: str, call: dict[str, Any]) -> None:
    """A run of two steps, so that no first-time cost falls into a comparison of times."""
    _make(pipe, prompt, 0, {**call, "num_inference_steps": 2})


def _make(pipe: Any, prompt: str, seed: int, call: dict[str, Any]) -> Made:
    arguments = run_arguments(Run((prompt,), (seed,)), call)
    _synchronize()
    started = time.perf_counter()
    result = pipe(**arguments, output_type="np", return_dict=False)[0]
    _synchronize()
    seconds = time.perf_counter() - started
    return Made(np.asarray(result[0], dtype=np.float32), seconds)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
