"""The model that a studio shows: its host, how it is called, and what is known of its runs."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tacache import models
from tacache.errors import HostError
from tacache.hosts import Call, Host
from tacache.hosts.choosing import MIN_STEPS
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.prompts import Sample, read_prompts
from tacache.storage.origin import Origin
from tacache.storage.signature import RunSignature
from tacache.studio.turns import Turns, Watch

if TYPE_CHECKING:
    from tacache.studio.drawing import Drawn

REMEMBERED = 8  # full runs that are kept
MAX_STEPS = 100  # steps that the page offers
FIRST_PROMPT = "a red apple"


class StudioModel:
    """A host with the arguments of its calls, shared by all who look at the page.

    Its grid, breaks and origin are read off a first call, which also pays the costs that come only
    once. Full-step runs are remembered by prompt, seed and steps.
    """

    def __init__(self, name: str, host: Host, call: Call) -> None:
        self.name, self.host, self.call = name, host, dict(call)
        self.fps = models.frame_rate(name)
        self._turns = Turns()
        self.full_runs: OrderedDict[tuple[Sample, int], Drawn] = OrderedDict()
        host.check(self.call)
        with self._threads():
            self._open()
        self.steps_offered = (min(MIN_STEPS, self.steps), max(MAX_STEPS, self.steps))
        self._by_steps = {self.steps: self}

    def _open(self) -> None:
        with self.host.open(Sample(FIRST_PROMPT, 0), self.call) as run:
            self.times, self.breaks = run.times, run.breaks
            self.origin: Origin = run.origin()
            further = getattr(run, "latents", ())[1:]  # of a joint model
            self.latents = {latent.name: latent.times for latent in further}
            self.makes_clips = _has_frames(run.noise.shape, self.call)

    @property
    def steps(self) -> int:
        """Return N, the number of full steps."""
        return len(self.times) - 1

    @property
    def signature(self) -> RunSignature:
        """Return what runs with this model's calls share, by which plans are found."""
        return RunSignature(self.origin, self.times, self.breaks, latents=self.latents)

    def with_steps(self, steps: int) -> "StudioModel":
        """Return the same model called with so many steps; it waits for its turn the first time."""
        fewest, most = self.steps_offered
        if not fewest <= steps <= most:
            raise HostError(f"choose {fewest} to {most} steps, not {steps}")
        if steps not in self._by_steps:
            with self.turn():
                other = copy.copy(self)
                other.call = self.host.with_steps(self.call, steps)
                other._open()
            self._by_steps[steps] = other
        return self._by_steps[steps]

    @contextmanager
    def turn(self, watch: Watch | None = None) -> Iterator[None]:
        """Wait for the model, and have it alone for the length of a `with` block."""
        with self._turns.turn(watch or Watch.unheard()), self._threads():
            yield

    def remember(self, sample: Sample, full: "Drawn") -> None:
        """Keep a full-step run, and forget the oldest beyond a number of them."""
        self.full_runs[sample, self.steps] = full
        while len(self.full_runs) > REMEMBERED:
            self.full_runs.popitem(last=False)

    def shipped_profile(self) -> Profile | None:
        """Return the profile that ships with the model, on the grid of its calls, or None."""
        if self.name not in models.shipped():
            return None
        profile = Profile.load(models.embedded(self.name).profile)
        known, own = profile.origin.call or {}, self.origin.call or {}
        if any(known.get(name) != own.get(name) for name in ("height", "width", "num_frames")):
            return None
        return profile.resample(self.times)

    def prompts(self) -> list[str]:
        """Return calibration prompts for this model: its own, or those for its kind."""
        return read_prompts(models.own_prompts(self.name, "calibration"))

    def typical_prompt(self) -> str:
        """Return a prompt whose pictures by a plan are about as good as most."""
        shipped = models.shipped().get(self.name)
        return (shipped and shipped.typical_prompt) or self.prompts()[0]

    def fits(self, plan: Plan) -> bool:
        """Return whether a plan was made for this model, called as it is called here.

        Of a plan that does not know the weights it was made for, the names must agree.
        """
        here, there = self.origin, plan.origin
        if there.weights is not None:
            return self.signature.agrees(plan)
        same = all(
            getattr(there, name) in (None, getattr(here, name))
            for name in ("model", "denoiser", "latent_shape")
        )
        return same and full_steps(plan) == self.steps

    @contextmanager
    def _threads(self) -> Iterator[None]:
        small = self.name in models.shipped()
        with models.steady_threads(self.host.pipe) if small else nullcontext():
            yield


def full_steps(plan: Plan) -> int:
    """Return the steps of the run that a plan stands for, also where its times are its own."""
    return plan.steps if plan.grid is None else len(plan.grid) - 1


def _has_frames(noise: tuple[int, ...], call: Call) -> bool:
    """Return whether a call makes clips: it asks for frames, or its latents have them."""
    return "num_frames" in call or len(noise) == 5
