"""What the commands know of the model `bagel`, a checkout and weights of the user's."""

from pathlib import Path
from typing import Any

from tacache.cli.pipelines import whole
from tacache.errors import TACacheError
from tacache.plan import Plan

NAME = "bagel"
STEPS = "num_timesteps"
BATCHES = False  # the inferencer makes one picture a call
SIDE = 1024  # pixels, unless --height or --width says otherwise


def load(model: str, asked: dict[str, Any], bars: bool) -> Any:
    """Return the host of the inferencer that --load asks for."""
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
    from tacache.bagel.inferencer import BagelHost, only_process
    from tacache.bagel.loading import load_inferencer

    only_process()  # refuse before the weights are read
    places = (Path(asked["bagel_path"]), Path(asked["weights"]))
    how = asked.get("dtype"), asked.get("device")
    return BagelHost(load_inferencer(*places, dtype=how[0], device=how[1]))


def accelerate(inferencer: Any, wish: dict[str, Any]) -> None:
    """Make the inferencer's calls faster."""
    from tacache.bagel import accelerate as faster

    faster(inferencer, **wish)


def prompts_of(model: str, source: str) -> str:
    """Return the source itself: BAGEL has no prompts of its own."""
    return source


def call_arguments(
    model: str,
    plan: Plan | None,
    *,
    steps: int | None,
    height: int | None,
    width: int | None,
    frames: int | None,
    guidance: float | None,
) -> dict[str, Any]:
    """Return the inferencer's arguments: a plan's own, then our options."""
    if frames is not None:
        raise TACacheError("bagel makes pictures: leave --frames")
    remembered = remembered_call(plan)
    call = {name: value for name, value in remembered.items() if value is not None}
    given: dict[str, Any] = {"num_timesteps": steps, "cfg_text_scale": guidance}
    if height is not None or width is not None:
        shape = call.get("image_shapes", (SIDE, SIDE))
        if not isinstance(shape, list | tuple) or len(shape) != 2:
            raise TACacheError(f"the plan's image_shapes are a height and a width, not {shape!r}")
        given["image_shapes"] = (height or shape[0], width or shape[1])
    return {**call, **{name: v for name, v in given.items() if v is not None}}


def steps_of(call: dict[str, Any]) -> int:
    """Return the number of steps of a full run: BAGEL counts noise levels, one more."""
    return whole(call, STEPS) - 1


def remembered_call(plan: Plan | None) -> dict[str, Any]:
    """Return the arguments the plan was calibrated with, or else its own number of steps."""
    if plan is None:
        return {}
    known = plan.host.call if plan.host.kind == NAME else None
    return {"num_timesteps": plan.steps + 1, **(known or {})}
