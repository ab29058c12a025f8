"""Learning on the page: a profile and fitted plans from a list of prompts, with progress."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tacache.errors import HostError
from tacache.fitting.fit_options import FitOptions, Target
from tacache.hosts import calibrate, fit_plans
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.studio.model import StudioModel
from tacache.studio.turns import JobProgress, Part, Watch

MAX_PROMPTS = 64
MAX_BUDGETS = 8
PROFILE, FIT = "full runs for the profile", "evaluations for the fit"
NETWORKS = ("transformer", "transformer_2", "unet", "prior")


class Lesson(NamedTuple):
    """What to learn: from which prompts, for how many evaluations, and aimed at what."""

    prompts: tuple[str, ...]
    evaluations: tuple[int, ...]
    target: Target

    @classmethod
    def read(cls, prompts: str, evaluations: str, target: str) -> "Lesson":
        """Return a lesson from what stands in the fields of a page."""
        texts = tuple(line.strip() for line in prompts.splitlines() if line.strip())
        if not 2 <= len(texts) <= MAX_PROMPTS:
            raise HostError(f"give 2 to {MAX_PROMPTS} prompts, one a line, not {len(texts)}")
        try:
            budgets = tuple(sorted({int(part) for part in evaluations.split(",")}))
        except ValueError as error:
            raise HostError("evaluations are whole numbers with commas between") from error
        if not 1 <= len(budgets) <= MAX_BUDGETS:
            raise HostError(f"give up to {MAX_BUDGETS} numbers of evaluations")
        return cls(texts, budgets, "flow" if target == "flow" else "run")


class Learned(NamedTuple):
    """The profile of the prompts, and a plan for each number of evaluations."""

    profile: Profile
    plans: list[Plan]


def learn(model: StudioModel, lesson: Lesson, watch: Watch) -> Learned:
    """Measure full runs of the prompts into a profile, then fit the plans.

    The model's turn is given up in between, so that nobody waits for both.
    """
    call = dict(model.call)
    with model.turn(watch), told(model, watch, PROFILE, len(lesson.prompts) * model.steps):
        profile = calibrate(model.host, lesson.prompts, call=call)
    watch.tell(Part(PROFILE, profile))
    with model.turn(watch), told(model, watch, FIT, None):
        plans = fit_plans(
            model.host,
            lesson.prompts,
            call=call,
            options=FitOptions(evaluations=lesson.evaluations, target=lesson.target),
        )
    return Learned(profile.resample(model.times), plans)


@contextmanager
def told(model: StudioModel, watch: Watch, part: str, total: int | None) -> Iterator[None]:
    """Tell of every evaluation of the networks, and stop at one where that is asked.

    Guidance may run a network several times in an evaluation; at the same time t these count once.
    """
    done, latest = 0, None

    def heard(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        nonlocal done, latest
        watch.check()
        t = _time_of(options)
        if t is None or t != latest:
            done, latest = done + 1, t
            watch.tell(JobProgress(part, done, total))

    with ExitStack() as stack:
        for network in _networks(model.host.pipe):
            stack.callback(network.register_forward_pre_hook(heard, with_kwargs=True).remove)
        yield


def _networks(pipe: Any) -> Sequence[Any]:
    parts = (getattr(pipe, name, None) for name in NETWORKS)
    return [getattr(part, "_orig_mod", part) for part in parts if part is not None]


def _time_of(options: dict[str, Any]) -> float | None:
    t = options.get("timestep")
    return None if t is None else float(t.flatten()[0] if hasattr(t, "flatten") else t)
