"""Requests: calls of a pipeline on their way, and the evaluations that they wait for."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from tacache.errors import TACacheError
from tacache.serving.costs import Shape, size_of
from tacache.serving.joining import JoinableCall

Adapters = tuple[tuple[str, float], ...]  # names and weights of LoRA
DEFAULT_STEPS = 50  # of a call that does not say how many


class Cancelled(TACacheError):  # noqa: N818 - not a mistake of anybody
    """The request was cancelled before it was finished."""


class GenerationRequest:
    """One call of the pipeline on its way: what it still needs, its result, and how to stop it."""

    def __init__(
        self, pipe: Any, call: dict[str, Any], adapters: Adapters | None, number: int = 0
    ) -> None:
        self.pipe, self.call, self.adapters = pipe, call, adapters
        self.number = number  # in the order in which requests came
        self.size = size_of(call)
        self.is_cancelled = False
        self.calls = 0  # of the denoiser in the first evaluation: one, or two with two branches
        self.answers = 0  # of the denoiser so far, where the device has made them
        self.rows = 1
        self.started: float | None = None  # when its call began, by time.monotonic()
        self.first_asked: float | None = None  # when it came to its first evaluation
        self.answered: float | None = None  # when it last had an evaluation, or its picture
        plan = getattr(pipe.scheduler, "plan", None)
        steps = call.get("num_inference_steps", DEFAULT_STEPS)
        self._left = int(steps if plan is None else plan.evaluations)
        self._future: Future[Any] = Future()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the pipeline's call returned, and return it or raise its error."""
        return self._future.result(timeout)

    @property
    def is_done(self) -> bool:
        """Return whether it has a result, has failed, or was cancelled."""
        return self._future.done()

    def when_done(self, function: Callable[["GenerationRequest"], None]) -> None:
        """Call the function once the request is done, with it."""
        self._future.add_done_callback(lambda _: function(self))

    @property
    def evaluated(self) -> int:
        """Return how many evaluations were made."""
        seen = self._seen()
        return 0 if seen is None else seen[0]

    @property
    def remaining(self) -> int:
        """Return how many evaluations are still to be made: exact, since the plan says it.

        A request that was cancelled needs none, also while its call has not noticed yet.
        """
        if self.is_done or self.is_cancelled:
            return 0
        seen = self._seen()
        if seen is not None:
            self._left = min(self._left, max(0, seen[1] - seen[0]))
        return self._left

    @property
    def comes_back(self) -> bool:
        """Return whether it will ask for a further evaluation."""
        return self.remaining > 0

    def _seen(self) -> tuple[int, int] | None:
        """Return the evaluations made and those of the whole run, by its scheduler; None before it.

        The run is looked at from other threads, so also in the middle of a step.
        """
        if self.first_asked is None:  # what the scheduler has may be of an earlier run
            return None
        scheduler = self.pipe.scheduler
        if getattr(scheduler, "plan", None) is not None:
            evaluations: tuple[int, int] | None = scheduler.evaluations
            return evaluations
        first = int(getattr(scheduler, "begin_index", 0) or 0)
        index = getattr(scheduler, "step_index", None)
        return 0 if index is None else int(index) - first, len(scheduler.timesteps) - first

    def shape(self, usual: Shape) -> Shape:
        """Return how it evaluates the model: as seen in its first evaluation, before as usual."""
        return Shape(max(1, self.calls), self.rows) if self.evaluated else usual

    def calls_left(self, calls: int) -> int:
        """Return calls of the denoiser still to be made, at so many an evaluation."""
        return max(0, (self.evaluated + self.remaining) * calls - self.answers)

    def preparing(self, usually: float) -> float:
        """Return seconds until it makes its first call of the denoiser, as requests usually do."""
        if self.first_asked is not None:
            return 0.0
        since = 0.0 if self.started is None else time.monotonic() - self.started
        return max(0.0, usually - since)


@dataclass(eq=False)
class EvaluationRequest:
    """One call of a shared network that a generation request waits for."""

    call: JoinableCall
    generation: GenerationRequest
    kind: Literal["evaluation", "decoding", "other"] = "other"
    since: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def answer(self, result: Any = None, error: BaseException | None = None) -> None:
        """Let the generation request go on, with a result or an error."""
        self.result, self.error = result, error
        self.generation.answered = time.monotonic()
        self.done.set()
