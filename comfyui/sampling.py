"""The sampler that ComfyUI runs: what `tacache.kdiffusion` needs to know of a running sampling."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import comfy.model_sampling
from torch import Tensor, nn

from tacache import HostError, Plan, Profile, instant_plan
from tacache.grid import break_steps
from tacache.host.weights import fingerprint
from tacache.kdiffusion import (
    Keep,
    plan_for_sigmas,
    plan_from_profile,
    sample_recorded,
    sample_tacache,
    with_parts,
)
from tacache.profile import Origin
from tacache.storage.store import PlanStore

logger = logging.getLogger("tacache.comfyui")

PLAIN_GUIDERS = ("CFGGuider", "Guider_Basic")  # that guide by one prompt, one negative and cfg
OWN_OPTIONS = ("transformer_options",)  # that ComfyUI gives every sampling
PATCHES = ("patches", "patches_replace", "wrappers")  # among them, what other nodes put there


def follow_plan(
    model: Any,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    disable: bool | None = None,
    *,
    source: Plan | Profile | None = None,
    evaluations: int = 0,
) -> Tensor:
    """A sampler function: by a plan, or by the one a profile gives for so many evaluations.

    Without either it is a stored plan that was fitted for just such a run, or an instant one.
    """
    if len(sigmas) < 2:
        return x
    guider, arguments = model.inner_model, extra_args or {}
    check_flow(guider.inner_model.model_sampling)
    levels = sigmas.tolist()
    breaks = changes(guider, levels)
    if source is None:
        source = stored_or_instant(guider, x, levels, breaks, evaluations, arguments)
    check_model(source.host, guider.inner_model)
    if isinstance(source, Plan):
        plan = with_parts(plan_for_sigmas(source, levels), breaks)
    else:
        plan = plan_from_profile(source, levels, evaluations, breaks)
    keep = inpainting(model, arguments)
    return sample_tacache(model, x, sigmas, arguments, callback, disable, plan=plan, keep=keep)


def record_profile(
    model: Any,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    disable: bool | None = None,
    *,
    record: Callable[[Profile], None],
    cfg: float,
) -> Tensor:
    """A sampler function: every step evaluated by Euler, and measured."""
    guider = model.inner_model
    check_flow(guider.inner_model.model_sampling)
    host, breaks = describe(guider, cfg), changes(guider, sigmas.tolist())
    return sample_recorded(
        model, x, sigmas, extra_args, callback, disable, record=record, host=host, breaks=breaks
    )


def check_flow(model_sampling: Any) -> None:
    """Refuse what is no rectified flow: there sigma is no time, and no velocity can be rebuilt."""
    if not isinstance(model_sampling, comfy.model_sampling.CONST):
        parents = [parent.__name__ for parent in type(model_sampling).__mro__[1:-1]]
        raise HostError(
            "TACache needs a rectified-flow model (FLUX, SD3, Wan, Qwen-Image, HunyuanVideo, "
            f"...): this one samples by {', '.join(parents) or type(model_sampling).__name__}"
        )


def describe(guider: Any, cfg: float) -> Origin:
    """Where a profile or plan of this sampling comes from."""
    inner = guider.inner_model
    positive = (getattr(guider, "conds", None) or {}).get("positive", ())
    guidance = sorted({float(one["guidance"]) for one in positive if "guidance" in one})
    call = {"cfg": float(cfg), **({"guidance": guidance} if guidance else {})}
    return Origin(kind="comfyui", denoiser=_denoiser(inner), call=call, weights=_weights(inner))


def stored_or_instant(
    guider: Any,
    x: Tensor,
    sigmas: list[float],
    breaks: tuple[float, ...],
    evaluations: int,
    arguments: dict[str, Any],
) -> Plan:
    """The plan of the store that was fitted for just such a run, or one that nothing is fitted to.

    A mask, another guider or a node that changes what the model predicts is not known to a plan.
    """
    parts = 1 + len(break_steps(sigmas, breaks))
    budget = max(evaluations, parts)
    if budget >= len(sigmas) - 1:
        return Plan.full(sigmas)
    if _is_plain(guider, arguments):
        latents = {"latent_shape": tuple(x.shape[1:]), "dtype": str(x.dtype).removeprefix("torch.")}
        origin = describe(guider, guider.cfg).model_copy(update=latents)
        found = PlanStore().find(origin, sigmas, budget, breaks)
        if found is not None:
            logger.info("the stored plan %s is followed", found.name)
            return found.plan
    logger.info(
        "an instant plan is followed, %d of %d steps: TACache Fit makes a better one",
        budget, len(sigmas) - 1,
    )  # fmt: skip
    return instant_plan(sigmas, budget, breaks=breaks)


def _is_plain(guider: Any, arguments: dict[str, Any]) -> bool:
    """Whether nothing takes part in this sampling that the sampler does not see."""
    options = arguments.get("model_options") or {}
    others = [name for name, value in options.items() if value and name not in OWN_OPTIONS]
    inside = options.get("transformer_options") or {}
    patched = any(inside.get(name) for name in PATCHES)
    masked = arguments.get("denoise_mask") is not None
    return type(guider).__name__ in PLAIN_GUIDERS and not (others or patched or masked)


def _weights(inner: Any) -> str | None:
    """The fingerprint of the network; None where adapters are added only while a layer runs."""
    network = inner.diffusion_model
    if not isinstance(network, nn.Module):
        return None
    pending = ("weight_function", "bias_function")  # ComfyUI keeps them there when memory is short
    if any(getattr(module, name, None) for module in network.modules() for name in pending):
        return None
    return fingerprint({"diffusion_model": network})


def check_model(host: Origin, inner: Any) -> None:
    """Refuse the numbers of another model, where both are ComfyUI's; fine-tunes are the same."""
    now = _denoiser(inner)
    if host.kind == "comfyui" and host.denoiser not in (None, now):
        raise HostError(f"this was measured on {host.denoiser}, the model is {now}: calibrate it")


def changes(guider: Any, sigmas: list[float]) -> tuple[float, ...]:
    """The levels at which conditioning or a ControlNet starts or ends within this run."""
    found = {level for conds in _conditionings(guider) for level in _levels(conds)}
    return tuple(sorted((b for b in found if break_steps(sigmas, (b,))), reverse=True))


def inpainting(model: Any, extra_args: dict[str, Any]) -> Keep | None:
    """Outside the mask the result is known: rebuilt steps keep it, as evaluated ones do."""
    mask = extra_args.get("denoise_mask")
    if mask is None:
        return None
    options = extra_args.get("model_options", {})
    moving = options.get("denoise_mask_function")
    about = {"model": model.inner_model, "sigmas": model.sigmas}

    def keep(denoised: Tensor, sigma: Tensor) -> Tensor:
        now = mask if moving is None else moving(sigma, mask, extra_options=about)
        kept: Tensor = denoised * now + model.latent_image * (1.0 - now)
        return kept

    return keep


def _denoiser(inner: Any) -> str:
    return type(inner.diffusion_model).__name__


def _conditionings(guider: Any) -> Iterator[dict[str, Any]]:
    for group in (getattr(guider, "conds", None) or {}).values():
        yield from group


def _levels(cond: dict[str, Any]) -> Iterable[float]:
    """A part of the prompt is used from its start, the level included, to its end, likewise."""
    ranges = [(cond.get("timestep_start"), cond.get("timestep_end"))]
    control = cond.get("control")
    while control is not None:
        ranges.append(control.timestep_range or (None, None))
        control = control.previous_controlnet
    for start, end in ranges:
        if start is not None:
            yield math.nextafter(float(start), math.inf)
        if end is not None:
            yield float(end)
