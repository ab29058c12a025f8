"""Pictures and clips by a plan or by full steps, followed step by step and stopped on request."""

import inspect
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import Tensor

from tacache.decomposition import relative_distance
from tacache.host import Pixels
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.studio.jobs import Progress, Watch
from tacache.studio.model import StudioModel
from tacache.studio.previews import destination, preview

FAST, FULL = "accelerated", "full steps"  # the two parts of a comparison
BETWEEN = 0.3  # seconds between two previews at least
LARGEST = 2**24  # numbers of a run's states that are kept for its drift
CALLBACK = "callback_on_step_end"


class Drawn(NamedTuple):
    """What one run gave: pixels, seconds without previews, evaluations, and its states by step."""

    pixels: Pixels
    seconds: float
    evaluations: int
    states: dict[int, Tensor]


class Follower:
    """Hears of every turn of a pipeline's loop; tells of it, keeps its states, and stops it."""

    def __init__(self, model: StudioModel, ends: Sequence[int], watch: Watch, part: str) -> None:
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
        self._watch.tell(Progress(self._part, self.done, len(self._ends), self._preview(latents)))
        if latents.numel() * self._model.steps <= LARGEST:
            self.states[self._ends[i]] = latents.detach().float().cpu()
        self._before = latents.detach()
        self.seconds += time.perf_counter() - started
        return values

    def _preview(self, latents: Tensor) -> Pixels | None:
        """A picture of where the run is going, if the last one was a while ago."""
        now, i = time.perf_counter(), self.done - 1
        if self._before is None or now - self._shown < BETWEEN:
            return None
        self._shown = now
        times, call = self._model.times, self._model.call
        t, t_next = times[self._ends[i - 1]], times[self._ends[i]]
        target = destination(self._before, latents, t, t_next)
        return preview(self._model.host.pipe, target, call.get("height"), call.get("width"))


def draw(model: StudioModel, sample: Sample, plan: Plan | None, watch: Watch) -> Drawn:
    """Make a sample by a plan, or by full steps without one; the caller has the model's turn."""
    host, part = model.host, FULL if plan is None else FAST
    ends = range(1, model.steps + 1) if plan is None else (*plan.anchors[1:], plan.steps)
    follower = Follower(model, ends, watch, part)
    with host.full() if plan is None else nullcontext(), host.follow(plan, model.call) as call:
        heard = {CALLBACK: follower} if can_follow(host.pipe) else {}
        started = time.perf_counter()
        pixels = host.draw(sample, {**call, **heard})
        seconds = time.perf_counter() - started - follower.seconds
    return Drawn(pixels, seconds, follower.done or len(ends), follower.states)


def draw_full(model: StudioModel, sample: Sample, watch: Watch) -> Drawn:
    """The full-step run of a sample, which is made once and remembered."""
    known = model.full_runs.get(sample)
    if known is None:
        with model.turn(watch):
            known = model.full_runs.get(sample) or draw(model, sample, None, watch)
            model.remember(sample, known)
    return known


def can_follow(pipe: Any) -> bool:
    """Whether a pipeline tells of its steps, so that it can be stopped at one."""
    return CALLBACK in inspect.signature(type(pipe).__call__).parameters


def drift_of(fast: Drawn, full: Drawn) -> list[tuple[int, float]]:
    """The relative distance of a run to the full-step run, after each step that both reached."""
    return [
        (step, float(relative_distance(x, full.states[step]).mean()))
        for step, x in sorted(fast.states.items())
        if step in full.states
    ]
