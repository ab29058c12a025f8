"""A run under a plan: what its pipeline is shown, how it walks, and how it ended.

The parent scheduler has the full grid while it steps. The pipeline is shown the anchors only, and
simply loops fewer times. On Euler a fitted plan takes one step from an anchor to the next.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from tacache.diffusers.calls import RunningCall, logger, run_breaks, start_step
from tacache.diffusers.checks import ApplyOptions, check_call
from tacache.diffusers.fingerprint import check_architecture, check_latent_shape, warn_of_guidance
from tacache.diffusers.grids import set_levels
from tacache.diffusers.joint import plan_of_latent, without_shape
from tacache.diffusers.stepping import euler_factor, run_times
from tacache.errors import HostError
from tacache.grid import same_grid
from tacache.moving import can_move, from_step, moved_to, stretch_for_the_flow, with_breaks
from tacache.plan import Plan
from tacache.stepper import Stepper

CALLED_AGAIN = (
    "the run has made its last step, and its loop goes on: another call of this pipeline was made "
    "within it, as by a callback, and both share one scheduler. Give the inner call a pipeline of "
    "its own: type(pipe)(**pipe.components) with a copy of the scheduler"
)


class RunGrid(NamedTuple):
    """The timesteps and noise levels of a run, as a scheduler has them."""

    timesteps: Tensor
    sigmas: Tensor


class PlanRun:
    """One run of a scheduler under a plan, from its preparation to its last step.

    The scheduler is handed to each method and not kept: copies of it have runs of their own.
    """

    def __init__(
        self, scheduler: Any, plan: Plan, call: RunningCall, options: ApplyOptions, start: int = 0
    ) -> None:
        """Show the pipeline the anchors of a plan that begins at step `start` of the full grid."""
        self.stepper, self.start, self.options = Stepper(plan), start, options
        self.factor = euler_factor(scheduler)
        self.begun = 0  # the timestep that the pipeline begins at, of those it is shown
        self.is_checked = call.is_read
        self.is_told = False  # how it ended, or why it was refused
        self.is_spare = False  # prepared after the call's last run, where nothing has to follow
        self.has_noise = start == 0
        if plan.has_own_times and not same_grid(plan.times, run_times(scheduler)[start:]):
            set_levels(scheduler, plan.times)
            self.start = 0  # the levels are now those of the plan alone
        anchors = [self.start + n for n in plan.anchors]
        with torch.inference_mode(False):  # a tensor made in that mode does not count its edits
            self.full = RunGrid(scheduler.timesteps, scheduler.sigmas.clone())
            scheduler.sigmas = self.full.sigmas[[*anchors, self.start + plan.steps]]
        scheduler.timesteps = self.full.timesteps[anchors]
        scheduler.num_inference_steps = len(anchors)
        self._edits = scheduler.sigmas._version

    @classmethod
    def of_call(
        cls, scheduler: Any, plan: Plan, call: RunningCall, options: ApplyOptions
    ) -> "PlanRun":
        """Check the call that prepared this run, and fit the plan to the run's grid."""
        if call.pipeline is not None:
            check_architecture(call.pipeline, plan)
        check_call(call, plan, options)
        warn_of_guidance(plan, call.arguments)
        times = run_times(scheduler)
        start = start_step(call.pipeline, len(times) - 1, options.strength)
        fitting = fit_to_run(own_plan(scheduler, plan, call), times, start)
        if call.latent is None:  # the breaks of another latent lie at other levels
            breaks = {*run_breaks(call.pipeline, call.arguments), *(options.breaks or ())}
            fitting = with_parts(fitting, tuple(sorted(breaks, reverse=True)))
        return cls(scheduler, fitting, call, options, start)

    def step_latent(self, scheduler: Any, plan: Plan, call: RunningCall) -> None:
        """Step what a copy of a prepared run is for, on the same grid: a latent with its weights.

        Cosmos 3 and Kandinsky 6 copy their scheduler when its run is prepared.
        """
        times = run_times(self.full)
        self.stepper = Stepper(fit_to_run(own_plan(scheduler, plan, call), times, self.start))

    @property
    def plan(self) -> Plan:
        """Return the plan as it fits this run."""
        return self.stepper.plan

    @property
    def evaluated(self) -> int:
        """Return how many anchors are behind."""
        return sum(n < self.stepper.step for n in self.plan.anchors)

    @property
    def skips_nothing(self) -> bool:
        """Return whether every step is an anchor, so that the pipeline may start where it likes."""
        return self.plan.is_full and not self.options.is_midway

    def step(
        self,
        scheduler: Any,
        step: Callable[..., Any],
        v: Tensor,
        timestep: Any,
        x: Tensor,
        options: dict[str, Any],
    ) -> Any:
        """Walk from this anchor to the next by the parent's `step`."""
        if self.stepper.is_done:
            self.refuse(CALLED_AGAIN)
        self._check_first_step(scheduler, timestep, x)
        stepper = self.stepper  # which the first step may have moved to a later start
        tokens = options.get("per_token_timesteps")
        if stepper.plan.weights is not None and self.factor is not None and tokens is None:
            average = stepper.jump(x, lambda: v)  # the shown grid has the anchors only
            return step(average, timestep, x, **options)
        if (
            stepper.plan.has_own_times and tokens is None
        ):  # for Euler's steps, on a multistep solver
            return self._by_euler(scheduler, stepper, v, x, options)
        with self._full_view(scheduler):
            while True:
                n = self.start + stepper.step
                now = self.full.timesteps[n]
                if tokens is not None:  # a token never lies above the level the walk has reached
                    options["per_token_timesteps"] = torch.minimum(tokens, now.to(tokens))
                scheduler._step_index = n
                result = step(stepper.velocity(x, lambda: v), now, x, **options)
                x = result[0]
                if stepper.is_done or stepper.evaluates:
                    return result

    def _by_euler(
        self, scheduler: Any, stepper: Stepper, v: Tensor, x: Tensor, options: dict[str, Any]
    ) -> Any:
        """Make Euler's step to the next of the plan's own times, in the place of the parent's."""
        before = stepper.step
        average = stepper.jump(x, lambda: v)
        span = stepper.plan.times[stepper.step] - stepper.plan.times[before]
        x_next = (x.float() + span * average).to(v.dtype)
        scheduler._step_index = self.begun + self.evaluated
        if options.get("return_dict", True):
            return SchedulerOutput(prev_sample=x_next)
        return (x_next,)

    def check_begin(self, index: int) -> None:
        """Refuse a start in mid-run: the pipeline would count its start in anchors."""
        if index == self.begun:
            return
        if not self.skips_nothing:
            self.refuse(
                "the pipeline wants to start in the middle of the run, at its own count of steps "
                "(strength below 1): apply(pipe, plan, strength=...) starts the plan at that noise "
                "level; then call the pipeline with strength=1.0"
            )
        self.stepper = Stepper(from_step(self.plan, index - self.begun))
        self.start = self.begun = index

    def note_noise(self) -> None:
        """Note that the pipeline mixes a picture with noise, so that it may start midway."""
        self.has_noise = True
        if not self.is_checked and self.options.strength is None and not self.skips_nothing:
            self.refuse(
                "the loop mixes a picture with noise, and its call cannot be read, so it may start "
                "midway, at its own count of steps: say where, apply(pipe, plan, strength=...), or "
                "strength=1.0 for a start from noise alone"
            )

    def refuse(self, reason: str) -> NoReturn:
        """End the run with an error, after which its end is no news."""
        self.is_told = True
        raise HostError(reason)

    def tell_unfinished(self) -> str | None:
        """Warn once where the run has ended before its plan did, and return the warning."""
        if self.is_told or self.stepper.is_done or (self.is_spare and self.stepper.step == 0):
            return None
        self.is_told = True
        warning = self._unfinished()
        logger.warning(warning)
        return warning

    def _unfinished(self) -> str:
        plan, step = self.plan, self.stepper.step
        if step == 0:
            return (
                f"a run of {plan.steps} steps was prepared under a plan, but no step was made with "
                "the scheduler: a loop that integrates by hand sees the anchors alone, and its "
                "result is not that of the full run"
            )
        return (
            f"a run under a plan ended at step {step} of {plan.steps} (noise level "
            f"{plan.times[step]:.4g} in place of {plan.times[-1]:.4g}), so its result is "
            "unfinished: the call was stopped, or its loop leaves its last timesteps out and "
            "cannot follow a plan"
        )

    @contextmanager
    def _full_view(self, scheduler: Any) -> Iterator[None]:
        """Give the parent the full run while it steps, and the pipeline its view again."""
        names = ("timesteps", "sigmas", "num_inference_steps", "_begin_index")
        shown = {name: getattr(scheduler, name) for name in names}
        scheduler.timesteps, scheduler.sigmas = self.full
        scheduler.num_inference_steps = len(self.full.timesteps)
        try:
            yield
        finally:
            for name, value in shown.items():
                setattr(scheduler, name, value)
            scheduler._step_index = self.begun + self.evaluated

    def _check_first_step(self, scheduler: Any, timestep: Any, x: Tensor) -> None:
        if isinstance(timestep, Tensor) and timestep.numel() > 1:
            raise HostError(
                "each frame has a timestep of its own in this run (diffusion forcing): steps "
                "cannot be skipped for all of them together"
            )
        if self.stepper.step != 0:
            return
        if not self.has_noise:
            self.refuse(
                "the pipeline did not mix the picture with noise at the plan's start (strength=1.0 "
                "means noise alone to it): it cannot be started midway under a plan"
            )
        self._follow_edits(scheduler)
        check_latent_shape(self.plan, tuple(x.shape[1:]))
        # Where the pipeline did not say where it begins, look once, as the parent would.
        first = scheduler.timesteps[0]
        if scheduler._begin_index is None and float(timestep) != float(first):
            if not self.skips_nothing:
                self.refuse(
                    f"the pipeline starts at timestep {float(timestep):g}, the plan at "
                    f"{float(first):g}: apply(pipe, plan, strength=...) sets the start"
                )
            self.check_begin(scheduler.index_for_timestep(timestep))

    def _follow_edits(self, scheduler: Any) -> None:
        """Follow Cosmos 2, which writes its last noise level late: so does the full grid."""
        shown, full = scheduler.sigmas, self.full.sigmas
        if shown._version == self._edits:
            return
        stays = len(shown) > 1 and bool(shown[-1] == shown[-2])
        full[-1] = full[-2] if stays else shown[-1]
        shown[-1] = full[-1]  # where one step crosses the last interval


def own_plan(scheduler: Any, plan: Plan, call: RunningCall) -> Plan:
    """Return the plan of the latent that a scheduler steps; an error where it has none for it."""
    if call.latent is not None:
        return plan_of_latent(plan, call.latent, call.pipeline)
    if scheduler._source is None or getattr(call.pipeline, "scheduler", None) is scheduler:
        return plan.of_latent()
    if plan.latents is not None:
        raise HostError(
            "the plan is for a joint model, and it is not seen which latent this copy of the "
            "pipeline's scheduler steps: call the pipeline itself"
        )
    return without_shape(plan)  # a copy may step something beside the first latent


def fit_to_run(plan: Plan, times: tuple[float, ...], start: int = 0) -> Plan:
    """Return the plan for this run's grid from step `start` on; an error if there is none."""
    grid = times[start:]
    if plan.has_own_times:
        if start and same_grid((plan.times[0], plan.times[-1]), (times[0], times[-1])):
            return stretch_for_the_flow(plan, grid, len(times) - 1)
        return moved_to(plan, grid, logger)
    if same_grid(plan.times, grid):
        return plan
    if plan.rule == "fitted":
        moved = moved_to(plan, times, logger)
        return from_step(moved, start) if start else moved
    if not can_move(plan) and same_grid(plan.times, times):
        return from_step(plan, start)
    # A run that starts midway makes its share of the evaluations.
    share = round(plan.evaluations * (len(grid) - 1) / (len(times) - 1)) if start else None
    return moved_to(plan, grid, logger, evaluations=share)


def with_parts(plan: Plan, breaks: tuple[float, ...]) -> Plan:
    """Return the plan with an anchor where this run changes its expert or guidance."""
    if not breaks or breaks == plan.breaks:
        return plan
    changed = with_breaks(plan, breaks)
    logger.warning(
        "this run changes its expert or guidance at noise levels %s, which the plan does not know: "
        "anchors added, %d evaluations", ", ".join(f"{b:g}" for b in breaks), changed.evaluations,
    )  # fmt: skip
    return changed
