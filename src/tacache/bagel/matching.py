"""Fit a plan to the BAGEL run it meets, whose grid and settings may be others."""

import logging
from typing import Any

from tacache.bagel.runs import SETTINGS, BagelRun, denoiser_name, model_name
from tacache.errors import HostError, printable
from tacache.grid import break_steps
from tacache.moving import moved_to, with_breaks
from tacache.plan import Plan

logger = logging.getLogger("tacache.bagel")

# settings that the grid already shows
SHOWN_BY_GRID = ("num_timesteps", "timestep_shift")


def check_host(model: Any, plan: Plan) -> None:
    """Refuse a plan for another kind of model; warn of other weights, as of a fine-tune."""
    origin, denoiser = plan.origin, denoiser_name(model)
    if origin.kind not in ("bagel", "function"):
        what = origin.pipeline or origin.kind
        raise HostError(f"the plan was made for {what}, this is BAGEL: calibrate it")
    if origin.denoiser is not None and origin.denoiser != denoiser:
        raise HostError(f"the plan was made for {origin.denoiser}, this model runs {denoiser}")
    origin.warn_of_model(model_name(model), logger)


def fit_to_run(plan: Plan, run: BagelRun) -> Plan:
    """Return the plan for this run, or raise; warn where it may do worse."""
    _check_size(plan, run)
    if not plan.is_full:  # where nothing is rebuilt, settings change nothing
        _warn_of_settings(plan, run)
    hint = f" (num_timesteps={len(run.times)}, timestep_shift={run.settings['timestep_shift']})"
    return _with_parts(moved_to(plan, run.times, logger, hint=hint), run)


def _with_parts(plan: Plan, run: BagelRun) -> Plan:
    """Return the plan with an anchor at each step where this run's guidance switches."""
    if plan.has_own_times:
        return with_breaks(plan, run.breaks)
    wanted = break_steps(run.times, run.breaks)
    if plan.break_steps == wanted:
        return plan
    bare = Plan.model_validate({**plan.model_dump(), "times": run.times, "breaks": ()})
    changed = with_breaks(bare, run.breaks)
    if plan.evaluations == plan.steps:
        return changed
    logger.warning(
        "this run's guidance switches at steps %s, the plan's at %s: %d evaluations",
        list(wanted), list(plan.break_steps), changed.evaluations,
    )  # fmt: skip
    return changed


def _warn_of_settings(plan: Plan, run: BagelRun) -> None:
    """Warn of guidance that differs from where rates and weights were measured."""
    known = plan.origin.call or {}
    for name in SETTINGS:
        if name in SHOWN_BY_GRID or name not in known or known[name] == run.settings[name]:
            continue
        logger.warning(
            "the plan was made at %s=%s, this run has %s: calibrate with it for the best fidelity",
            name, printable(known[name]), run.settings[name],
        )  # fmt: skip


def _check_size(plan: Plan, run: BagelRun) -> None:
    """Refuse other channels; warn of another resolution."""
    known = plan.origin.latent_shape
    if known is None:
        return
    if len(known) != 2 or known[-1] != run.channels:
        raise HostError(
            f"the plan is for latents of shape {known}, this run has {run.channels} channels a "
            "token: calibrate this model"
        )
    size = (plan.origin.call or {}).get("image_shapes")
    for length, shape in zip(run.lengths, run.shapes, strict=True):
        same = list(shape) == size if shape is not None and size else length == known[0]
        if not same:
            logger.warning(
                "the plan was made for images of %s, this run has %s: calibrate at this size for "
                "the best fidelity",
                printable(size or f"{known[0]} tokens"), shape or f"{length} tokens",
            )  # fmt: skip
            return
