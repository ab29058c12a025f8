"""The model that a studio shows: its host, how it is called, and what is known of its runs."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tacache import models
from tacache.host import Call, Host
from tacache.plan import Plan
from tacache.profile import Origin, Profile
from tacache.prompts import Sample, read_prompts
from tacache.storage.agreement import agrees
from tacache.studio.jobs import Turns, Watch

if TYPE_CHECKING:
    from tacache.studio.drawing import Drawn

REMEMBERED = 8  # full runs that are kept
FIRST_PROMPT = "a red apple"


class StudioModel:
    """A host with the arguments of its calls, shared by all who look at the page.

    Its grid, breaks and origin are read off a first call, which also pays the costs that come only
    once. Full-step runs are remembered by prompt and seed.
    """

    def __init__(self, name: str, host: Host, call: Call) -> None:
        self.name, self.host, self.call = name, host, dict(call)
        self.fps = models.frame_rate(name)
        self._turns = Turns()
        self.full_runs: OrderedDict[Sample, Drawn] = OrderedDict()
        host.check(self.call)
        with self._threads(), host.open(Sample(FIRST_PROMPT, 0), self.call) as run:
            self.times, self.breaks = run.times, run.breaks
            self.origin: Origin = run.origin()
            self.makes_clips = _has_frames(run.noise.shape, self.call)

    @property
    def steps(self) -> int:
        """N, the number of full steps."""
        return len(self.times) - 1

    @contextmanager
    def turn(self, watch: Watch) -> Iterator[None]:
        """Wait for the model, and have it alone for the length of a `with` block."""
        with self._turns.turn(watch), self._threads():
            yield

    def remember(self, sample: Sample, full: "Drawn") -> None:
        """Keep a full-step run, and forget the oldest beyond a number of them."""
        self.full_runs[sample] = full
        while len(self.full_runs) > REMEMBERED:
            self.full_runs.popitem(last=False)

    def shipped_profile(self) -> Profile | None:
        """The profile that ships with the model, on the grid of its calls; None without one."""
        if self.name not in models.EMBEDDED:
            return None
        profile = Profile.load(models.embedded(self.name).profile)
        known, own = profile.host.call or {}, self.origin.call or {}
        if any(known.get(name) != own.get(name) for name in ("height", "width", "num_frames")):
            return None
        return profile.resample(self.times)

    def prompts(self) -> list[str]:
        """Calibration prompts for this model: its own, or those for its kind."""
        return read_prompts(models.own_prompts(self.name, "calibration"))

    def fits(self, plan: Plan) -> bool:
        """Whether a plan was made for this model, called as it is called here.

        Of a plan that does not know the weights it was made for, the names must agree.
        """
        here, there = self.origin, plan.host
        if there.weights is not None:
            return agrees(plan, here, self.times, self.breaks)
        same = all(
            getattr(there, name) in (None, getattr(here, name))
            for name in ("model", "denoiser", "latent_shape")
        )
        return same and plan.steps == self.steps

    @contextmanager
    def _threads(self) -> Iterator[None]:
        small = self.name in models.EMBEDDED
        with models.steady_threads(self.host.pipe) if small else nullcontext():
            yield


def _has_frames(noise: tuple[int, ...], call: Call) -> bool:
    """Whether a call makes clips: it asks for frames, or its latents have them."""
    return "num_frames" in call or len(noise) == 5
