"""Pictures by BAGEL from prompts, with a plan, without one, or both side by side."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tacache.bagel.host import applied
from tacache.bagel.making import Job, maker_of, pixels_of
from tacache.errors import HostError
from tacache.fidelity import psnr
from tacache.plan import Plan
from tacache.storage import outputs
from tacache.storage.outputs import Output


class Request(NamedTuple):
    """What to generate with: the plan (None for full steps) and the inferencer's arguments."""

    plan: Plan | None
    call: dict[str, Any]
    compare: bool = False


class Made(NamedTuple):
    """A picture of PIL, and how long it took."""

    picture: Any
    seconds: float


def generate(inferencer: Any, job: Job, request: Request, stem: Path) -> Output:
    """Make one picture, write it to `stem` with its suffix, and compare if asked."""
    with nullcontext() if request.plan is None else applied(inferencer, request.plan) as following:
        made = _make(inferencer, job, request.call)
    output = Output(
        prompt=job.prompt,
        seed=job.seed,
        file=str(_write(made.picture, stem)),
        seconds=made.seconds,
        evaluations=None if following is None else following.run_plan.evaluations,
    )
    if not request.compare:
        return output
    full = _make(inferencer, job, request.call)
    pictures = [pixels_of(one.picture) for one in (full, made)]
    fidelity = psnr(*(pixels for pixels in pictures if pixels is not None))
    compared = {
        "full_file": str(_write(full.picture, stem.with_name(f"{stem.name}-full"))),
        "full_seconds": full.seconds,
        "psnr": min(float(fidelity), 999.0),  # JSON has no infinity
    }
    return output.model_copy(update=compared)


def warm_up(inferencer: Any, prompt: str, call: dict[str, Any]) -> None:
    """A run of two steps, so that no first-time cost falls into a comparison of times."""
    _make(inferencer, Job(prompt, 0), {**call, "num_timesteps": 3})


def file_stem(index: int, job: Job) -> str:
    """A name that sorts by prompt and can be read: 0003-a-red-apple-s7."""
    return outputs.file_stem(index, *job)


def _make(inferencer: Any, job: Job, call: dict[str, Any]) -> Made:
    make = maker_of(inferencer, None, call)
    _synchronize()
    started = time.perf_counter()
    output = make(job)
    _synchronize()
    seconds = time.perf_counter() - started
    if pixels_of(output) is None:
        raise HostError(f"{job}: the inferencer gave no picture")
    return Made(output["image"], seconds)


def _write(picture: Any, stem: Path) -> Path:
    """A PNG; complete or not there."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    target, draft = stem.with_name(f"{stem.name}.png"), stem.with_name(f".{stem.name}.png")
    try:
        picture.save(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
