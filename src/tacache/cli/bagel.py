"""The model `bagel` on the command line: a checkout and weights of the user's."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tacache.errors import TACacheError
from tacache.plan import Plan

NAME = "bagel"
SIDE = 1024  # pixels, unless --height or --width says otherwise

BagelPath = Annotated[
    Path | None, typer.Option(help="For the model bagel: your checkout of ByteDance-Seed/Bagel.")
]
Weights = Annotated[
    Path | None, typer.Option(help="For the model bagel: the folder of its weights.")
]


class Asked(NamedTuple):
    """What the command line says about the model itself."""

    path: Path | None
    weights: Path | None
    dtype: str | None
    device: str | None
    offload: str | None
    compiled: bool


def is_asked(model: str, path: Path | None, weights: Path | None) -> bool:
    """Whether the model is BAGEL; its options with another one are a mistake."""
    if model != NAME and (path is not None or weights is not None):
        raise TACacheError(f"--bagel-path and --weights go with the model bagel, not {model}")
    return model == NAME


def load(asked: Asked) -> Any:
    """The inferencer, after a look at the options."""
    if asked.path is None or asked.weights is None:
        missing = "--bagel-path" if asked.path is None else "--weights"
        raise TACacheError(
            f"bagel needs {missing}: give --bagel-path DIR (a checkout of ByteDance-Seed/Bagel) "
            "and --weights DIR (BAGEL-7B-MoT)"
        )
    if asked.offload is not None:
        raise TACacheError("bagel has no --offload: --device auto uses all GPUs and the CPU")
    if asked.compiled:
        raise TACacheError("bagel is not compiled: leave --compile")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise TACacheError(
            "bagel runs in one process: leave torchrun (--device auto uses all GPUs)"
        )
    from tacache.bagel.loading import load_inferencer

    return load_inferencer(asked.path, asked.weights, dtype=asked.dtype, device=asked.device)


def call_arguments(
    more: dict[str, Any],
    remembered: dict[str, Any] | None = None,
    *,
    steps: int | None,
    height: int | None,
    width: int | None,
    frames: int | None,
    guidance: float | None,
) -> dict[str, Any]:
    """The inferencer's arguments: a plan's own, then our options, then --call."""
    if frames is not None:
        raise TACacheError("bagel makes pictures: leave --frames")
    call = {name: value for name, value in (remembered or {}).items() if value is not None}
    given: dict[str, Any] = {"num_timesteps": steps, "cfg_text_scale": guidance}
    if height is not None or width is not None:
        shape = call.get("image_shapes", (SIDE, SIDE))
        given["image_shapes"] = (height or shape[0], width or shape[1])
    return {**call, **{name: v for name, v in given.items() if v is not None}, **more}


def check_batch(size: int) -> None:
    """The inferencer takes one prompt at a time."""
    if size != 1:
        raise TACacheError("bagel's inferencer makes one picture a call: leave --batch-size")


def remembered_call(plan: Plan | None) -> dict[str, Any]:
    """The arguments the plan was calibrated with; the plan's own number of steps without any."""
    if plan is None:
        return {}
    known = plan.host.call if plan.host.kind == NAME else None
    return {"num_timesteps": plan.steps + 1, **(known or {})}


def generator(
    inferencer: Any, plan: Plan | None, call: dict[str, Any], warming: str | None, out: Path
) -> Callable[[int, str, int], Any]:
    """A function that makes the picture of a prompt's number, text and seed.

    With `warming`, a prompt to warm up with, full steps are run beside the plan.
    """
    from tacache.bagel.generation import Request, file_stem, generate, warm_up
    from tacache.bagel.making import Job

    request = Request(plan, call, warming is not None)
    if warming is not None:
        warm_up(inferencer, warming, call)

    def make_one(i: int, text: str, seed: int) -> Any:
        job = Job(text, seed)
        return generate(inferencer, job, request, out / file_stem(i, job))

    return make_one
