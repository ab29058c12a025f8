"""Which plan a call follows: the one given, a stored one, an instant one, or none while it learns.

A host asks at the beginning of each run, when its size and steps are known, and says what it is.
"""

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tacache.errors import StorageError, TACacheError
from tacache.host.interface import Call, Host
from tacache.host.learning import Kept, Learning, RunRecord
from tacache.host.settings import Setting, fits, key_of
from tacache.host.teaching import check_repeats, cost_of, fit_kept, untouched_generators
from tacache.host.wish import Wish
from tacache.instant import instant_plan
from tacache.plan import Plan
from tacache.storage.store import PlanStore

FEWEST_STEPS = 12  # of a run that is accelerated: distilled models make fewer


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
        self._folder = self.store.folder / "learning"
        self._said: set[object] = set()
        self._learnings: dict[str, Learning] = {}
        self._given_up: set[str] = set()
        self._proven: set[frozenset[str]] = set()  # the arguments of calls that repeat
        self._fitted: dict[tuple[str, int], Plan] = {}  # that the store could not take

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
            if found is not None:
                return Choice(found)
            taught = self._learned(run, key, evaluations, source) if self.wish.learn else None
            return taught or Choice(self._instant(run, key, evaluations))

    def close(self) -> None:
        """Let other processes learn; what is kept stays for later."""
        for key in list(self._learnings):
            self._let_go(key)

    def _stored(self, run: Setting, key: str, evaluations: int) -> Plan | None:
        near = self.wish.near(evaluations, run.steps)
        stored = (self.store.find(run.origin, run.times, k, run.breaks) for k in near)
        found = next((one for one in stored if one is not None), None)
        if found is None:
            return self._fitted.get((key, evaluations))
        self._let_go(key)
        self.say(
            (key, evaluations, found.name),
            "the stored plan %s is followed: %s", found.name, known_of(found.plan),
        )  # fmt: skip
        if self.wish.learn:
            Learning(self._folder / key).clear()
        return found.plan

    def _instant(self, run: Setting, key: str, evaluations: int) -> Plan:
        plan = instant_plan(run.times, evaluations, breaks=run.breaks)
        self.say(
            (key, evaluations, "instant"),
            "an instant plan is followed: %d of %d steps are evaluated, and its fidelity on this "
            "model is not known; %sfit_plan (`tacache fit`) makes a better one", evaluations,
            run.steps, "" if self.wish.learn else "accelerate(..., learn=8) or ",
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
                    "another process or pipeline learns this setting, one at a time: an instant "
                    "plan is followed until its plan is there",
                )
                return None
        except StorageError as error:
            self._give_up(key, f"{error}. Nothing is learned")
            return None
        plan = self._stored(run, key, evaluations)  # another process may just have learned it
        plan = plan or self._taught(run, key, evaluations, source)
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

    def give_up(self, run: Setting, reason: str) -> None:
        """Learn no more from this setting: what is said once."""
        self._give_up(key_of(run), f"{reason}. Nothing is learned from this setting")

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
        try:
            name = f"stored as {self.store.put(plan).name}"
        except StorageError as error:
            self._fitted[key, evaluations] = plan
            name = f"not stored, so it is gone with this process ({error})"
        else:
            learning.forget()
        self._let_go(key)
        self._logger.warning("the plan is fitted and %s: %s", name, known_of(plan))
        return plan


def known_of(plan: Plan) -> str:
    """What is known of a stored plan's fidelity, in words."""
    budget, known = f"{plan.evaluations} of {plan.steps} steps are evaluated", plan.certificate
    if known is None:
        return f"{budget}, and its fidelity was not measured"
    near = [] if known.psnr is None else [f"{known.psnr:.1f} dB PSNR"]
    near.append(f"{known.drift:.2g} of drift in the latents")
    held = [f"{known.held_out} held out", known.nearness(plan.evaluations)]
    return f"{budget}, {' and '.join(near)} from the full run ({'; '.join(filter(None, held))})"
