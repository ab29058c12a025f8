"""The sampler that ComfyUI runs: what `tacache.kdiffusion` needs to know of a running sampling."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import comfy.model_sampling
from torch import Tensor, nn
from typing_extensions import Unpack

from tacache import HostError, Plan, Profile, instant_plan
from tacache.fitting.quality_goal import QualityGoal
from tacache.grid import break_steps
from tacache.hosts.quality_choice import (
    QualityChoice,
    full_reason,
    instant_for,
    instant_reason,
    makes_clips,
    quality_choice,
)
from tacache.hosts.weights_hash import fingerprint
from tacache.instant import default_evaluations
from tacache.kdiffusion import (
    DisplayOptions,
    Keep,
    plan_for_sigmas,
    plan_from_profile,
    sample_recorded,
    sample_tacache,
    with_parts,
)
from tacache.profile import Origin
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore

logger = logging.getLogger("tacache.comfyui")

PLAIN_GUIDERS = ("CFGGuider", "Guider_Basic")  # that guide by one prompt, one negative and cfg
# what ComfyUI itself tells the network in every sampling; anything else is from another node
OWN_OPTIONS = ("sample_sigmas", "sigmas", "cond_or_uncond", "uuids")
BESIDE = ("control", "hooks", "area", "mask", "gligen")  # of a prompt: what changes the velocity


def follow_plan(
    model: Any,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    *,
    source: Plan | Profile | None = None,
    evaluations: int = 0,
    goal: QualityGoal | None = None,
    **shown: Unpack[DisplayOptions],
) -> Tensor:
    """Sample by a plan, or by the one a profile gives for so many evaluations.

    Without either it is a stored plan that was fitted for just such a run, or an instant one. Zero
    evaluations stand for the usual number for so many steps; in their place a quality may be asked
    for.
    """
    if len(sigmas) < 2:
        return x
    guider, arguments = model.inner_model, extra_args or {}
    check_flow(guider.inner_model.model_sampling)
    levels = sigmas.tolist()
    evaluations = evaluations or default_evaluations(len(levels) - 1)
    breaks = changes(guider, levels)
    if is_joint(guider):
        check_joint(source, goal)
    if source is None:
        source = stored_or_instant(guider, x, levels, breaks, goal or evaluations, arguments)
    check_model(source.origin, guider.inner_model)
    if isinstance(source, Plan):
        plan = with_parts(plan_for_sigmas(source, levels), breaks)
    else:
        plan = plan_from_profile(source, levels, evaluations, breaks)
    keep = inpainting(model, arguments)
    return sample_tacache(model, x, sigmas, arguments, plan=plan, keep=keep, **shown)


def record_profile(
    model: Any,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    *,
    record: Callable[[Profile], None],
    cfg: float,
    **shown: Unpack[DisplayOptions],
) -> Tensor:
    """Sample by Euler with every step evaluated, and measure."""
    guider = model.inner_model
    check_flow(guider.inner_model.model_sampling)
    origin, breaks = describe(guider, cfg), changes(guider, sigmas.tolist())
    return sample_recorded(
        model, x, sigmas, extra_args, record=record, origin=origin, breaks=breaks, **shown
    )


def check_flow(model_sampling: Any) -> None:
    """Refuse what is no rectified flow: there sigma is no time, and no velocity can be rebuilt."""
    if not isinstance(model_sampling, comfy.model_sampling.CONST):
        parents = [parent.__name__ for parent in type(model_sampling).__mro__[1:-1]]
        raise HostError(
            "TACache needs a rectified-flow model (FLUX, SD3, Wan, Qwen-Image, HunyuanVideo, "
            f"...): this one samples by {', '.join(parents) or type(model_sampling).__name__}"
        )


def is_joint(guider: Any) -> bool:
    """Return whether the state holds several latents, one behind the other, as LTX-2's does."""
    shapes = (cond.get("model_conds", {}).get("latent_shapes") for cond in _conditionings(guider))
    return any(shape is not None and len(shape.cond) > 1 for shape in shapes)


def check_joint(source: Plan | Profile | None, goal: QualityGoal | None) -> None:
    """Refuse what was measured for one latent, or for all of them together, on a joint model."""
    if goal is not None or not (source is None or is_instant(source)):
        what = "quality" if goal is not None else "profile or fitted plan"
        raise HostError(
            f"this model steps pictures and sound in one run, for which no {what} is known here: "
            "take 'stored or instant' with a number of evaluations"
        )


def is_instant(source: Plan | Profile) -> bool:
    """Return whether nothing was measured for it: all numbers of a state are treated alike."""
    return isinstance(source, Plan) and source.rule in ("linear", "reuse") and not source.latents


def describe(guider: Any, cfg: float) -> Origin:
    """Return where a profile or plan of this sampling comes from."""
    inner = guider.inner_model
    positive = (getattr(guider, "conds", None) or {}).get("positive", ())
    guidance = sorted({float(cond["guidance"]) for cond in positive if "guidance" in cond})
    call = {"cfg": float(cfg), **({"guidance": guidance} if guidance else {})}
    return Origin(kind="comfyui", denoiser=_denoiser(inner), call=call, weights=_weights(inner))


def stored_or_instant(
    guider: Any,
    x: Tensor,
    sigmas: list[float],
    breaks: tuple[float, ...],
    asked: int | QualityGoal,
    arguments: dict[str, Any],
) -> Plan:
    """Return the stored plan that was fitted for just such a run, or an instant one.

    A mask, a ControlNet, another guider or a node that changes what the model predicts is not known
    to a plan. Where a quality is asked for that nothing is known to have, all steps are made.
    """
    latents = {"latent_shape": tuple(x.shape[1:]), "dtype": str(x.dtype).removeprefix("torch.")}
    origin = describe(guider, guider.cfg).model_copy(update=latents)
    run, store = RunSignature(origin, tuple(sigmas), breaks), PlanStore()
    unknown = unknown_to_plans(guider, arguments)
    hint = f"stored plans do not know {unknown}" if unknown else "TACache Fit makes a better one"
    if isinstance(asked, QualityGoal):
        stored, instant = _near(asked, run, None if unknown else store)
        told = (
            None
            if instant is None
            else instant_reason(asked, instant.evaluations, clip=makes_clips(run))
        )
    else:
        budget = max(asked, run.parts)
        if budget >= run.steps:
            return Plan.full(sigmas)
        stored = None if unknown else store.find(origin, sigmas, budget, breaks)
        instant = instant_plan(sigmas, budget, breaks=breaks)
        told = f"{budget} of {run.steps} steps"
    if stored is not None:
        logger.info("the stored plan %s is followed", stored.name)
        return stored.plan
    if instant is None:
        assert isinstance(asked, QualityGoal)
        logger.info("all %d steps are made: %s; %s", run.steps, full_reason(asked, run.steps), hint)
        return Plan.full(sigmas)
    logger.info("an instant plan is followed, %s: %s", told, hint)
    return instant


def _near(goal: QualityGoal, run: RunSignature, store: PlanStore | None) -> QualityChoice:
    """Return what has a quality; without a store, what needs no knowledge of the run."""
    if store is not None:
        return quality_choice(goal, run, store)
    instant = instant_for(goal, run)
    # Its origin is not said: what takes part in this run is not known.
    return QualityChoice(instant=instant and instant.model_copy(update={"origin": Origin()}))


def unknown_to_plans(guider: Any, arguments: dict[str, Any]) -> str | None:
    """Return what takes part in this sampling that no plan records, or None where nothing does."""
    if is_joint(guider):
        return "several latents in one run"
    if type(guider).__name__ not in PLAIN_GUIDERS:
        return f"the guider {type(guider).__name__}"
    if arguments.get("denoise_mask") is not None:
        return "a mask"
    for name in BESIDE:
        if any(cond.get(name) is not None for cond in _conditionings(guider)):
            return f"{name!r} of a prompt"
    model_options = dict(arguments.get("model_options") or {})
    network_options = model_options.pop("transformer_options", None) or {}
    for name, value in (*model_options.items(), *network_options.items()):
        if name not in OWN_OPTIONS and _is_filled(value):
            return f"the model's {name!r}"
    return None


def _is_filled(option: Any) -> bool:
    """Return whether an option holds anything: ComfyUI puts empty dictionaries into every run."""
    if isinstance(option, dict):
        return any(_is_filled(value) for value in option.values())
    if isinstance(option, list | tuple | set):
        return len(option) > 0
    return option is not None and option is not False


def _weights(inner: Any) -> str | None:
    """Return the network's fingerprint; None where adapters are added only while a layer runs."""
    network = inner.diffusion_model
    if not isinstance(network, nn.Module):
        return None
    pending = ("weight_function", "bias_function")  # ComfyUI keeps them there when memory is short
    if any(getattr(module, name, None) for module in network.modules() for name in pending):
        return None
    return fingerprint({"diffusion_model": network})


def check_model(origin: Origin, inner: Any) -> None:
    """Refuse the numbers of another model, where both are ComfyUI's; fine-tunes are the same."""
    now = _denoiser(inner)
    if origin.kind == "comfyui" and origin.denoiser not in (None, now):
        raise HostError(f"this was measured on {origin.denoiser}, the model is {now}: calibrate it")


def changes(guider: Any, sigmas: list[float]) -> tuple[float, ...]:
    """Return the levels at which conditioning or a ControlNet starts or ends within this run."""
    levels = {level for conds in _conditionings(guider) for level in _levels(conds)}
    return tuple(sorted((b for b in levels if break_steps(sigmas, (b,))), reverse=True))


def inpainting(model: Any, extra_args: dict[str, Any]) -> Keep | None:
    """Return what keeps the known result outside a mask at rebuilt steps too, if any."""
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
    """Yield the levels at which a part of the prompt, or a ControlNet, starts or ends."""
    ranges = [(cond.get("timestep_start"), cond.get("timestep_end"))]
    control = cond.get("control")
    while control is not None:
        ranges.append(control.timestep_range or (None, None))
        control = control.previous_controlnet
    for start, end in ranges:
        if start is not None:  # the level itself belongs to the part, at both of its ends
            yield math.nextafter(float(start), math.inf)
        if end is not None:
            yield float(end)
