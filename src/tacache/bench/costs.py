"""Floating-point operations of a pipeline's calls, counted once and multiplied by evaluations."""

import copy
from typing import Any, NamedTuple

from tacache.bench.calls import Caller, Subject
from tacache.cost import count_flops
from tacache.diffusers.host import plain_scheduler
from tacache.diffusers.runs import Run, run_arguments

SHORT, LONG = 2, 3  # steps; one more evaluation apart (Mochi cannot count to one)


class CallFlops(NamedTuple):
    """Of one guided evaluation, and of all that comes before and after the loop."""

    evaluation: int
    around: int

    def of(self, evaluations: float) -> int:
        """Those of a call with so many evaluations, or work that amounts to them."""
        return self.around + round(evaluations * self.evaluation)


def call_flops(caller: Caller, subject: Subject) -> CallFlops | None:
    """From two short calls; None where they cannot be told apart (compiled code is not seen)."""
    short, longer = (_flops_of_steps(caller, subject, steps) for steps in (SHORT, LONG))
    evaluation = longer - short
    around = short - SHORT * evaluation
    return CallFlops(evaluation, around) if evaluation > 0 and around >= 0 else None


def _flops_of_steps(caller: Caller, subject: Subject, steps: int) -> int:
    """The pipeline's own call, in this thread: the counter sees no other."""
    pipe: Any = copy.copy(caller.pipe)
    pipe.scheduler = copy.deepcopy(plain_scheduler(caller.pipe))
    pipe.set_progress_bar_config(disable=True)
    call = {**caller.call, "num_inference_steps": steps}
    arguments = run_arguments(Run((subject.prompt,), (subject.seed,)), call)
    return count_flops(lambda: pipe(**arguments))
