"""Methods of others, run by the lab, which is loaded when the first of them is chosen."""

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacache.errors import HostError, PlanError
from tacache.prompts import Sample
from tacache.studio.drawing import FAST, Drawn
from tacache.studio.jobs import Progress, Watch
from tacache.studio.model import FIRST_PROMPT, StudioModel

if TYPE_CHECKING:
    from tacache.lab.bench.seam import Calls
    from tacache.lab.methods import Recording

TUNED_ON = 2  # calibration prompts
FIRST_SEED = 1_000_000  # of their noise, which no picture has
MOST_TRIED = 12  # of a rival's settings, evenly chosen: somebody waits for the picture
TUNING = "tuning"
# the lab's name -> the word on the page
RIVALS = {
    "fewer": "Fewer steps",
    "unipc": "UniPC",
    "dpm++2m": "DPM++ 2M",
    "magcache": "MagCache",
    "teacache": "TeaCache",
    "taylorseer-1": "TaylorSeer",
    "meancache": "MeanCache",
}


class Rivals:
    """The lab's methods on a studio's model, each tuned once for a number of evaluations."""

    def __init__(self, model: StudioModel) -> None:
        self._model = model
        self._settings: dict[tuple[str, int], Any] = {}
        self._recorded: Recording | None = None

    @cached_property
    def _calls(self) -> "Calls":
        from tacache.lab.bench.seam import Calls

        return Calls(self._model.host, self._model.call, Sample(FIRST_PROMPT, 0))

    @torch.no_grad()
    def draw(self, name: str, evaluations: int, sample: Sample, watch: Watch) -> Drawn:
        """Make a sample by a rival; the caller has the model's turn."""
        from tacache.lab.methods import BASELINES, Problem

        if name not in RIVALS:
            raise HostError(f"there is no method {name!r}: choose one of the list")
        rival, calls = BASELINES[name], self._calls
        settings = self._tuned(rival, evaluations, watch)

        def run(problem: Problem) -> Tensor:
            return rival.run(problem, settings).x

        times = calls.grid_for(run)
        started = time.perf_counter()
        with _told(calls, watch, FAST, evaluations), calls.open(sample, times) as velocity:
            noise = velocity.run.noise
            x = run(Problem(velocity, noise, calls.times, grid=calls.grid))
            pixels = velocity.finish(x)
        return Drawn(pixels, time.perf_counter() - started, len(velocity.evaluated), {})

    def _tuned(self, rival: Any, evaluations: int, watch: Watch) -> Any:
        """The settings of a rival, found once for a number of evaluations."""
        key = rival.name, evaluations
        if key not in self._settings:
            with ExitStack() as stack:
                stack.enter_context(_told(self._calls, watch, TUNING, None))
                recording = self._recording(stack) if rival.tuned else self._outline()
                self._settings[key] = best_of(rival, recording, evaluations)
        return self._settings[key]

    def _outline(self) -> "Recording":
        """The grid alone, for methods that need no samples."""
        from tacache.lab.methods import Recording

        calls = self._calls
        return Recording(_unasked, torch.zeros(1, 1), calls.times, grid=calls.grid)

    def _recording(self, stack: ExitStack) -> "Recording":
        """Calibration samples with their full runs, made once, open until the stack is closed."""
        from tacache.lab.bench.calibration_sets import Remembered
        from tacache.lab.bench.seam import SampleVelocity
        from tacache.lab.methods import record

        calls, prompts = self._calls, self._model.prompts()[:TUNED_ON]
        subjects = [Sample(prompt, FIRST_SEED + i) for i, prompt in enumerate(prompts)]
        velocity = Remembered(SampleVelocity(calls, subjects, stack))
        if self._recorded is None:
            noises = []
            for subject in subjects:
                with calls.open(subject) as opened:
                    noises.append(opened.run.noise)
            condition = {"sample": list(range(len(subjects)))}
            self._recorded = record(
                velocity, torch.cat(noises), calls.times, condition=condition, grid=calls.grid
            )
        known = self._recorded
        for x, t, v in zip(known.states, known.times, known.velocities, strict=False):
            for i in range(len(subjects)):
                velocity.remember(x[i : i + 1], t, i, v[i : i + 1])
        return replace(known, velocity=velocity)


def best_of(rival: Any, recording: "Recording", evaluations: int) -> Any:
    """Of some settings that spend the budget, the one that ends nearest to full steps."""
    found = rival.candidates(recording, evaluations)
    if not found:
        raise PlanError(
            f"{RIVALS[rival.name]} does not reach {evaluations} evaluations: {rival.needs}"
        )
    count = min(len(found), MOST_TRIED)
    tried = [found[round(i * (len(found) - 1) / max(count - 1, 1))] for i in range(count)]
    if len(tried) == 1:
        return tried[0]
    return min(tried, key=lambda one: recording.error(rival.run(recording, one).x))


def _unasked(x: Tensor, t: float) -> Tensor:
    raise HostError("a method that needs no samples asked for a velocity")


def _told(calls: "Calls", watch: Watch, part: str, total: int | None) -> Any:
    """Count the evaluations of a `with` block and tell of each; stop at one where that is asked."""
    done = 0

    def told() -> None:
        nonlocal done
        watch.check()
        done += 1
        watch.tell(Progress(part, done, total))

    return calls.counting(told)
