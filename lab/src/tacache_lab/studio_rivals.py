"""Methods of others in the studio, run by the benchmark's own calls when one of them is chosen."""

import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacache.errors import HostError
from tacache.prompts import Sample
from tacache.studio.drawing import ACCELERATED, Drawn
from tacache.studio.model import FIRST_PROMPT, StudioModel
from tacache.studio.turns import JobProgress, Watch

if TYPE_CHECKING:
    from tacache_lab.bench.calibration_sets import CalibrationSet
    from tacache_lab.bench.host_calls import Calls

TUNED_ON = 2  # calibration prompts
MAX_TRIES = 12  # of a rival's settings, evenly chosen: somebody waits for the picture
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

    @cached_property
    def _calls(self) -> "Calls":
        from tacache_lab.bench.host_calls import Calls

        return Calls(self._model.host, self._model.call, Sample(FIRST_PROMPT, 0))

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return the place of the calibration runs, which goes with the studio."""
        return tempfile.TemporaryDirectory(prefix="tacache-studio-")

    @cached_property
    def _calibration(self) -> "CalibrationSet":
        from tacache_lab.bench.calibration_sets import CalibrationSet

        prompts = tuple(self._model.prompts()[:TUNED_ON])
        folder = Path(self._folder.name)
        return CalibrationSet(self._calls, folder, "studio", prompts, most=MAX_TRIES)

    @torch.no_grad()
    def draw(self, name: str, evaluations: int, sample: Sample, watch: Watch) -> Drawn:
        """Make a sample by a rival; the caller has the model's turn."""
        from tacache_lab.bench.named_methods import METHODS
        from tacache_lab.methods import SamplingProblem

        if name not in RIVALS:
            raise HostError(f"there is no method {name!r}: choose one of the list")
        method, calls = METHODS[name], self._calls
        settings = self._tuned(name, evaluations, watch)
        times = calls.grid_for(lambda problem: method.sample(problem, settings))
        started = time.perf_counter()
        with _told(calls, watch, ACCELERATED, evaluations), calls.open(sample, times) as velocity:
            problem = SamplingProblem(velocity, velocity.run.noise, calls.times, grid=calls.grid)
            pixels = velocity.finish(method.sample(problem, settings))
        return Drawn(pixels, time.perf_counter() - started, len(velocity.evaluated), {})

    def _tuned(self, name: str, evaluations: int, watch: Watch) -> Any:
        """Return the settings of a rival, found once for a number of evaluations."""
        from tacache_lab.bench.named_methods import METHODS

        if (name, evaluations) not in self._settings:
            method, calibration = METHODS[name], self._calibration
            with _told(self._calls, watch, TUNING, None):
                for subject in calibration.subjects if method.calibrated else ():
                    calibration.record(subject)
                self._settings[name, evaluations] = method.prepare(calibration, evaluations)
        return self._settings[name, evaluations]


def _told(calls: "Calls", watch: Watch, part: str, total: int | None) -> Any:
    """Count the evaluations of a `with` block and tell of each; stop at one where that is asked."""
    done = 0

    def told() -> None:
        nonlocal done
        watch.check()
        done += 1
        watch.tell(JobProgress(part, done, total))

    return calls.counting(told)
