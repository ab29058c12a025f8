"""The checks of a call before its run follows a plan.

A plan changes what a pipeline counts in turns of its loop. Each check stops the run where the
result would be wrong, and warns where it would only differ by more than the plan's steps.
"""

from typing import Any, NamedTuple

from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback

from tacache.diffusers.calls import RunningCall, as_number, logger
from tacache.diffusers.fingerprint import NETWORKS, denoiser
from tacache.diffusers.guiders import check_guider, enabled_guiders, has_momentum
from tacache.errors import HostError
from tacache.plan import Plan


class ApplyOptions(NamedTuple):
    """What the user has told `apply` about the runs to come; None where nothing was options."""

    strength: float | None = None
    breaks: tuple[float, ...] | None = None

    @property
    def is_midway(self) -> bool:
        """Return whether runs shall start below the noise they begin with."""
        return self.strength is not None and self.strength < 1

    @property
    def answer_all(self) -> bool:
        """Return whether a call that cannot be read leaves no question open."""
        return self.strength is not None and self.breaks is not None


def check_call(call: RunningCall, plan: Plan, options: ApplyOptions = ApplyOptions()) -> None:  # noqa: B008
    """Stop where the run would give a wrong result under this plan."""
    if plan.is_full:  # nothing is skipped, but two starts may contradict
        if options.is_midway:
            _check_strength(call, plan, options)
        return
    for check in CHECKS:
        check(call, plan, options)


def check_caches(pipeline: Any) -> None:
    """Refuse a network with a cache of diffusers: what it gives depends on what ran before."""
    for name in NETWORKS:
        network = getattr(pipeline, name, None)
        if getattr(getattr(network, "_orig_mod", network), "is_cache_enabled", False):
            raise HostError(
                f"the pipeline's {name} has a cache of diffusers enabled, so its velocity depends "
                f"on what ran before: pipe.{name}.disable_cache() first"
            )


def warn_unread(call: RunningCall, options: ApplyOptions) -> bool:
    """Warn of what could not be checked in a call; return whether a warning was needed."""
    if call.is_read or options.answer_all:
        return False
    logger.warning(
        "the call that runs this plan cannot be read (no __call__ of a pipeline that has this "
        "scheduler is running), so it was not checked whether the run starts midway, changes its "
        "expert or guidance on the way, or counts anything in its loop iterations, which are "
        "fewer now: say what you know with apply(pipe, plan, strength=1.0, breaks=()), where "
        "strength is the noise level the run starts at and breaks are those where it changes",
    )
    return True


def _check_strength(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse a call that starts in mid-run: `apply` sets the start instead."""
    argument = "denoise_strength" if "denoise_strength" in call.arguments else "strength"
    asked = as_number(call.arguments.get(argument))
    if asked is None or asked >= 1:
        return
    remedy = (
        f"apply(pipe, plan, strength={asked:g}) starts the plan at that noise level; then call "
        "the pipeline with strength=1.0"
        if argument == "strength"
        else "this pipeline cannot be started midway under a plan"
    )
    raise HostError(
        f"{call.name} was called with {argument}={asked:g}, counted in its own steps: {remedy}"
    )


def _check_experts(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse a second expert in a foreign loop unless the user gave its level."""
    known = getattr(call.pipeline, "config", {}).get("boundary_ratio") is not None
    if call.is_of_diffusers or known or options.breaks is not None:
        return
    first = denoiser(call.pipeline)
    for name, part in getattr(call.pipeline, "__dict__", {}).items():
        if first is not None and part is not first and type(part) is type(first):
            raise HostError(
                f"{call.name} has a second expert ({name}) and no boundary_ratio says where it "
                "takes over: give the noise level with apply(pipe, plan, breaks=[...]), or "
                "breaks=() where only one of them runs"
            )


def _check_guiders(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse guiders that act differently at some iterations of the loop."""
    for guider in enabled_guiders(call.pipeline):
        totals = (plan.steps, plan.evaluations)
        check_guider(call.name, guider, totals, allowed=options.breaks is not None)


def _check_schedule(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse a list of guidance scales, which has one scale for each iteration."""
    schedule = call.arguments.get("guidance_schedule")
    if schedule is not None and len({float(scale) for scale in schedule}) > 1:
        raise HostError(
            f"{call.name} counts its guidance_schedule in loop iterations, which are fewer under a "
            "plan: call it with guidance_schedule=None and one guidance_scale, or with a schedule "
            "of equal numbers"
        )


def _check_counted(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse arguments that count iterations, which mean others where there are fewer."""
    for argument, neutral in _COUNTED.items():
        value = call.arguments.get(argument, neutral)
        values = value if isinstance(value, list | tuple) else [value]
        if any(count is not None and count != neutral for count in values):
            raise HostError(
                f"{call.name} counts {argument}={value!r} in loop iterations, which are fewer and "
                f"of unequal length under a plan: leave it at {neutral!r}, or run without a plan"
            )


def _check_callbacks(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Refuse diffusers' callbacks that end guidance or an adapter after some iterations."""
    callbacks = [value for value in call.arguments.values() if isinstance(value, _CALLBACKS)]
    while callbacks:
        callback = callbacks.pop()
        if isinstance(callback, MultiPipelineCallbacks):
            callbacks += callback.callbacks
            continue
        ratio, index = (callback.config.get(f"cutoff_step_{name}") for name in ("ratio", "index"))
        if index is not None or (ratio is not None and ratio < 1):
            cutoff = f"cutoff_step_ratio={ratio}" if index is None else f"cutoff_step_index={index}"
            raise HostError(
                f"the {type(callback).__name__} counts its {cutoff} in loop iterations, which are "
                "fewer under a plan: call the pipeline without it, or run without a plan"
            )


def _warn_of_noise(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    scale = call.arguments.get("image_cond_noise_scale")
    if scale:
        logger.warning(
            "%s draws noise in every loop iteration (image_cond_noise_scale=%g): with fewer of "
            "them the result differs from the full run's", call.name, scale,
        )  # fmt: skip


def _warn_of_momentum(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    if has_momentum(call.pipeline):
        logger.warning(
            "the guidance of %s has a momentum, which gathers over loop iterations: with fewer of "
            "them the result differs from the full run's by more than the plan's steps", call.name,
        )  # fmt: skip


def _warn_of_flow_map(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Warn of models that are told where a step ends, which is the next anchor."""
    config = getattr(denoiser(call.pipeline), "config", None)
    for option in _FLOW_MAPS:
        if getattr(config, option, False):
            logger.warning(
                "the model of %s is told where each step ends (%s), and that is the next anchor "
                "under a plan: its velocities are other ones than those of the full run",
                call.name, option,
            )  # fmt: skip


def _warn_of_cache(call: RunningCall, plan: Plan, options: ApplyOptions) -> None:
    """Warn of a cache in the network: weights were fitted, and judged, without one."""
    try:
        check_caches(call.pipeline)
    except HostError as error:
        if plan.rule == "fitted":
            logger.warning("the plan and its certificate know of no cache: %s", error)


CHECKS = (
    _check_strength,
    _check_experts,
    _check_guiders,
    _check_schedule,
    _check_counted,
    _check_callbacks,
    _warn_of_noise,
    _warn_of_momentum,
    _warn_of_flow_map,
    _warn_of_cache,
)
# options of MeanFlow in HunyuanVideo 1.5, of the distilled FLUX.3, and of AnyFlow
_FLOW_MAPS = ("use_meanflow", "flow_map", "deltatime_type")
_CALLBACKS = (PipelineCallback, MultiPipelineCallbacks)
# argument -> the value that makes no difference between iterations
_COUNTED: dict[str, Any] = {
    "control_guidance_start": 0.0,
    "control_guidance_end": 1.0,
    "cfg_trunc_ratio": 1.0,
    "skip_guidance_layers": None,
    "enable_temporal_reasoning": False,
}
