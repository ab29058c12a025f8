"""The fingerprint of the pipeline that a plan was made for, and whether this one agrees with it."""

import json
from typing import Any, TypeGuard

import numpy as np
from diffusers import ModularPipeline
from torch import nn

from tacache.diffusers.calls import argument_names, as_number, logger
from tacache.diffusers.guiders import enabled_guiders
from tacache.diffusers.joint import check_latents
from tacache.errors import HostError, printable
from tacache.hosts.weights_hash import fingerprint
from tacache.plan import Plan
from tacache.storage.origin import Origin
from tacache.storage.reading import parse_json
from tacache.storage.signature import SOLVER_OPTIONS

# parts of a pipeline that velocities come from
NETWORKS = ("transformer", "transformer_2", "transformer_ref", "unet", "prior", "controlnet")
GUIDANCE = ("guidance_scale", "guidance_scale_2", "true_cfg_scale")
GUIDANCE_TOLERANCE = 0.1  # of the fitted one, within which weights lose nothing to speak of


def check_host(pipe: Any, plan: Plan) -> None:
    """Refuse a plan for another architecture; warn if it is for another model, as a fine-tune."""
    check_architecture(pipe, plan)
    check_latents(pipe, plan)
    plan.origin.warn_of_model(model_name(pipe), logger)


def check_architecture(pipe: Any, plan: Plan) -> None:
    """Refuse a plan that was made for another network."""
    known, actual = plan.origin.denoiser, denoiser_name(pipe)
    if known is not None and known != actual:
        raise HostError(f"the plan was made for {known}, this pipeline runs {actual}: calibrate it")


def warn_of_guidance(plan: Plan, call: dict[str, Any]) -> None:
    """Warn if fitted weights are used at another guidance than they were fitted at."""
    known = plan.origin.call or {}
    for name in GUIDANCE:
        fitted, now = as_number(known.get(name)), as_number(call.get(name))
        if plan.rule != "fitted" or fitted is None or now is None:
            continue
        if abs(now - fitted) > GUIDANCE_TOLERANCE * max(abs(fitted), 1.0):
            logger.warning(
                "the plan was fitted at %s=%g, this run has %g, %g away: expect a lower fidelity "
                "than its certificate says", name, fitted, now, abs(now - fitted),
            )  # fmt: skip


def warn_of_solver(plan: Plan, scheduler: Any) -> None:
    """Warn if fitted weights are used with another solver, or with other options of it."""
    known, actual = plan.origin.scheduler, type(scheduler).__name__
    if plan.rule != "fitted" or plan.origin.kind != "diffusers" or known is None:
        return
    before = plan.origin.scheduler_config or {}
    changed = [
        f"{name}={scheduler.config[name]!r} for {before[name]!r}"
        for name in SOLVER_OPTIONS
        if name in before and name in scheduler.config and scheduler.config[name] != before[name]
    ]
    different = [actual] if known != actual else changed
    if different:
        logger.warning(
            "the plan was fitted to the steps of %s, this pipeline has %s: expect another fidelity "
            "than its certificate says, or fit it with this scheduler",
            printable(known), ", ".join(different),
        )  # fmt: skip


def check_latent_shape(plan: Plan, shape: tuple[int, ...]) -> None:
    """Refuse latents of another kind; warn of another size of the same kind."""
    known = plan.origin.latent_shape
    if known is None or known == shape:
        return
    if len(known) != len(shape) or _channels(known) != _channels(shape):
        raise HostError(
            f"the plan is for latents of shape {known}, this run has {shape}: calibrate this model"
        )
    logger.warning(
        "the plan was made for latents of shape %s, this run has %s: calibrate at this size for "
        "the best fidelity", known, shape,
    )  # fmt: skip


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _channels(shape: tuple[int, ...]) -> int | None:
    """Return the size that belongs to the model: last where tokens are packed, else first."""
    if not shape:
        return None
    return shape[-1] if len(shape) == 2 else shape[0]


def denoiser(pipe: Any) -> Any:
    """Return the network that gives the velocity, before any compilation; None without one."""
    parts = (
        getattr(pipe, name, None) for name in ("transformer", "transformer_ref", "unet", "prior")
    )
    network = next((part for part in parts if part is not None), None)
    return getattr(network, "_orig_mod", network)


def denoiser_name(pipe: Any) -> str | None:
    """Return the class of the network that gives the velocity."""
    network = denoiser(pipe)
    return None if network is None else type(network).__name__


def model_name(pipe: Any) -> str | None:
    """Return the model's id or folder, as `from_pretrained` was given it."""
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
    """Return the fingerprint of a calibration run with the pipeline's own scheduler."""
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
    """Return what a running call is, from all of its arguments; the plan store is asked with it.

    `scheduler` is the pipeline's own, without a plan.
    """
    asked = {name: value for name, value in arguments.items() if isinstance(value, dict)}
    return describe(
        pipe,
        scheduler,
        asked | settings(pipe, arguments),
        latent_shape=latent_shape,
        dtype=dtype,
        negative=has_negative(arguments),
    )


def has_negative(arguments: dict[str, Any]) -> bool:
    """Return whether a call has a negative prompt, as text or encoded."""
    names = ("negative_prompt", "negative_prompt_embeds")
    return any(arguments.get(name) is not None for name in names)


def weights_of(pipe: Any) -> str | None:
    """Return a fingerprint of the weights that velocities come from, with adapters and guiders.

    None where they cannot be read, as with sequential offload.
    """
    parts = {name: getattr(pipe, name, None) for name in NETWORKS}
    networks = {
        name: getattr(part, "_orig_mod", part)
        for name, part in parts.items()
        if isinstance(part, nn.Module)
    }
    guiders = [
        [type(guider).__name__, jsonable(dict(getattr(guider, "config", {})))]
        for guider in enabled_guiders(pipe)
    ]
    return fingerprint(networks, guiders)


def settings(pipe: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Return what a call was really made with, defaults filled in: guidance, size, steps.

    What the blocks of a modular pipeline work out on the way is no argument of its call.
    """
    known = argument_names(pipe) if isinstance(pipe, ModularPipeline) else None
    plain = {n: _plain_number(value) for n, value in call.items() if known is None or n in known}
    return {n: value for n, value in plain.items() if value is not None and n not in _NO_SETTINGS}


def _plain_number(value: Any) -> bool | int | float | None:
    """Return a number of Python, also where numpy has made it; None for anything else."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, bool | int | float) else None


# arguments that say what comes out, not how the run goes
_NO_SETTINGS = {"return_dict", "num_images_per_prompt", "num_videos_per_prompt"}


def jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a file can hold and give back, without private names."""
    kept = {}
    for name, value in values.items():
        if name.startswith("_"):
            continue
        try:
            kept[name] = parse_json(json.dumps(value))
        except (TypeError, ValueError):
            continue  # pictures, tensors, callbacks and boundless numbers are not for a file
    return kept
