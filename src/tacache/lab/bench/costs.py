"""Floating-point operations of a pipeline's calls, counted once and multiplied by evaluations."""

import functools
from typing import NamedTuple

from tacache.lab.bench.seam import Calls
from tacache.lab.cost import count_flops
from tacache.prompts import Sample

SHORT, LONG = 2, 3  # steps; one more evaluation apart (Mochi cannot count to one)


class CallFlops(NamedTuple):
    """The operations of one guided evaluation, and of all that comes before and after the loop."""

    evaluation: int
    around: int

    def of(self, evaluations: float) -> int:
        """The operations of a call with so many evaluations, or with equivalent work."""
        return self.around + round(evaluations * self.evaluation)


def call_flops(caller: Calls, subject: Sample) -> CallFlops | None:
    """Count two short calls that differ in their steps.

    The result is None where their counts do not differ: torch does not see compiled code.
    """
    # in this thread: the counter sees no other
    short, longer = (
        count_flops(functools.partial(caller.plain_call, subject, steps)) for steps in (SHORT, LONG)
    )
    few, more = (caller.amount(caller.grid(steps)[:-1]) for steps in (SHORT, LONG))
    if longer <= short or more <= few:
        return None
    evaluation = round((longer - short) / (more - few))
    around = short - round(few * evaluation)
    return CallFlops(evaluation, around) if around >= 0 else None
