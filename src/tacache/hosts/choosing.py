"""Which plan a call follows: the one given, a stored one, an instant one, or none while it learns.

A host asks at the beginning of each run, when its size and steps are known, and says what it is.
"""

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tacache.errors import PlanError, StorageError, TACacheError, counted
from tacache.fitting import chosen_plan
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts.accelerate_options import AccelerateOptions
from tacache.hosts.base import Call, Host
from tacache.hosts.learning import Learning, RecordedSample, RunRecord
from tacache.hosts.quality_choice import (
    full_reason,
    instant_reason,
    is_missed,
    makes_clips,
    measured_on,
    quality_choice,
)
from tacache.hosts.teaching import (
    Budget,
    check_repeats,
    cost_of,
    fit_kept,
    kept_options,
    untouched_generators,
)
from tacache.instant import instant_plan, loses_to_plain_steps, plain_plan
from tacache.plan import Plan
from tacache.storage.finished import digest
from tacache.storage.signature import SOLVER_OPTIONS, RunSignature
from tacache.storage.store import PlanStore, Stored

MIN_STEPS = 4  # of a run that is accelerated


class Source(Protocol):
    """The running call, for a fit that makes it again later."""

    def refusal(self) -> str | None:
        """Return why calls like this one cannot be kept and made again; None where they can."""

    def call_of(self, row: int, rows: int) -> dict[str, Any]:
        """Return the arguments that make one sample of this call's batch by itself."""

    def host(self, samples: Sequence[RecordedSample]) -> tuple[Host, Call]:
        """Return a host whose sample with seed i is that of the i-th kept call, and arguments."""


class Choice(NamedTuple):
    """What a run does: follow a plan, or make full steps, which may be recorded."""

    plan: Plan | None = None
    record: RunRecord | None = None


class Chooser:
    """Chooses for each run, learns on the way, and says what it does once a setting.

    Pipelines that share one may ask from several threads: they take turns.
    """

    def __init__(
        self,
        options: AccelerateOptions,
        logger: logging.Logger,
        store: PlanStore | None = None,
    ) -> None:
        self.options, self.store = options, PlanStore() if store is None else store
        self._logger, self._taking_turns = logger, threading.RLock()
        self._folder = self.store.folder / "learning"
        self._said: set[object] = set()
        self._learnings: dict[str, Learning] = {}
        self._given_up: set[str] = set()
        self._proven: set[frozenset[str]] = set()  # the arguments of calls that repeat
        self._calls: set[str] = set()  # digests of those with their values
        self._fitted: dict[tuple[str, Budget], Plan] = {}  # that the store could not take
        self._in_vain: set[tuple[str, Budget]] = set()  # that no fit has reached

    def __deepcopy__(self, memo: dict[int, Any]) -> "Chooser":
        """Let copies of a pipeline learn together."""
        return self

    def say(self, key: object, text: str, *values: object) -> None:
        """Log a sentence, once for each key."""
        if key not in self._said:
            self._said.add(key)
            self._logger.warning(text, *values)

    def budget(self, run: RunSignature) -> Budget | None:
        """Return what is asked of a run, or None where it keeps its full steps, which is said."""
        evaluations = self.options.budget(run.steps, run.whole or run.steps, run.parts)
        if run.steps < MIN_STEPS:
            self.say(
                ("few", run.steps),
                "a run of %d steps stays full: with fewer than %d there is too little to skip",
                run.steps, MIN_STEPS,
            )  # fmt: skip
            return None
        if self.options.goal is not None:
            return self.options.goal.for_part(run.steps, run.whole or run.steps)
        if evaluations >= run.steps:
            self.say(
                ("all", run.steps, evaluations),
                "a run of %d steps stays full: %d evaluations skip none of them",
                run.steps, evaluations,
            )  # fmt: skip
            return None
        return evaluations

    def choose(self, run: RunSignature, source: Source) -> Choice:
        """Return the plan for this run, or full steps.

        The call whose run is the last to learn from waits for the fit at its end. Nothing that goes
        wrong with learning or the store stops a run.
        """
        with self._taking_turns:
            own = self.options.own_plan
            if own is not None and run.takes(own):
                return Choice(own)
            budget, key = self.budget(run), run.key
            if budget is None:
                return Choice()
            stored = self._stored(run, key, budget)
            if stored is not None:
                return Choice(stored)
            taught = self._learned(run, key, budget, source) if self.options.learn else None
            return taught or Choice(self._unmeasured(run, key, budget, source))

    def close(self) -> None:
        """Let other processes learn; what is kept stays for later."""
        for key in list(self._learnings):
            self._let_go(key)

    def _stored(self, run: RunSignature, key: str, budget: Budget) -> Plan | None:
        stored = self._in_store(run, budget)
        if stored is None:
            return self._fitted.get((key, budget))
        self._let_go(key)
        self.say(
            (key, budget, stored.name),
            "the %s plan %s is followed: %s",
            "shipped" if self.store.ships(stored) else "stored", stored.name, known_of(stored.plan),
        )  # fmt: skip
        if self.options.learn:
            Learning(self._folder / key).clear()
        return stored.plan

    def _in_store(self, run: RunSignature, budget: Budget) -> Stored | None:
        if isinstance(budget, QualityGoal):
            return quality_choice(budget, run, self.store).stored
        return self.store.find(run.origin, run.times, budget, run.breaks, run.latents)

    def _unmeasured(
        self, run: RunSignature, key: str, budget: Budget, source: Source
    ) -> Plan | None:
        """Return an instant plan; None where a quality is asked for that none is known to have."""
        advice = advice_for(source, bool(self.options.learn))
        if not isinstance(budget, QualityGoal):
            if _is_known_to_lose(run, budget):
                return self._plain(run, key, budget, advice)
            plan = instant_plan(run.times, budget, breaks=run.breaks, latents=run.latents)
            plan = plan.model_copy(update={"origin": run.origin})
            reason = (
                f"{counted(budget, 'evaluation')} of {run.steps} steps, and its fidelity on this "
                "model is not known"
            )
        else:
            near = self._instant_near(run, key, budget, advice)
            if near is None:
                return None
            plan, reason = near, instant_reason(budget, near.evaluations, clip=makes_clips(run))
        self.say((key, budget, "instant"), "an instant plan is followed: %s; %s", reason, advice)
        return plan

    def _plain(self, run: RunSignature, key: str, budget: int, advice: str) -> Plan:
        """Return plain steps, where an instant plan with as many was measured to be worse."""
        self.say(
            (key, budget, "plain"),
            "%d plain steps are made: an instant plan with as many of %d steps was farther from "
            "the full run on %s; %s",
            budget, run.steps, measured_on(clip=makes_clips(run)), advice,
        )  # fmt: skip
        plan = plain_plan(run.times, budget, breaks=run.breaks)
        return plan.model_copy(update={"origin": run.origin})

    def _instant_near(
        self, run: RunSignature, key: str, goal: QualityGoal, advice: str
    ) -> Plan | None:
        """Return an instant plan for a quality, or say why all steps are made.

        What fits have not reached is not believed of a table.
        """
        in_vain = self._is_in_vain(run, key, goal)
        plan = None if in_vain else quality_choice(goal, run, self.store).instant
        if plan is None:
            self.say(
                (key, goal, "full"), "this run makes all of its %d steps: %s; %s",
                run.steps, full_reason(goal, run.steps), "ask for less" if in_vain else advice,
            )  # fmt: skip
        return plan

    def _learned(
        self, run: RunSignature, key: str, budget: Budget, source: Source
    ) -> Choice | None:
        """Return full steps to learn from, or a plan that was learned; None where neither is."""
        if key in self._given_up or self._is_in_vain(run, key, budget):
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
                    "another process or pipeline learns this setting, one at a time: nothing is "
                    "learned here until its plan is there",
                )
                return None
        except StorageError as error:
            self._give_up(key, f"{error}. Nothing is learned")
            return None
        plan = self._stored(run, key, budget)  # another process may just have learned it
        plan = plan or self._taught(run, key, budget, source)
        if plan is not None or key in self._given_up or (key, budget) in self._in_vain:
            return None if plan is None else Choice(plan)
        self.say(
            (key, "learning"),
            "the first %d samples of this setting run in full, and a plan %s is learned from them "
            "(%d are there)", self.options.learn, _named(budget), learning.count(),
        )  # fmt: skip
        done = functools.partial(self._taught, run, key, budget, source)
        return Choice(
            record=RunRecord(learning, self.options.learn, run.times, source.call_of, done)
        )

    def _is_in_vain(self, run: RunSignature, key: str, budget: Budget) -> bool:
        """Return whether fits have missed a quality, those of this process or those stored.

        These stay when a search has ended, so that the next process does not repeat it.
        """
        if isinstance(budget, QualityGoal) and is_missed(budget, run, self.store):
            self._in_vain.add((key, budget))
        return (key, budget) in self._in_vain

    def _taught(self, run: RunSignature, key: str, budget: Budget, source: Source) -> Plan | None:
        """Return the plan that the kept samples teach, once there are enough of them."""
        learning = self._learnings.get(key)
        if learning is None:  # closed meanwhile
            return None
        try:
            with self._taking_turns, untouched_generators():
                self._prove(learning, source)
                if learning.count() >= self.options.learn:
                    return self._fit(run, key, budget, learning, source)
        except StorageError as error:
            self._give_up(key, f"{error}. Nothing is learned")
        except TACacheError as error:
            learning.forget()
            self._give_up(key, f"nothing can be learned from these calls: {error}")
        except Exception as error:  # whatever it is, the call goes on
            self._give_up(
                key,
                f"the fit failed ({type(error).__name__}: {error}). The samples are kept, and the "
                "next process tries again",
            )
        return None

    def give_up(self, run: RunSignature, reason: str) -> None:
        """Learn no more from this setting: what is said once."""
        self._give_up(run.key, f"{reason}. Nothing is learned from this setting")

    def _give_up(self, key: str, text: str) -> None:
        self._given_up.add(key)
        self._let_go(key)
        self.say((key, text), "%s", text)

    def _let_go(self, key: str) -> None:
        """Let another process learn this setting."""
        learning = self._learnings.pop(key, None)
        if learning is not None:
            learning.end()

    def _prove(self, learning: Learning, source: Source) -> None:
        """See for each kind of kept call whether it gives the same velocities again.

        A call that equals another one is tried as well: both may be runs of a single call, of which
        only the first is made again.
        """
        for sample in learning.unseen():
            kind, whole = frozenset(sample.call), digest(sample.call)
            if kind not in self._proven or whole in self._calls:
                host, call = source.host([sample])
                check_repeats(host, call, sample)
            self._proven.add(kind)
            self._calls.add(whole)

    def _fit(
        self, run: RunSignature, key: str, budget: Budget, learning: Learning, source: Source
    ) -> Plan | None:
        """Fit plans to the kept samples, store them, and delete these; None if files are damaged.

        Where a quality is asked for, all budgets that were tried are stored: each has a certificate
        of its own. The plan that reaches it is returned, or None where none does.
        """
        samples = learning.samples()[: self.options.learn]
        if len(samples) < self.options.learn:
            return None
        host, call = source.host(samples)
        told = cost_of(samples, run, budget)
        self._logger.warning(
            "%d samples are recorded: a plan %s is fitted to them now, and this call waits for it. "
            "%s", len(samples), _named(budget), told,
        )  # fmt: skip
        plans = fit_kept(host, call, run, budget, samples, learning.resume)
        try:
            names = {stored.plan.evaluations: stored.name for stored in map(self.store.put, plans)}
        except StorageError as error:
            names, unsaved = {}, f"not stored, so it is gone with this process ({error})"
        else:
            learning.forget()
        self._let_go(key)
        try:
            plan = chosen_plan(plans, kept_options(budget, len(samples), run))
        except PlanError as error:
            self._in_vain.add((key, budget))
            self._logger.warning("%s", error)
            return None
        if names:
            name = f"stored as {names[plan.evaluations]}"
        else:
            self._fitted[key, budget], name = plan, unsaved
        self._logger.warning("the plan is fitted and %s: %s", name, known_of(plan))
        return plan


def _named(budget: Budget) -> str:
    """Return what a plan is fitted for, in words."""
    if isinstance(budget, QualityGoal):
        return f"for {budget.words}, with the fewest evaluations,"
    return f"with {counted(budget, 'evaluation')}"


def _is_known_to_lose(run: RunSignature, evaluations: int) -> bool:
    """Return whether as many plain steps are nearer: measured of one latent in Euler's steps."""
    by_euler = run.origin.scheduler_config is None or not (
        run.origin.scheduler_config.keys() & set(SOLVER_OPTIONS)
    )
    is_measured = by_euler and not run.latents
    return is_measured and loses_to_plain_steps(run.steps, evaluations, clip=makes_clips(run))


def advice_for(source: Source, learns: bool) -> str:
    """Return what makes a better plan than an instant one for calls like this, in a clause."""
    fitting = "fit_plan (tacache fit) makes a plan for this model"
    return fitting if learns or source.refusal() else f"learn=8 (--learn 8) or {fitting}"


def known_of(plan: Plan) -> str:
    """Return what is known of a stored plan's fidelity, in words."""
    known = plan.certificate
    budget = f"{counted(plan.evaluations, 'evaluation')} of {plan.full_steps} steps"
    if known is None:
        return f"{budget}; its fidelity was not measured"
    tail = "" if known.p5_psnr is None else f" (5th percentile {known.p5_psnr:.1f})"
    near = [] if known.psnr is None else [f"{known.psnr:.1f} dB PSNR{tail}"]
    near.append(f"{known.drift:.2g} of drift in the latents")
    said = f"{budget}; its certificate has {' and '.join(near)} to the full run"
    held = f"{said}, over {counted(known.held_out, 'held-out sample')}"
    if known.equivalent_steps is None:
        return held
    return f"{held}, and it is as near to the flow as {known.equivalent_steps:.0f} Euler steps"
