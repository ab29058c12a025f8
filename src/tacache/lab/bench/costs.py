"""Floating-point operations of a pipeline's calls, counted once and multiplied by evaluations."""

import functools
from typing import NamedTuple

from tacache.lab.bench.seam import Calls
from tacache.lab.cost import count_flops
from tacache.prompts import Sample

SHORT, LONG = 2, 3  # steps; one more evaluation apart (Mochi cannot count to one)


class CallFlops(NamedTuple):
    """Of one guided evaluation, and of all that comes before and after the loop."""

    evaluation: int
    around: int

    def of(self, evaluations: float) -> int:
        """Those of a call with so many evaluations, or work that amounts to them."""
        return self.around + round(evaluations * self.evaluation)


def call_flops(caller: Calls, subject: Sample) -> CallFlops | None:
    """From two short calls; None where they cannot be told apart (compiled code is not seen)."""
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
