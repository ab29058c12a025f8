"""Putting a plan into a pipeline, taking it out again, and knowing whom it was made for."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tacache.diffusers.flow import check_flow_scheduler
from tacache.diffusers.schedulers import FollowsPlan, parent_class, plan_scheduler
from tacache.errors import HostError
from tacache.plan import Plan
from tacache.profile import Host

logger = logging.getLogger("tacache.diffusers")

REFUSED_PIPELINES = {
    "VisualClozePipeline": "its inner pipelines hold the scheduler",
    "SanaSprintPipeline": "it is a consistency sampler: every step draws new noise",
}


def apply(pipe: Any, plan: Plan, *, strength: float | None = None) -> None:
    """Make `pipe` follow `plan`: its scheduler becomes one that carries the plan.

    Nothing else of the pipeline changes; call it as before. `strength` is for image-to-image and
    its like: the plan starts at that noise level, and the pipeline is called with strength=1.0.
    A plan that is already applied is replaced.
    """
    if strength is not None and not 0 < strength <= 1:
        raise HostError(f"strength is a number above 0 and up to 1, not {strength}")
    plain = plain_scheduler(pipe)
    check_host(pipe, plan)
    carrier: Any = plan_scheduler(plain.__class__)
    scheduler = carrier.from_config(
        plain.config, plan=json.loads(plan.to_json()), strength=strength
    )
    if hasattr(plain, "_shift"):  # set_shift changes it without the configuration
        scheduler._shift = plain._shift
    scheduler._plain = plain
    pipe.scheduler = scheduler


def remove(pipe: Any) -> None:
    """Give the pipeline back the very scheduler object it had before `apply`."""
    if isinstance(pipe.scheduler, FollowsPlan):
        pipe.scheduler = plain_scheduler(pipe)


@contextmanager
def applied(pipe: Any, plan: Plan, *, strength: float | None = None) -> Iterator[Any]:
    """`apply` for the length of a `with` block; what was there before comes back, come what may."""
    before = pipe.scheduler
    apply(pipe, plan, strength=strength)
    try:
        yield pipe
    finally:
        pipe.scheduler = before


def plain_scheduler(pipe: Any) -> Any:
    """The pipeline's own scheduler, without a plan; an error where it cannot carry one."""
    name = type(pipe).__name__
    if name in REFUSED_PIPELINES:
        raise HostError(f"{name} cannot be accelerated: {REFUSED_PIPELINES[name]}")
    if "DiffusionForcing" in name:
        raise HostError(f"{name} cannot be accelerated: each frame has a timestep of its own")
    scheduler = getattr(pipe, "scheduler", None)
    if scheduler is None:
        raise HostError(f"{name} has no scheduler, so a plan has nowhere to go")
    if isinstance(scheduler, FollowsPlan):
        original = getattr(scheduler, "_plain", None)
        if original is not None:
            return original
        config = {k: v for k, v in scheduler.config.items() if k not in ("plan", "strength")}
        plain: Any = parent_class(type(scheduler))
        return plain.from_config(config)
    check_flow_scheduler(scheduler)
    return scheduler


def check_host(pipe: Any, plan: Plan) -> None:
    """Another architecture is an error; another model of the same one, a fine-tune, a warning."""
    known, found = plan.host, denoiser_name(pipe)
    if known.denoiser is not None and known.denoiser != found:
        raise HostError(
            f"the plan was made for {known.denoiser}, this pipeline runs {found}: calibrate it"
        )
    model = model_name(pipe)
    if known.model is not None and model is not None and known.model != model:
        logger.warning(
            "the plan was made for %s, this is %s: fine for a fine-tune, else calibrate it",
            known.model, model,
        )  # fmt: skip


def denoiser_name(pipe: Any) -> str | None:
    """The class of the network that gives the velocity."""
    for component in ("transformer", "unet", "prior"):
        network = getattr(pipe, component, None)
        if network is not None:
            return type(getattr(network, "_orig_mod", network)).__name__
    return None


def model_name(pipe: Any) -> str | None:
    """The model's id or folder, as `from_pretrained` was given it."""
    name = getattr(pipe, "config", {}).get("_name_or_path")
    return str(name) if name else None


def describe(
    pipe: Any, call: dict[str, Any], latent_shape: tuple[int, ...], dtype: str, prompts: str | None
) -> Host:
    """The fingerprint of a calibration run."""
    scheduler = plain_scheduler(pipe)
    return Host(
        kind="diffusers",
        pipeline=type(pipe).__name__,
        model=model_name(pipe),
        denoiser=denoiser_name(pipe),
        scheduler=type(scheduler).__name__,
        scheduler_config=_jsonable(dict(scheduler.config)),
        latent_shape=latent_shape,
        dtype=dtype,
        call=_jsonable(call),
        prompts_sha256=prompts,
    )


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """The plain values among `values`: numbers, strings and lists of them, no private names."""
    kept = {}
    for name, value in values.items():
        if name.startswith("_"):
            continue
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue  # pictures, tensors and callbacks are not for a file
    return kept
