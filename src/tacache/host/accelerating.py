"""Which plan a call follows: the one given, a stored one, an instant one, or none while it learns.

A host asks at the beginning of each run, when its size and steps are known, and says what it is.
"""

import functools
import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from tacache.errors import HostError, PlanError, StorageError, TACacheError
from tacache.fitting import FAST
from tacache.fitting.full_runs import keep_runs
from tacache.grid import break_steps
from tacache.host.fitting import fit_plans, job_of
from tacache.host.interface import Call, Host
from tacache.host.learning import Kept, Learning, RunRecord
from tacache.instant import instant_plan
from tacache.plan import Plan, as_plan
from tacache.profile import Origin
from tacache.prompts import Sample
from tacache.schedule import budget_for
from tacache.storage.store import PlanStore, setting

SPEEDUP = 4.0  # unless told
FEWEST_STEPS = 12  # of a run that is accelerated: distilled models make fewer
FEWEST_SAMPLES = 2  # of a fit: one of them is held out to judge it
# How far a repeated velocity may be off, over its norm: other batches round differently.
SAME = {torch.float32: 1e-3, torch.float64: 1e-3}
TRIES = 20  # fits of all samples, more than a line search over anchors makes
NEARLY_SAME = 3e-2  # in the half precisions


class Wish(NamedTuple):
    """What a user asked of `accelerate`."""

    speedup: float | None = None
    evaluations: int | None = None
    learn: int = 0
    plan: Plan | None = None

    def budget(self, steps: int, whole: int, parts: int) -> int:
        """The evaluations of a run with so many steps, which are `whole` where it is not cut short.

        Each of its parts takes one.
        """
        if self.evaluations is None:
            asked = budget_for(steps, self.speedup if self.speedup is not None else SPEEDUP)
        else:
            asked = self.evaluations
            asked = asked if steps == whole else round(asked * steps / whole)
        return max(asked, parts)


def wish_of(
    speedup: float | None, evaluations: int | None, learn: int, plan: Plan | str | Path | None
) -> Wish:
    """The wish that these arguments express, or an error that says what is wrong with them."""
    if speedup is not None and evaluations is not None:
        raise PlanError("give speedup or evaluations, not both: one follows from the other")
    if evaluations is not None and evaluations < 1:
        raise PlanError(f"evaluations is at least 1, not {evaluations}")
    budget_for(1, speedup if speedup is not None else SPEEDUP)  # refuses what is no speedup
    if learn != 0 and learn < FEWEST_SAMPLES:
        raise PlanError(
            f"learn is 0 or at least {FEWEST_SAMPLES}, since one sample is held out to judge the "
            f"plan; it is {learn}"
        )
    return Wish(speedup, evaluations, learn, None if plan is None else as_plan(plan))


class Setting(NamedTuple):
    """A run as it is known before its first step, from where it starts."""

    origin: Origin
    times: tuple[float, ...]
    breaks: tuple[float, ...] = ()
    whole: int = 0  # the steps of the run before a start midway cut it short; 0 where none did

    @property
    def steps(self) -> int:
        """How many steps are left to make."""
        return len(self.times) - 1

    @property
    def parts(self) -> int:
        """How many parts with a model or guidance of their own the run has."""
        return 1 + len(break_steps(self.times, self.breaks))


class Source(Protocol):
    """The running call, for a fit that makes it again later."""

    def refusal(self) -> str | None:
        """Why calls like this one cannot be kept and made again; None where they can."""

    def call_of(self, row: int, rows: int) -> dict[str, Any]:
        """The arguments that make one sample of this call's batch by itself."""

    def host(self, samples: Sequence[Kept]) -> tuple[Host, Call]:
        """A host whose sample with seed i is that of the i-th kept call, and how to call it."""


class Choice(NamedTuple):
    """What a run does: follow a plan, or make full steps, which may be recorded."""

    plan: Plan | None = None
    record: RunRecord | None = None


class Chooser:
    """Chooses for each run, learns on the way, and says what it does once a setting.

    Pipelines that share one may ask from several threads: they take turns.
    """

    def __init__(self, wish: Wish, logger: logging.Logger, store: PlanStore | None = None) -> None:
        self.wish, self.store = wish, PlanStore() if store is None else store
        self._logger, self._taking_turns = logger, threading.RLock()
        self._said: set[object] = set()
        self._learnings: dict[str, Learning] = {}
        self._given_up: set[str] = set()
        self._proven: set[frozenset[str]] = set()  # the arguments of calls that repeat
        self._fitted: dict[tuple[str, int], Plan] = {}  # also where the store could not take them

    def __deepcopy__(self, memo: dict[int, Any]) -> "Chooser":
        """Copies of a pipeline learn together."""
        return self

    def say(self, key: object, text: str, *values: object) -> None:
        """Log a sentence, once for each key."""
        if key not in self._said:
            self._said.add(key)
            self._logger.warning(text, *values)

    def budget(self, run: Setting) -> int | None:
        """The evaluations of a run, or None where it keeps its full steps, which is said."""
        evaluations = self.wish.budget(run.steps, run.whole or run.steps, run.parts)
        if run.steps < FEWEST_STEPS:
            self.say(
                ("few", run.steps),
                "a run of %d steps stays full: with fewer than %d there is too little to skip",
                run.steps, FEWEST_STEPS,
            )  # fmt: skip
            return None
        if evaluations >= run.steps:
            self.say(
                ("all", run.steps, evaluations),
                "a run of %d steps stays full: %d evaluations skip none of them",
                run.steps, evaluations,
            )  # fmt: skip
            return None
        return evaluations

    def choose(self, run: Setting, source: Source) -> Choice:
        """The plan for this run, or full steps.

        The call whose run is the last to learn from waits for the fit at its end. Nothing that goes
        wrong with learning or the store stops a run.
        """
        with self._taking_turns:
            given = self.wish.plan
            if given is not None and fits(given, run):
                return Choice(given)
            evaluations = self.budget(run)
            if evaluations is None:
                return Choice()
            key = key_of(run)
            found = self._stored(run, key, evaluations)
            if found is None and self.wish.learn:
                taught = self._learned(run, key, evaluations, source)
                if taught is not None:
                    return taught
            return Choice(found if found is not None else self._instant(run, key, evaluations))

    def close(self) -> None:
        """Let other processes learn; what is kept stays for later."""
        for learning in self._learnings.values():
            learning.end()
        self._learnings.clear()

    def _stored(self, run: Setting, key: str, evaluations: int) -> Plan | None:
        if (key, evaluations) in self._fitted:
            return self._fitted[key, evaluations]
        found = self.store.find(run.origin, run.times, evaluations, run.breaks)
        if found is None:
            return None
        self.say(
            (key, evaluations, found.name),
            "the stored plan %s is followed: %s", found.name, known_of(found.plan),
        )  # fmt: skip
        return found.plan

    def _instant(self, run: Setting, key: str, evaluations: int) -> Plan:
        plan = instant_plan(run.times, evaluations, breaks=run.breaks)
        self.say(
            (key, evaluations, "instant"),
            "an instant plan is followed: %d of %d steps are evaluated, and its fidelity on this "
            "model is not known; learn=8 makes a better one of the first 8 samples, and so does "
            "fit_plan (`tacache fit`)", evaluations, run.steps,
        )  # fmt: skip
        return plan.model_copy(update={"host": run.origin})

    def _learned(self, run: Setting, key: str, evaluations: int, source: Source) -> Choice | None:
        """Full steps to learn from, or a plan that was learned; None where that is impossible."""
        if key in self._given_up:
            return None
        unreadable = "the weights cannot be read (sequential offload), so no plan is found again"
        reason = unreadable if run.origin.weights is None else source.refusal()
        if reason is not None:
            self.say((key, reason), "this call is not learned from: %s", reason)
            return None
        try:
            learning = self._learnings.setdefault(key, Learning(self._folder / key))
            if not learning.begin():
                self.say(
                    (key, "busy"),
                    "another process learns this setting, and one does so at a time: an instant "
                    "plan is followed until its plan is there",
                )
                return None
        except StorageError as error:
            self._give_up(key, f"{error}. Nothing is learned")
            return None
        plan = self._taught(run, key, evaluations, source)
        if plan is not None or key in self._given_up:
            return None if plan is None else Choice(plan)
        self.say(
            (key, "learning"),
            "the first %d samples of this setting run in full, and a plan with %d evaluations is "
            "learned from them (%d are there)", self.wish.learn, evaluations, learning.count(),
        )  # fmt: skip
        done = functools.partial(self._taught, run, key, evaluations, source)
        return Choice(record=RunRecord(learning, self.wish.learn, run.times, source.call_of, done))

    def _taught(self, run: Setting, key: str, evaluations: int, source: Source) -> Plan | None:
        """The plan that the kept samples teach, once there are enough of them."""
        learning = self._learnings.get(key)
        if learning is None:  # closed meanwhile
            return None
        try:
            with self._taking_turns, untouched_generators():
                self._prove(learning, source)
                if learning.count() >= self.wish.learn:
                    return self._fit(run, key, evaluations, learning, source)
        except StorageError as error:
            self._give_up(key, f"{error}. Nothing is learned")
        except Exception as error:  # whatever it is, the call goes on
            learning.forget()
            kind = "" if isinstance(error, TACacheError) else f"{type(error).__name__}: "
            self._give_up(key, f"nothing can be learned from these calls: {kind}{error}")
        return None

    @property
    def _folder(self) -> Path:
        return self.store.folder / "learning"

    def give_up(self, run: Setting, reason: str) -> None:
        """Learn no more from this setting: what is said once."""
        self._give_up(key_of(run), f"{reason}. Nothing is learned from this setting")

    def _give_up(self, key: str, text: str) -> None:
        self._given_up.add(key)
        learning = self._learnings.pop(key, None)
        if learning is not None:
            learning.end()
        self.say((key, text), "%s", text)

    def _prove(self, learning: Learning, source: Source) -> None:
        """See once for each kind of kept call whether it gives the same velocities again."""
        for one in learning.unseen():
            if frozenset(one.call) not in self._proven:
                host, call = source.host([one])
                check_repeats(host, call, one)
                self._proven.add(frozenset(one.call))

    def _fit(
        self, run: Setting, key: str, evaluations: int, learning: Learning, source: Source
    ) -> Plan | None:
        """Fit a plan to the kept samples, store it, and delete them; None if files are damaged."""
        samples = learning.samples()[: self.wish.learn]
        if len(samples) < self.wish.learn:
            return None
        host, call = source.host(samples)
        told = cost_of(samples, evaluations)
        self._logger.warning(
            "%d samples are recorded: a plan with %d evaluations is fitted to them now, and this "
            "call waits for it. %s", len(samples), evaluations, told,
        )  # fmt: skip
        plan = fit_kept(host, call, run, evaluations, samples, learning.resume)
        self._fitted[key, evaluations] = plan
        try:
            name = f"stored as {self.store.put(plan).name}"
        except StorageError as error:
            name = f"not stored, so it is gone with this process ({error})"
        else:
            learning.forget()
        self._learnings.pop(key).end()
        self._logger.warning("the plan is fitted and %s: %s", name, known_of(plan))
        return plan


def fits(plan: Plan, run: Setting) -> bool:
    """Whether a plan that the user gave can be followed on this run's number of steps."""
    return plan.rule != "fitted" or plan.steps in (run.steps, run.whole or run.steps)


def key_of(run: Setting) -> str:
    """A name for the setting of a run, which differs where a plan for one is not for the other."""
    text = setting(run.origin, run.times, run.breaks)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def known_of(plan: Plan) -> str:
    """What is known of a stored plan's fidelity, in words."""
    budget, known = f"{plan.evaluations} of {plan.steps} steps are evaluated", plan.certificate
    if known is None:
        return f"{budget}, and its fidelity was not measured"
    near = [] if known.psnr is None else [f"{known.psnr:.1f} dB PSNR"]
    near.append(f"{known.drift:.2g} of drift in the latents")
    flow = known.nearness(plan.evaluations)
    return f"{budget}, {' and '.join(near)} from the full run ({known.held_out} held out)" + (
        f" ({flow})" if flow else ""
    )


def cost_of(samples: Sequence[Kept], evaluations: int) -> str:
    """What a fit on kept samples takes at most, told before it begins."""
    steps, recorded = len(samples[0].times) - 1, sum(one.states is not None for one in samples)
    most = most_of(len(samples), steps, evaluations)
    most -= steps * len(samples) if recorded == len(samples) else 0
    seconds = most * max(one.seconds for one in samples)
    length = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        f"It takes at most {most} evaluations, as many as {most / steps:.0f} full runs: up to "
        f"{length} by the time that the recorded ones took."
    )


def most_of(samples: int, steps: int, evaluations: int) -> int:
    """The evaluations that a fit without a search may spend, the full runs included."""
    least = samples * (steps + 2 * evaluations) + 10 * steps
    return max(least, min(FAST, least + TRIES * samples * evaluations))


def fit_kept(
    host: Host,
    call: Call,
    run: Setting,
    evaluations: int,
    samples: Sequence[Kept],
    resume: Path,
) -> Plan:
    """A plan fitted to kept samples, whose recorded full runs are not made again."""
    seeds = list(range(len(samples)))
    resume = resume.with_name(f"{resume.name}.{len(samples)}")
    states = [one.states for one in samples if one.states is not None]
    velocities = [one.velocities for one in samples if one.velocities is not None]
    if len(states) == len(velocities) == len(samples):
        job = job_of(host, [Sample(None, seed) for seed in seeds], call)
        runs = torch.stack(states, dim=1), torch.stack(velocities, dim=1)
        keep_runs(resume, job, run.times, *runs)
    plan = fit_plans(
        host,
        None,
        evaluations=[evaluations],
        call=call,
        seeds=seeds,
        search=False,
        max_evaluations=most_of(len(samples), run.steps, evaluations),
        resume=resume,
        progress=True,
    )[0]
    latents = {"latent_shape": plan.host.latent_shape, "dtype": plan.host.dtype}
    return plan.model_copy(update={"host": run.origin.model_copy(update=latents)})


def check_repeats(host: Host, call: Call, sample: Kept) -> None:
    """Refuse a kept call, the host's first, that does not give the same velocities again."""
    with torch.no_grad(), host.quiet(), host.open(Sample(None, 0), call) as run:
        if run.times != sample.times or not torch.equal(run.noise.cpu(), sample.noise):
            raise HostError("made again, they start from other noise or on another grid")
        for step, (x, before) in zip((0, len(run.times) - 2), sample.ends, strict=True):
            v = run.evaluate(x.to(run.noise.device), step).cpu().float()
            off = float((v - before.float()).norm() / before.float().norm().clamp(min=1e-12))
            if off > SAME.get(before.dtype, NEARLY_SAME):
                raise HostError(
                    f"made again, they have other velocities at step {step} (by {off:.1%}): an "
                    "argument, a callback or a hook changes them in a way that cannot be kept"
                )


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Leave torch's generators as they were: the call that waits goes on drawing from them."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng([torch.cuda.current_device()] if started else []):
        yield
