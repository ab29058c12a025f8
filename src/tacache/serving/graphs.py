"""CUDA graphs of calls: where launching kernels takes longer than running them, replays are faster.

A small model, or a large one at a small size, waits for its kernels to be launched one by one. A
graph launches all of them at once: the same kernels on the same numbers. It reads weights where
they lay when it was captured, so the weights of a network may not be replaced while it is used.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tacache.serving.joining import is_close, mapped

logger = logging.getLogger("tacache.serving")
EARLY = 3  # calls of a shape before one is timed, since the first ones take longer
RARE = 1  # calls of a shape before it is captured: to capture one takes as long as many calls
LAUNCH_BOUND = 0.6  # of a call's time: from where on launching is what takes it
MOST = 128  # graphs that are kept
# operations that wait for the device, or draw random numbers: no graph can hold them
UNSUITED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "rand", "bernoulli",
            "dropout", "normal_", "uniform_", "multinomial")  # fmt: skip


@dataclass
class Graph:
    """A captured call: its inputs and outputs lie where the graph reads and writes them."""

    graph: Any
    inputs: dict[str, Tensor]
    output: Any

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """What the call returns for these arguments, in tensors of its own."""
        for name, held in self.inputs.items():
            held.copy_(arguments[name])
        self.graph.replay()
        return mapped(self.output, Tensor.clone)

    def repeats(self, result: Any, arguments: dict[str, Any]) -> bool:
        """Whether a replay gives this result, and not what the capture left behind."""
        mapped(self.output, lambda one: one.fill_(float("nan")))
        return is_close(self(arguments), result)


class Graphs:
    """Makes calls through graphs where that helps, and as they are elsewhere.

    A call is captured when one of its kind and rows comes again, if such calls with as many rows or
    more were seen to be bound by launching. What cannot be captured, or differs when it is
    replayed, is called as it is.
    """

    def __init__(self) -> None:
        self.is_on = torch.cuda.is_available()
        self._graphs: dict[Hashable, Graph | None] = {}  # by kind and rows; None: as it is
        self._bound: dict[Hashable, int] = {}  # the most rows that were bound by launching
        self._seen: Counter[Hashable] = Counter()
        self._pool: Any = None  # memory that all graphs share: one runs at a time

    def __len__(self) -> int:
        return sum(one is not None for one in self._graphs.values())

    def call(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """What the function returns; `kind` and `rows` tell calls apart that differ in shape."""
        key = (kind, rows)
        device = device_of(arguments) if self.is_on and is_plain(function) else None
        if device is None:
            return function(**arguments)
        with torch.cuda.device(device):
            graph = self._graphs.get(key)
            if graph is not None:
                return graph(arguments)
            if key in self._graphs:
                return function(**arguments)
            return self._early(function, arguments, kind, rows)

    def clear(self) -> bool:
        """Give up all graphs and their memory; whether there were any."""
        had = len(self) > 0
        self._graphs = dict.fromkeys(self._graphs)
        self._pool = None
        return had

    def _early(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """One of the first calls of its kind and rows."""
        self._seen[kind, rows] += 1
        seen, is_bound = self._seen[kind, rows], rows <= self._bound.get(kind, 0)
        if is_bound and seen > RARE:
            return self._first(function, arguments, (kind, rows))
        if is_bound or seen < EARLY:
            return function(**arguments)
        return self._timed(function, arguments, kind, rows)

    def _timed(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """The call as it is, seen whether launching is what takes its time."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = function(**arguments)
        launched = time.perf_counter() - started
        torch.cuda.synchronize()
        if launched >= LAUNCH_BOUND * (time.perf_counter() - started):
            self._bound[kind] = max(rows, self._bound.get(kind, 0))
        else:
            self._graphs[kind, rows] = None
        return result

    def _first(self, function: Callable[..., Any], arguments: dict[str, Any], key: Hashable) -> Any:
        """The call as it is, and a graph of it for the next ones, if that gives the same."""
        self._graphs[key] = None
        with Watching() as watching:
            result = function(**arguments)
        if watching.unsuited or len(self) >= MOST:
            logger.info("a call is made without a CUDA graph: %s", watching.unsuited or "enough")
            return result
        stream, generator = torch.cuda.current_stream(), default_generator()
        state = generator.clone_state()
        try:
            graph = self._captured(function, arguments)
            is_right = graph.repeats(result, arguments)
        except Exception as error:  # whatever a network does that no graph can hold
            # a capture that fails puts neither back: whoever draws random numbers would fail, too
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(state)
            torch.cuda.synchronize()
            self.clear()
            self.is_on = False
            logger.warning("CUDA graphs are not used any more: %s", error)
            return result
        if is_right:
            self._graphs[key] = graph
        else:
            logger.warning("a CUDA graph of a call differs from it, and is not used")
        return result

    def _captured(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Graph:
        tensors = {name: one for name, one in arguments.items() if isinstance(one, Tensor)}
        inputs = {name: one.clone() for name, one in tensors.items()}
        given = {**arguments, **inputs}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            function(**given)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # requests in other threads use the device meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = function(**given)
        return Graph(graph, inputs, output)


class Watching(TorchDispatchMode):
    """Notes an operation of this thread that no graph can hold."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unsuited = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the operation gives."""
        result = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2]
        if name.startswith(UNSUITED) or _crosses(args, result):
            self.unsuited = self.unsuited or name
        return result


def _crosses(args: Any, result: Any) -> bool:
    """Whether an operation carries a tensor from the processor to a GPU, or back."""
    given = [one for one in args if isinstance(one, Tensor)]
    if not given or not isinstance(result, Tensor):
        return False
    if result is given[0] and len(given) > 1 and given[1].dim() > 0:  # such as copy_
        return given[0].is_cuda != given[1].is_cuda
    return any(one.is_cuda for one in given) != result.is_cuda


def default_generator() -> torch.Generator:
    """What draws the random numbers of the current GPU for all who bring no generator."""
    found: torch.Generator = torch.cuda.default_generators[torch.cuda.current_device()]
    return found


def is_plain(function: Callable[..., Any]) -> bool:
    """Whether a network is as it was made: not compiled, and without adapters that may change."""
    network = getattr(function, "__self__", None)
    compiled = getattr(network, "_compiled_call_impl", None) is not None
    return not (compiled or hasattr(network, "_orig_mod") or getattr(network, "peft_config", None))


def device_of(arguments: dict[str, Any]) -> torch.device | None:
    """The GPU where all tensors of a call lie; None where one is elsewhere, or inside another."""
    if any(isinstance(one, list | tuple | dict) and one for one in arguments.values()):
        return None
    found = {one.device for one in arguments.values() if isinstance(one, Tensor)}
    device = next(iter(found), None)
    return device if len(found) == 1 and device is not None and device.type == "cuda" else None
