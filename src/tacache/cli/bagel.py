"""What the command line asks of the model `bagel`: a checkout and weights of the user's."""

import os
from pathlib import Path
from typing import Any

from tacache.errors import TACacheError
from tacache.plan import Plan

NAME = "bagel"
SIDE = 1024  # pixels, unless --height or --width says otherwise


def load(asked: dict[str, Any]) -> Any:
    """Return the inferencer that --load asks for."""
    for name in ("bagel-path", "weights"):
        if name.replace("-", "_") not in asked:
            raise TACacheError(
                f"bagel needs --load {name}=DIR: give --load bagel-path=DIR (a checkout of "
                "ByteDance-Seed/Bagel) and --load weights=DIR (BAGEL-7B-MoT)"
            )
    if "offload" in asked:
        raise TACacheError("bagel has no offload: --load device=auto uses all GPUs and the CPU")
    if asked.get("compile"):
        raise TACacheError("bagel is not compiled: leave compile out")
    if asked.keys() & {"revision", "variant"}:
        raise TACacheError("bagel is loaded from folders: leave revision and variant out")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise TACacheError(
            "bagel runs in one process: leave torchrun (--load device=auto uses all GPUs)"
        )
    from tacache.bagel.loading import load_inferencer

    places = (Path(asked["bagel_path"]), Path(asked["weights"]))
    return load_inferencer(*places, dtype=asked.get("dtype"), device=asked.get("device"))


def call_arguments(
    more: dict[str, Any],
    remembered: dict[str, Any],
    *,
    steps: int | None,
    height: int | None,
    width: int | None,
    frames: int | None,
    guidance: float | None,
) -> dict[str, Any]:
    """Return the inferencer's arguments: a plan's own, then our options, then --call."""
    if frames is not None:
        raise TACacheError("bagel makes pictures: leave --frames")
    call = {name: value for name, value in remembered.items() if value is not None}
    given: dict[str, Any] = {"num_timesteps": steps, "cfg_text_scale": guidance}
    if height is not None or width is not None:
        shape = call.get("image_shapes", (SIDE, SIDE))
        given["image_shapes"] = (height or shape[0], width or shape[1])
    return {**call, **{name: v for name, v in given.items() if v is not None}, **more}


def check_batch(size: int) -> None:
    """Refuse batches, since the inferencer takes one prompt at a time."""
    if size != 1:
        raise TACacheError("bagel's inferencer makes one picture a call: leave --batch-size")


def remembered_call(plan: Plan | None) -> dict[str, Any]:
    """Return the arguments the plan was calibrated with, or else its own number of steps."""
    if plan is None:
        return {}
    known = plan.host.call if plan.host.kind == NAME else None
    return {"num_timesteps": plan.steps + 1, **(known or {})}
