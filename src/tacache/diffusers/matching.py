"""Fit a plan to the run it meets, whose grid and latents may be others than the plan's."""

from typing import Any, TypeGuard

from tacache.diffusers.calls import as_number, logger
from tacache.errors import HostError, printable
from tacache.grid import same_grid
from tacache.moving import can_move, from_step, moved_to, with_breaks
from tacache.plan import Plan
from tacache.storage.store import SOLVER_OPTIONS

GUIDANCE = ("guidance_scale", "guidance_scale_2", "true_cfg_scale")
GUIDANCE_TOLERANCE = 0.1  # of the fitted one, within which weights lose nothing to speak of


def fit_to_run(plan: Plan, times: tuple[float, ...], start: int = 0) -> Plan:
    """The plan for this run's grid from step `start` on, or an error if there is none."""
    grid = times[start:]
    if same_grid(plan.times, grid):
        return plan
    if plan.rule == "fitted":
        moved = moved_to(plan, times, logger)
        return from_step(moved, start) if start else moved
    if not can_move(plan) and same_grid(plan.times, times):
        return from_step(plan, start)
    return moved_to(plan, grid, logger)


def with_parts(plan: Plan, breaks: tuple[float, ...]) -> Plan:
    """The plan with an anchor where this run changes its expert or guidance."""
    if not breaks or breaks == plan.breaks:
        return plan
    changed = with_breaks(plan, breaks)
    logger.warning(
        "this run changes its expert or guidance at noise levels %s, which the plan does not know: "
        "anchors added, %d evaluations", ", ".join(f"{b:g}" for b in breaks), changed.evaluations,
    )  # fmt: skip
    return changed


def warn_of_guidance(plan: Plan, call: dict[str, Any]) -> None:
    """Warn if fitted weights are used at another guidance than they were fitted at."""
    known = plan.host.call or {}
    for name in GUIDANCE:
        values = (plan.varied or {}).get(name, (known.get(name),))
        fitted, now = [value for value in values if _is_number(value)], as_number(call.get(name))
        if plan.rule != "fitted" or not fitted or now is None:
            continue
        low, high = min(fitted), max(fitted)
        nearest = min(max(now, low), high)
        if abs(now - nearest) > GUIDANCE_TOLERANCE * max(abs(nearest), 1.0):
            at = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            logger.warning(
                "the plan was fitted at %s=%s, this run has %g, %g away: expect a lower fidelity "
                "than its certificate says", name, at, now, abs(now - nearest),
            )  # fmt: skip


def warn_of_solver(plan: Plan, scheduler: Any) -> None:
    """Warn if fitted weights are used with another solver, or with other options of it."""
    known, found = plan.host.scheduler, type(scheduler).__name__
    if plan.rule != "fitted" or plan.host.kind != "diffusers" or known is None:
        return
    before = plan.host.scheduler_config or {}
    changed = [
        f"{name}={scheduler.config[name]!r} for {before[name]!r}"
        for name in SOLVER_OPTIONS
        if name in before and name in scheduler.config and scheduler.config[name] != before[name]
    ]
    different = [found] if known != found else changed
    if different:
        logger.warning(
            "the plan was fitted to the steps of %s, this pipeline has %s: expect another fidelity "
            "than its certificate says, or fit it with this scheduler",
            printable(known), ", ".join(different),
        )  # fmt: skip


def check_latent_shape(plan: Plan, shape: tuple[int, ...]) -> None:
    """Refuse latents of another kind; warn of another size of the same kind."""
    known = plan.host.latent_shape
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
    """The size that belongs to the model: last where tokens are packed, else first."""
    if not shape:
        return None
    return shape[-1] if len(shape) == 2 else shape[0]
