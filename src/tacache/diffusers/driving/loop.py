"""The loop of a driven pipeline: where its thread and its caller meet, and its timesteps."""

import queue
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.errors import HostError


class Held(NamedTuple):
    """A loop that waits in its scheduler's `step`, with what the pipeline gave it."""

    v: Tensor
    x: Tensor
    options: dict[str, Any]
    negated: bool  # the scheduler counts time the other way

    @property
    def velocity(self) -> Tensor:
        """A copy of v, in our sign."""
        return -self.v if self.negated else self.v.clone()


class NextStep(NamedTuple):
    """Go on at step n from state x; n is the number of steps where the loop shall end."""

    x: Tensor
    n: int


class Returned(NamedTuple):
    """The pipeline's call is over."""

    output: Any


class Failed(NamedTuple):
    """The pipeline's call has raised."""

    error: BaseException


class Abandoned(BaseException):
    """Ends a pipeline's call from within; an `except Exception` does not catch it."""


class Loop:
    """The pipeline's loop as both threads know it, and the two queues between them."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[NextStep | None] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Held | Returned | Failed] = queue.SimpleQueue()
        self.start = self.steps = 0
        self.seen: tuple[dict[str, Any], tuple[float, ...]] = {}, ()  # the call and its breaks
        self.ahead = 0  # how much further than i + 1 the step lies that comes next
        self._turn: int | None = None
        self._next: int | None = None

    def enumerate(self, items: Iterable[Any], start: int = 0) -> Iterable[tuple[int, Any]]:
        """`enumerate`, which yields the loop's timesteps in the order they are asked for."""
        items = getattr(items, "iterable", items)  # a progress bar
        return self.turns(items) if isinstance(items, LoopTimesteps) else enumerate(items, start)

    def turns(self, timesteps: "LoopTimesteps") -> Iterator[tuple[int, Tensor]]:
        """One turn of the loop per request, from step 0 on."""
        if self.steps:
            raise HostError(
                "the pipeline walks through its steps more than once a call: it has no one state "
                "to be driven by"
            )
        self.start, self.steps = timesteps.start, len(timesteps)
        n = 0
        while n < self.steps:
            self.ahead, self._turn, self._next = 0, n, None
            yield n, timesteps[n]
            if self._next is None:
                raise HostError("the pipeline's loop went on without a step of its scheduler")
            n = self._next
        self.ahead, self._turn = 0, None

    def hold(self, held: Held) -> NextStep:
        """Hand the velocity over and wait for what comes next."""
        if self._turn is None:
            raise HostError(
                "the pipeline does not loop over its scheduler's timesteps in its own __call__: "
                "it cannot be driven"
            )
        if self._next is not None:
            raise HostError("the pipeline calls its scheduler's step twice in a turn of its loop")
        self.replies.put(held)
        request = self.requests.get()
        if request is None:
            raise Abandoned
        self._next, self.ahead = request.n, request.n - self._turn - 1
        return request


class LoopTimesteps(Tensor):
    """The timesteps of a run, as its pipeline sees them.

    After `step`, index i + 1 is that of the step which comes next, whichever it is, and lies beyond
    the end where none does: inpainting puts its known part back at the level of timesteps[i + 1].
    """

    # operations give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    loop: Loop
    start: int

    @staticmethod
    def of(timesteps: Tensor, loop: Loop, start: int = 0) -> "LoopTimesteps":
        """`timesteps`, which are the run's from step `start` on, for this loop."""
        view = timesteps.as_subclass(LoopTimesteps)
        view.loop, view.start = loop, start
        return view

    @property
    def plain(self) -> Tensor:
        """The same as a tensor like any other."""
        return self.as_subclass(Tensor)

    def __len__(self) -> int:
        return len(self.plain) - self.loop.ahead

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int) and index >= 0:
            return self.plain[index + self.loop.ahead]
        found = self.plain[index]
        if isinstance(index, slice) and index.step in (None, 1):
            first = index.indices(len(self.plain))[0]
            return LoopTimesteps.of(found, self.loop, self.start + first)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain.clone()
