"""A host for samplers in the manner of k-diffusion on flow models, as ComfyUI runs them.

In k-diffusion a model is `model(x, sigma, **extra_args) -> denoised`, with one sigma a sample. For
a flow sigma is t, and the velocity is (x - denoised) / sigma.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

import tacache.fitting
from tacache.calibration import measure
from tacache.errors import HostError
from tacache.grid import GRID_TOLERANCE, as_times, break_steps, same_grid
from tacache.moving import from_step, moved_to, until_step, with_breaks
from tacache.plan import Plan, make_plan
from tacache.profile import Profile, profile_times
from tacache.ssc import least_max_skip
from tacache.stepper import Stepper
from tacache.storage.origin import Origin
from tacache.velocity import Velocity, check_finite, check_velocity
from tacache.work.progress import counting

logger = logging.getLogger("tacache.kdiffusion")

Denoiser = Callable[..., Tensor]
Callback = Callable[[dict[str, Any]], None]
# keep(denoised, sigma): what of a rebuilt `denoised` is known better, as outside an inpainting mask
Keep = Callable[[Tensor, Tensor], Tensor]


class DisplayOptions(TypedDict, total=False):
    """What a sampler shows while it runs, as k-diffusion's samplers take it."""

    callback: Callback | None  # called with x, i, sigma, sigma_hat and denoised at every step
    disable: bool | None  # whether no bar is shown; None shows one on a terminal


@torch.no_grad()
def sample_tacache(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    *,
    plan: Plan,
    keep: Keep | None = None,
) -> Tensor:
    """Sample by Euler over `sigmas`, and call the model at the plan's anchors only.

    The plan is moved to `sigmas` if they are not its own; one for the flow keeps its own times
    between their ends, and is a run of so many steps. The callback is called at every step: at
    anchors with the model's `denoised`, else with that of the rebuilt velocity. A fitted plan
    crosses each interval in one step; its callbacks lie on that line, and change nothing.
    `keep(denoised, sigma)` corrects a rebuilt `denoised`, as outside an inpainting mask.

    Args:
        model: The denoiser, `model(x, sigma, **extra_args)`.
        x: The first state, with samples along dim 0.
        sigmas: The run's noise levels, from noise to data.
        extra_args: What else the model is called with.
        callback: Called with `x`, `i`, `sigma`, `sigma_hat` and `denoised` at every step.
        disable: Whether no bar is shown; None shows one on a terminal.
        plan: The plan to follow.
        keep: Corrects a rebuilt `denoised`.

    Returns:
        The last state.

    Raises:
        HostError: The plan does not go with these sigmas or latents.
        TACacheError: A value of the model or the result is not finite.

    """
    if len(sigmas) < 2:
        return x
    plan = plan_for_sigmas(plan, sigmas.tolist())
    if plan.has_own_times:
        sigmas = sigmas.new_tensor(plan.times)
    _check_latents(plan, tuple(x.shape[1:]))
    run, stepper = _Run(model, sigmas, extra_args or {}, x.new_ones([len(x)])), Stepper(plan)
    jumps = plan.weights is not None and keep is None  # what is kept may change at every step
    advance = stepper.jump if jumps else stepper.velocity
    with _progress_bar(plan.steps, disable) as tick:
        while (n := stepper.step) < plan.steps:
            seen: list[Tensor] = []  # the model's answer, where it was asked
            v = advance(x, partial(run.velocity, x, n, seen))
            if keep is not None and (not seen or plan.weights is not None):
                v = run.kept(x, v, n, keep)
            for i in range(n, stepper.step):
                if callback is not None:
                    callback(run.report(x, v, n, i, seen))
                tick(1)
            x = run.advanced(x, v, n, stepper.step)
    return check_finite(x)


@torch.no_grad()
def sample_recorded(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    *,
    record: Callable[[Profile], None],
    origin: Origin | None = None,
    breaks: Sequence[float] = (),
    **shown: Unpack[DisplayOptions],
) -> Tensor:
    """Sample by plain Euler at every step, and hand the run's profile to `record` at the end.

    Args:
        model: The denoiser.
        x: The first state.
        sigmas: The noise levels.
        extra_args: What else the model is called with.
        record: Called with the profile.
        origin: Where the profile comes from.
        breaks: The levels at which guidance changes.
        shown: `callback` and `disable`, as in `sample_tacache`.

    Returns:
        The last state.

    Raises:
        HostError: The sigmas are no falling levels.

    """
    times, callback = profile_times(_levels(sigmas.tolist())), shown.get("callback")
    run = _Run(model, sigmas, extra_args or {}, x.new_ones([len(x)]))

    def velocities(tick: Callable[[int], None]) -> Iterator[Tensor]:
        nonlocal x
        for n in range(len(times) - 1):
            seen: list[Tensor] = []
            v = check_velocity(run.velocity(x, n, seen), x)
            if callback is not None:
                callback(run.report(x, v, n, n, seen))
            yield v
            x = run.advanced(x, v, n, n + 1)
            tick(1)

    origin = _with_latents(origin or Origin(kind="k-diffusion"), x)
    with _progress_bar(len(times) - 1, shown.get("disable")) as tick:
        record(measure(velocities(tick), times, origin, breaks))
    return x


def calibrate(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    **options: Any,
) -> Profile:
    """Measure a profile on a full run from `x`; `Profile.merge` joins those of several runs.

    Args:
        model: The denoiser.
        x: The first state.
        sigmas: The noise levels.
        extra_args: What else the model is called with.
        options: `origin`, `breaks`, `callback` and `disable` of `sample_recorded`.

    Returns:
        The profile of this run.

    Raises:
        HostError: The sigmas are no falling levels.

    """
    measured: list[Profile] = []
    sample_recorded(model, x, sigmas, extra_args, record=measured.append, **options)
    return measured[0]


def fit_plan(
    model: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    *,
    evaluations: int | None = None,
    **options: Any,
) -> Plan:
    """Fit a plan to full runs from `x` (two samples or more along dim 0).

    The model always gets the whole batch, since `extra_args` may belong to its samples. Options
    are those of `tacache.fit_plan`.

    Args:
        model: The denoiser.
        x: The first states, two samples or more.
        sigmas: The noise levels.
        extra_args: What else the model is called with.
        evaluations: How often the plan evaluates the model; `like_steps` and `min_psnr` of the
            options ask for a quality in its place.
        options: Those of `tacache.fit_plan`.

    Returns:
        The fitted plan, with its certificate.

    Raises:
        PlanError: The budget or an option cannot be met.

    """
    velocity, times = velocity_of(model, extra_args), _levels(sigmas.tolist())
    plan = tacache.fitting.fit_plan(velocity, x, times, evaluations=evaluations, **options)
    return plan.model_copy(update={"origin": _with_latents(Origin(kind="k-diffusion"), x)})


def velocity_of(model: Denoiser, extra_args: dict[str, Any] | None = None) -> Velocity:
    """Return a flow model of k-diffusion as a function `velocity(x, t)`.

    Args:
        model: The denoiser of a flow model.
        extra_args: What else the model is called with.

    Returns:
        The function that `tacache.calibrate` and `tacache.fit_plan` take.

    """
    arguments = extra_args or {}

    def velocity(x: Tensor, t: float) -> Tensor:
        return (x - model(x, x.new_full([len(x)], t), **arguments)) / t

    return velocity


def plan_for_sigmas(plan: Plan, sigmas: Sequence[float]) -> Plan:
    """Return the plan for a run over these sigmas, or raise where there is none.

    Sigmas that are a stretch of the plan's own keep its anchors. On others it is planned again from
    its rates; a fitted plan takes another shift of as many steps, with a warning.
    """
    times = _levels(sigmas)
    start = _stretch(plan.full_times, times)
    if start is not None:
        later = from_step(plan, start) if start else plan
        stop = len(times) - 1
        return later if stop == later.full_steps else until_step(later, stop)
    _check_ends(plan, times)
    return moved_to(plan, times, logger, level=logging.INFO)


def plan_from_profile(
    profile: Profile, sigmas: Sequence[float], evaluations: int, breaks: Sequence[float] = ()
) -> Plan:
    """Make a plan with so many evaluations on these sigmas; if there are fewer steps, of all.

    Intervals become as long as that takes, also longer than the paper lets them be.
    """
    times = _levels(sigmas)
    if evaluations >= len(times) - 1:
        return Plan.full(times).model_copy(update={"origin": profile.origin})
    measured = profile.resample(times)
    if breaks:
        measured = measured.model_copy(update={"breaks": tuple(breaks)})
    parts = break_steps(times, measured.breaks)
    max_skip = least_max_skip(len(times) - 1, evaluations, parts)
    return make_plan(measured, evaluations=evaluations, max_skip=max_skip)


def with_parts(plan: Plan, breaks: Sequence[float]) -> Plan:
    """Return the plan with an anchor wherever the guidance of this run changes."""
    inside = tuple(b for b in breaks if break_steps(plan.times, (b,)))
    return with_breaks(plan, inside) if inside else plan


class _Run(NamedTuple):
    """One call of a sampler: the arithmetic of its steps, as k-diffusion's Euler does it."""

    model: Denoiser
    sigmas: Tensor
    extra_args: dict[str, Any]
    ones: Tensor  # one a sample

    def velocity(self, x: Tensor, n: int, seen: list[Tensor]) -> Tensor:
        """Return the model's velocity at step n; its `denoised` is added to `seen`."""
        denoised = self.model(x, self.sigmas[n] * self.ones, **self.extra_args)
        seen.append(check_velocity(denoised, x))
        return (x - denoised) / self.sigmas[n]

    def kept(self, x: Tensor, v: Tensor, n: int, keep: Keep) -> Tensor:
        """Return a rebuilt velocity, corrected by what is known of its `denoised`."""
        denoised = keep(x - self.sigmas[n] * v, self.sigmas[n] * self.ones)
        return ((x - denoised) / self.sigmas[n]).to(v.dtype)

    def advanced(self, x: Tensor, v: Tensor, n: int, end: int) -> Tensor:
        """Return the state at step `end`, from step n with one velocity."""
        return x + v * (self.sigmas[end] - self.sigmas[n])

    def report(self, x: Tensor, v: Tensor, n: int, i: int, seen: list[Tensor]) -> dict[str, Any]:
        """Return what a callback gets at step i of a stretch that begins with state x at step n."""
        here = x if i == n else self.advanced(x, v, n, i)
        denoised = seen[0] if seen and i == n else here - self.sigmas[i] * v
        sigma = self.sigmas[i]
        return {"x": here, "i": i, "sigma": sigma, "sigma_hat": sigma, "denoised": denoised}


def _levels(sigmas: Sequence[float]) -> tuple[float, ...]:
    """Return sigmas as times, checked: decreasing, none negative."""
    times = as_times(sigmas)
    if times[-1] < 0:
        raise HostError(f"sigmas must end at 0 or above, not at {times[-1]:g}")
    return times


def _stretch(times: Sequence[float], part: Sequence[float]) -> int | None:
    """Return the step of `times` at which `part` begins, if it is a stretch of them."""
    for start in range(len(times) - len(part) + 1):
        if same_grid(times[start : start + len(part)], part):
            return start
    return None


def _check_ends(plan: Plan, times: tuple[float, ...]) -> None:
    """Refuse a fitted plan on anything but another shift of its grid between the same ends."""
    ends = ((plan.times[0], times[0]), (plan.times[-1], times[-1]))
    same_ends = all(math.isclose(a, b, abs_tol=10 * GRID_TOLERANCE) for a, b in ends)
    moves = plan.rule != "fitted" or plan.has_own_times  # which moved_to looks at itself
    if not moves and (plan.steps != len(times) - 1 or not same_ends):
        raise HostError(
            f"the fitted plan has {plan.steps} steps from {plan.times[0]:g} to {plan.times[-1]:g}, "
            f"this run has {len(times) - 1} from {times[0]:g} to {times[-1]:g}: fit one for these "
            "sigmas, or take a plan made from a profile, which moves to any"
        )


def _with_latents(origin: Origin, x: Tensor) -> Origin:
    latents = {"latent_shape": tuple(x.shape[1:]), "dtype": str(x.dtype).removeprefix("torch.")}
    return origin.model_copy(update=latents)


def _check_latents(plan: Plan, shape: tuple[int, ...]) -> None:
    """Refuse another kind of latent, where the plan's host has latents like these."""
    known = plan.origin.latent_shape
    if plan.origin.kind not in ("k-diffusion", "comfyui") or known is None or known == shape:
        return
    if len(known) != len(shape) or known[:1] != shape[:1]:
        raise HostError(
            f"the plan is for latents of shape {known}, this run has {shape}: calibrate this model"
        )
    logger.info("the plan was made for latents of shape %s, this run has %s", known, shape)


def _progress_bar(
    steps: int, disable: bool | None
) -> AbstractContextManager[Callable[[int], None]]:
    """Show a bar on standard error; `disable=None` shows it on a terminal only."""
    disable = not sys.stderr.isatty() if disable is None else disable
    return counting(steps, "sampling", not disable)
