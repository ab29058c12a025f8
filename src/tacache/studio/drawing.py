"""Pictures and clips by a plan or by full steps, followed step by step and stopped on request."""

import inspect
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import Tensor

from tacache.hosts import Pixels
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.studio.model import StudioModel
from tacache.studio.previews import destination, preview
from tacache.studio.turns import JobProgress, Watch
from tacache.tasu import relative_distance

ACCELERATED, FULL_STEPS = "accelerated", "full steps"  # the two parts of a comparison
BETWEEN = 0.3  # seconds between two previews at least
MAX_KEPT_NUMBERS = 2**24  # numbers of a run's states that are kept for its drift
CALLBACK = "callback_on_step_end"


class Drawn(NamedTuple):
    """What one run gave: pixels, seconds without previews, evaluations, and its states by step."""

    pixels: Pixels
    seconds: float
    evaluations: int
    states: dict[int, Tensor]


class LoopEnd(NamedTuple):
    """Where a turn of a pipeline's loop ends: the noise level, and the full run's step there."""

    step: int | None  # None between the steps of the full run
    t: float


class Follower:
    """Hears of every turn of a pipeline's loop; tells of it, keeps its states, and stops it."""

    def __init__(
        self, model: StudioModel, ends: Sequence[LoopEnd], watch: Watch, part: str
    ) -> None:
        self._model, self._ends, self._watch, self._part = model, ends, watch, part
        self.states: dict[int, Tensor] = {}
        self._before: Tensor | None = None
        self.done, self.seconds, self._shown = 0, 0.0, time.perf_counter()

    def __call__(self, pipe: Any, i: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        """Take the place of `callback_on_step_end`."""
        started = time.perf_counter()
        self._watch.check()
        self.done = i + 1
        latents = values["latents"]
        self._watch.tell(
            JobProgress(self._part, self.done, len(self._ends), self._preview(latents))
        )
        step = self._ends[i].step
        if step is not None and latents.numel() * self._model.steps <= MAX_KEPT_NUMBERS:
            self.states[step] = latents.detach().float().cpu()
        self._before = latents.detach()
        self.seconds += time.perf_counter() - started
        return values

    def _preview(self, latents: Tensor) -> Pixels | None:
        """Return a picture of where the run is going, if the last one was a while ago."""
        now, i = time.perf_counter(), self.done - 1
        if self._before is None or now - self._shown < BETWEEN:
            return None
        self._shown = now
        call = self._model.call
        target = destination(self._before, latents, self._ends[i - 1].t, self._ends[i].t)
        return preview(self._model.host.pipe, target, call.get("height"), call.get("width"))


def draw(model: StudioModel, sample: Sample, plan: Plan | None, watch: Watch) -> Drawn:
    """Make a sample by a plan, or by full steps without one; the caller has the model's turn."""
    host, part = model.host, FULL_STEPS if plan is None else ACCELERATED
    ends = loop_ends(model.times, plan)
    follower = Follower(model, ends, watch, part)
    with host.full() if plan is None else nullcontext(), host.follow(plan, model.call) as call:
        heard = {CALLBACK: follower} if can_follow(host.pipe) else {}
        started = time.perf_counter()
        pixels = host.draw(sample, {**call, **heard})
        seconds = time.perf_counter() - started - follower.seconds
    return Drawn(pixels, seconds, follower.done or len(ends), follower.states)


def loop_ends(times: Sequence[float], plan: Plan | None) -> list[LoopEnd]:
    """Return where each turn of a run's loop ends, by a plan or with the full steps at `times`."""
    if plan is None:
        return [LoopEnd(step, t) for step, t in enumerate(times)][1:]
    ends = (*plan.anchors[1:], plan.steps)
    if plan.grid is None:
        return [LoopEnd(step, plan.times[step]) for step in ends]
    return [*(LoopEnd(None, plan.times[n]) for n in ends[:-1]), LoopEnd(len(times) - 1, times[-1])]


def draw_full(model: StudioModel, sample: Sample, watch: Watch) -> Drawn:
    """Return the full-step run of a sample, which is made once and remembered."""
    known = model.full_runs.get((sample, model.steps))
    if known is None:
        with model.turn(watch):
            known = model.full_runs.get((sample, model.steps)) or draw(model, sample, None, watch)
            model.remember(sample, known)
    return known


def can_follow(pipe: Any) -> bool:
    """Return whether a pipeline tells of its steps, so that it can be stopped at one."""
    return CALLBACK in inspect.signature(type(pipe).__call__).parameters


def drift_of(fast: Drawn, full: Drawn) -> list[tuple[int, float]]:
    """Return the relative distance of a run to the full-step run, after each step of both."""
    return [
        (step, float(relative_distance(x, full.states[step]).mean()))
        for step, x in sorted(fast.states.items())
        if step in full.states
    ]
