"""The setting of a run: what must agree for a plan to be for it."""

import hashlib
from typing import NamedTuple

from tacache.grid import break_steps
from tacache.plan import Plan
from tacache.profile import Origin
from tacache.storage.store import setting


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


def fits(plan: Plan, run: Setting) -> bool:
    """Whether a plan that the user gave can be followed on this run's number of steps."""
    return plan.rule != "fitted" or plan.steps in (run.steps, run.whole or run.steps)


def key_of(run: Setting) -> str:
    """A name for the setting of a run, which differs where a plan for one is not for the other."""
    text = setting(run.origin, run.times, run.breaks)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
