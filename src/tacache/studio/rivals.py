"""Methods of others, run by the lab, which is loaded when the first of them is chosen."""

import tempfile
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacache.errors import HostError
from tacache.prompts import Sample
from tacache.studio.drawing import FAST, Drawn
from tacache.studio.jobs import Progress, Watch
from tacache.studio.model import FIRST_PROMPT, StudioModel

if TYPE_CHECKING:
    from tacache.lab.bench.calibration_sets import CalibrationSet
    from tacache.lab.bench.seam import Calls

TUNED_ON = 2  # calibration prompts
TUNING = "tuning"
# the lab's name -> the word on the page
RIVALS = {
    "fewer": "Fewer steps",
    "unipc": "UniPC",
    "dpm++2m": "DPM++ 2M",
    "magcache": "MagCache",
    "teacache": "TeaCache",
    "taylorseer-1": "TaylorSeer",
    "easycache": "EasyCache",
    "meancache": "MeanCache",
}


class Rivals:
    """The lab's methods on a studio's model, each tuned once for a number of evaluations."""

    def __init__(self, model: StudioModel) -> None:
        self._model = model
        self._settings: dict[tuple[str, int], Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="tacache-studio-")

    @cached_property
    def _calls(self) -> "Calls":
        from tacache.lab.bench.seam import Calls

        return Calls(self._model.host, self._model.call, Sample(FIRST_PROMPT, 0))

    @torch.no_grad()
    def draw(self, name: str, evaluations: int, sample: Sample, watch: Watch) -> Drawn:
        """Make a sample by a rival; the caller has the model's turn."""
        from tacache.lab.bench.rivals import Rival
        from tacache.lab.bench.seam import SampleVelocity
        from tacache.lab.methods import BASELINES, Problem

        if name not in RIVALS:
            raise HostError(f"there is no method {name!r}: choose one of the list")
        rival, calls = Rival(BASELINES[name]), self._calls
        settings = self._tuned(name, rival, evaluations, watch)
        with ExitStack() as stack:
            first = stack.enter_context(calls.open(sample))
            counted = stack.enter_context(_told(calls, watch, FAST, evaluations))
            velocity = SampleVelocity(calls, [sample], stack)
            problem = Problem(
                velocity, first.run.noise, calls.times, {"sample": [0]}, grid=calls.grid
            )
            started = time.perf_counter()
            x = rival.sample(problem, settings)
            pixels = first.finish(x)
            return Drawn(pixels, time.perf_counter() - started, counted.total, {})

    def _tuned(self, name: str, rival: Any, evaluations: int, watch: Watch) -> Any:
        if (name, evaluations) not in self._settings:
            samples = self._samples(watch) if rival.calibrated else self._set
            with _told(self._calls, watch, TUNING, None):
                self._settings[name, evaluations] = rival.prepare(samples, evaluations)
        return self._settings[name, evaluations]

    @cached_property
    def _set(self) -> "CalibrationSet":
        from tacache.lab.bench.calibration_sets import CalibrationSet

        prompts = tuple(self._model.prompts()[:TUNED_ON])
        return CalibrationSet(self._calls, Path(self._folder.name), "calibration", prompts)

    def _samples(self, watch: Watch) -> "CalibrationSet":
        """The calibration prompts with their full runs, which are made once."""
        from tacache.lab.bench.calibration_sets import record_walk

        with _told(self._calls, watch, TUNING, TUNED_ON * self._model.steps):
            for subject in self._set.subjects:
                record_walk(self._calls, self._set.folder, subject)
        return self._set


def _told(calls: "Calls", watch: Watch, part: str, total: int | None) -> Any:
    """Count the evaluations of a `with` block and tell of each; stop at one where that is asked."""
    done = 0

    def told() -> None:
        nonlocal done
        watch.check()
        done += 1
        watch.tell(Progress(part, done, total))

    return calls.counting(told)
