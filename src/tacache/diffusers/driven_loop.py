"""The loop of a driven pipeline: where its thread and its caller meet, and its timesteps."""

import queue
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.diffusers.hooks import ShownTimesteps
from tacache.errors import HostError
from tacache.fitting.latents import Latent, Latents


class HeldStep(NamedTuple):
    """A loop that waits in its scheduler's `step`, with what the pipeline gave it."""

    v: Tensor
    x: Tensor
    options: dict[str, Any]
    factor: float  # of a velocity of ours
    latent: Latent | None = None  # of a joint model, before it is known where it lies in a state

    @property
    def velocity(self) -> Tensor:
        """Return a copy of v, noise minus data."""
        return self.v.clone() if self.factor == 1 else self.v * self.factor


class JointHeldStep(NamedTuple):
    """The same of a joint model, in the step of its last latent: one state and velocity of all."""

    each: tuple[HeldStep, ...]
    latents: Latents
    x: Tensor
    v: Tensor

    @classmethod
    def of(cls, each: Sequence[HeldStep]) -> "JointHeldStep":
        """Return what these latents give together, one sample a row."""
        latents, start = [], 0
        for held in each:
            assert held.latent is not None
            stop = start + held.x.numel()
            latents.append(held.latent._replace(start=start, stop=stop))
            start = stop
        x, v = (
            torch.cat([part.reshape(1, -1) for part in parts], dim=1)
            for parts in ([held.x for held in each], [held.velocity for held in each])
        )
        return cls(tuple(each), tuple(latents), x, v)

    @property
    def velocity(self) -> Tensor:
        """Return a copy of v, which is noise minus data already."""
        return self.v.clone()


AnyHeldStep = HeldStep | JointHeldStep


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

    def __init__(self, writes_back: bool = False) -> None:
        self.requests: queue.SimpleQueue[NextStep | None] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[AnyHeldStep | Returned | Failed] = queue.SimpleQueue()
        self.start = self.steps = 0
        self.seen: tuple[dict[str, Any], tuple[float, ...]] = {}, ()  # the call and its breaks
        self.names: dict[int, str | None] = {}  # the latents that schedulers step
        self.ahead = 0  # how much further than i + 1 the step lies that comes next
        self.beside: set[int] = set()  # the schedulers that step further latents in this call
        self._waiting: list[tuple[HeldStep, list[Tensor]]] = []  # the latents of a turn so far
        self._writes_back = writes_back  # the loop copies a step's result into what was stepped
        self._turn: int | None = None
        self._next: int | None = None

    def enumerate(self, items: Iterable[Any], start: int = 0) -> Iterable[tuple[int, Any]]:
        """Yield as `enumerate` does, the loop's timesteps in the order they are asked for."""
        items = getattr(items, "iterable", items)  # a progress bar
        return self.turns(items) if isinstance(items, LoopTimesteps) else enumerate(items, start)

    def turns(self, timesteps: "LoopTimesteps") -> Iterator[tuple[int, Tensor]]:
        """Yield one turn of the loop per request, from step 0 on."""
        if self.steps:
            raise HostError(
                "the pipeline walks through its steps more than once a call: it has no one state "
                "to be driven by"
            )
        self.start, self.steps = timesteps.start, len(timesteps)
        n = 0
        while n < self.steps:
            self.ahead, self._turn, self._next, self._waiting = 0, n, None, []
            yield n, timesteps[n]
            if self._next is None:
                raise HostError("the pipeline's loop went on without a step of its scheduler")
            n = self._next
        self.ahead, self._turn = 0, None

    def hold(self, held: HeldStep, x: Tensor) -> Tensor:
        """Hand the velocity over, wait for what comes next, and return its state.

        Of a joint model all latents are handed over in the step of the last one. Those before it
        get a tensor that is filled then, which is before the model sees it.
        """
        if self._turn is None:
            raise HostError(
                "the pipeline does not loop over its scheduler's timesteps in its own __call__: "
                "it cannot be driven"
            )
        if self._next is not None:
            raise HostError("the pipeline calls its scheduler's step twice in a turn of its loop")
        if not self.beside:
            return self._asked(held, self._turn).x
        result = torch.empty_like(held.x, dtype=held.v.dtype)
        self._waiting.append((held, [result, x] if self._writes_back else [result]))
        if len(self._waiting) > len(self.beside):
            whole = JointHeldStep.of([held for held, _ in self._waiting])
            state = self._asked(whole, self._turn).x
            for (_, shown), latent in zip(self._waiting, whole.latents, strict=True):
                for tensor in shown:
                    tensor.copy_(state[latent.place].reshape(tensor.shape))
        return result

    @property
    def next_index(self) -> int:
        """Return the index of the step that comes next, as far as that is known."""
        now = self._turn if self._next is None else self._next
        return self.start + (now or 0)

    def _asked(self, held: AnyHeldStep, turn: int) -> NextStep:
        """Hand this over and return what is asked for next."""
        self.replies.put(held)
        request = self.requests.get()
        if request is None:
            raise Abandoned
        self._next, self.ahead = request.n, request.n - turn - 1
        return request


class LoopTimesteps(ShownTimesteps):
    """The timesteps of a run, as its pipeline sees them.

    After `step`, index i + 1 is that of the step which comes next, whichever it is, and lies beyond
    the end where none does: inpainting puts its known part back at the level of timesteps[i + 1].
    """

    loop: Loop
    start = 0

    def __len__(self) -> int:
        return len(self.plain) - self.loop.ahead

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int) and index >= 0:
            return self.plain[index + self.loop.ahead]
        part = self.plain[index]
        if isinstance(index, slice) and index.step in (None, 1):
            first = index.indices(len(self.plain))[0]
            part = LoopTimesteps.of(part, loop=self.loop, start=self.start + first)
        return part
