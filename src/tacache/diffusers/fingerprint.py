"""The fingerprint of the pipeline that a plan was made for, and whether another one fits."""

import json
import logging
from typing import Any

import numpy as np
from torch import nn

from tacache.diffusers.guiders import enabled_guiders
from tacache.errors import HostError
from tacache.host.weights import fingerprint
from tacache.plan import Plan
from tacache.profile import Origin
from tacache.storage.reading import parse_json

logger = logging.getLogger("tacache.diffusers")

# parts of a pipeline that velocities come from
NETWORKS = ("transformer", "transformer_2", "unet", "prior", "controlnet")


def check_host(pipe: Any, plan: Plan) -> None:
    """Refuse a plan for another architecture; warn if it is for another model, as a fine-tune."""
    check_architecture(pipe, plan)
    plan.host.warn_of_model(model_name(pipe), logger)


def check_architecture(pipe: Any, plan: Plan) -> None:
    """Refuse a plan that was made for another network."""
    known, found = plan.host.denoiser, denoiser_name(pipe)
    if known is not None and known != found:
        raise HostError(f"the plan was made for {known}, this pipeline runs {found}: calibrate it")


def denoiser(pipe: Any) -> Any:
    """The network that gives the velocity, before any compilation; None where there is none."""
    found = (getattr(pipe, name, None) for name in ("transformer", "unet", "prior"))
    network = next((one for one in found if one is not None), None)
    return getattr(network, "_orig_mod", network)


def denoiser_name(pipe: Any) -> str | None:
    """The class of the network that gives the velocity."""
    network = denoiser(pipe)
    return None if network is None else type(network).__name__


def model_name(pipe: Any) -> str | None:
    """The model's id or folder, as `from_pretrained` was given it."""
    name = getattr(pipe, "config", {}).get("_name_or_path")
    return str(name) if name else None


def describe(
    pipe: Any,
    scheduler: Any,
    call: dict[str, Any],
    *,
    latent_shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
    prompts: str | None = None,
    negative: bool | None = None,
) -> Origin:
    """The fingerprint of a calibration run with the pipeline's own scheduler."""
    return Origin(
        kind="diffusers",
        pipeline=type(pipe).__name__,
        model=model_name(pipe),
        denoiser=denoiser_name(pipe),
        scheduler=type(scheduler).__name__,
        scheduler_config=jsonable(dict(scheduler.config)),
        latent_shape=latent_shape,
        dtype=dtype,
        call=jsonable(call),
        prompts_sha256=prompts,
        weights=weights_of(pipe),
        negative=negative,
    )


def running_origin(
    pipe: Any,
    scheduler: Any,
    arguments: dict[str, Any],
    *,
    latent_shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Origin:
    """What a running call is, from all of its arguments; the plan store is asked with it.

    `scheduler` is the pipeline's own, without a plan.
    """
    asked = {name: value for name, value in arguments.items() if isinstance(value, dict)}
    return describe(
        pipe,
        scheduler,
        asked | settings(arguments),
        latent_shape=latent_shape,
        dtype=dtype,
        negative=has_negative(arguments),
    )


def has_negative(arguments: dict[str, Any]) -> bool:
    """Whether a call has a negative prompt, as text or encoded."""
    names = ("negative_prompt", "negative_prompt_embeds")
    return any(arguments.get(name) is not None for name in names)


def weights_of(pipe: Any) -> str | None:
    """A fingerprint of the weights that velocities come from, with adapters and guiders.

    None where they cannot be read, as with sequential offload.
    """
    parts = {name: getattr(pipe, name, None) for name in NETWORKS}
    networks = {
        name: getattr(part, "_orig_mod", part)
        for name, part in parts.items()
        if isinstance(part, nn.Module)
    }
    guiders = [
        [type(one).__name__, jsonable(dict(getattr(one, "config", {})))]
        for one in enabled_guiders(pipe)
    ]
    return fingerprint(networks, guiders)


def settings(call: dict[str, Any]) -> dict[str, Any]:
    """What a call was really made with, defaults filled in: guidance, size, frames, steps."""
    plain = {name: _plain_number(value) for name, value in call.items()}
    return {n: value for n, value in plain.items() if value is not None and n not in _NO_SETTINGS}


def _plain_number(value: Any) -> bool | int | float | None:
    """A number of Python, also where numpy has made it; None for anything else."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, bool | int | float) else None


# arguments that say what comes out, not how the run goes
_NO_SETTINGS = {"return_dict", "num_images_per_prompt", "num_videos_per_prompt"}


def jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """The values among `values` that a file can hold and give back, without private names."""
    kept = {}
    for name, value in values.items():
        if name.startswith("_"):
            continue
        try:
            kept[name] = parse_json(json.dumps(value))
        except (TypeError, ValueError):
            continue  # pictures, tensors, callbacks and boundless numbers are not for a file
    return kept
