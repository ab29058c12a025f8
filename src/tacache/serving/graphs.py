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

from tacache.serving.joining import has_rows, is_close, mapped

logger = logging.getLogger("tacache.serving")
CALLS_BEFORE_TIMING = 3  # of a shape, since the first ones take longer
CALLS_WITHOUT_GRAPHS = 1000  # after memory ended with them, before they are captured again
LAUNCH_BOUND = 0.6  # of a call's time: from where on launching is what takes it
MAX_GRAPHS = 128  # that are kept
# operations that wait for the device, or draw random numbers: no graph can hold them
UNSUITED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "rand", "bernoulli",
            "dropout", "normal_", "uniform_", "multinomial")  # fmt: skip


@dataclass
class Graph:
    """A captured call: its inputs and outputs lie where the graph reads and writes them.

    It has as many rows as were captured or fewer: the others keep what was in them before.
    """

    graph: Any
    inputs: dict[str, Tensor]
    output: Any
    rows: int

    def __call__(self, arguments: dict[str, Any], rows: int) -> Any:
        """Return what the call gives for these arguments, in tensors of its own."""
        for name, buffer in self.inputs.items():
            value = arguments[name]
            (buffer if value.shape == buffer.shape else buffer[: len(value)]).copy_(value)
        self.graph.replay()
        return mapped(self.output, lambda tensor: first_rows(tensor, rows, self.rows))

    def repeats(self, result: Any, arguments: dict[str, Any], rows: int) -> bool:
        """Return whether a replay gives this result, and not what the capture left behind."""
        mapped(self.output, lambda tensor: tensor.fill_(float("nan")))
        return is_close(self(arguments, rows), result)


class Graphs:
    """Makes calls through graphs where that helps, and as they are elsewhere.

    A graph has one of few numbers of rows, and smaller calls leave its last rows unused: to capture
    one takes as long as many calls. A call is captured as soon as such calls with as many rows were
    seen to be bound by launching. What cannot be captured, or differs when it is replayed, is
    called as it is.
    """

    def __init__(self) -> None:
        self.is_on = torch.cuda.is_available()
        self.was_slow = False  # the last call: it was captured, or timed
        self._graphs: dict[Hashable, Graph | None] = {}  # by kind and rows; None: as it is
        self._bound: dict[Hashable, int] = {}  # the most rows that were bound by launching
        self._seen: Counter[Hashable] = Counter()
        self._pause = 0  # calls without graphs that are left, after memory ended with them
        self._pool: Any = None  # memory that all graphs share: one runs at a time

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def call(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """Return what the function gives; calls of one kind differ in nothing but their rows."""
        self.was_slow = False
        self._pause = max(0, self._pause - 1)
        device = device_of(arguments) if self.is_on and is_plain(function) else None
        if device is None or self._pause:
            return function(**arguments)
        key = (kind, padded(rows))
        with torch.cuda.device(device):
            graph = self._graphs.get(key)
            if graph is not None:
                return graph(arguments, rows)
            if key in self._graphs:
                return function(**arguments)
            return self._early(function, arguments, kind, rows)

    def clear(self) -> bool:
        """Give up all graphs and their memory for a while; return whether there were any."""
        had = len(self) > 0
        self._graphs = {key: None for key, graph in self._graphs.items() if graph is None}
        self._pool, self._pause = None, CALLS_WITHOUT_GRAPHS if had else self._pause
        return had

    def _early(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """Make one of the first calls of its kind and rows."""
        key = (kind, padded(rows))
        self._seen[key] += 1
        if rows <= self._bound.get(kind, 0):
            return self._first(function, arguments, key, rows)
        if self._seen[key] < CALLS_BEFORE_TIMING:
            return function(**arguments)
        return self._timed(function, arguments, key)

    def _timed(
        self, function: Callable[..., Any], arguments: dict[str, Any], key: tuple[Hashable, int]
    ) -> Any:
        """Make the call as it is, and see whether launching is what takes its time."""
        self.was_slow = True
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = function(**arguments)
        launched = time.perf_counter() - started
        torch.cuda.synchronize()
        if launched >= LAUNCH_BOUND * (time.perf_counter() - started):
            kind, rows = key
            self._bound[kind] = max(rows, self._bound.get(kind, 0))
        else:
            self._graphs[key] = None
        return result

    def _first(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        key: tuple[Hashable, int],
        rows: int,
    ) -> Any:
        """Make the call as it is, and a graph of it for the next ones, if that gives the same."""
        self._graphs[key], self.was_slow = None, True
        with Watching() as watching:
            result = function(**arguments)
        if watching.unsuited or len(self) >= MAX_GRAPHS:
            logger.info("a call is made without a CUDA graph: %s", watching.unsuited or "enough")
            return result
        stream, generator = torch.cuda.current_stream(), default_generator()
        state = generator.clone_state()
        try:
            graph = self._captured(function, arguments, rows, key[1])
            is_right = graph.repeats(result, arguments, rows)
        except Exception as error:  # whatever a network does that no graph can hold
            # a capture that fails puts neither back: whoever draws random numbers would fail, too
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(state)
            torch.cuda.synchronize()
            self.clear()
            self.is_on = isinstance(error, torch.OutOfMemoryError)
            del self._graphs[key]
            self._pause = CALLS_WITHOUT_GRAPHS
            logger.warning("CUDA graphs are not used %s: %s",
                           "for a while" if self.is_on else "any more", error)  # fmt: skip
            return result
        if is_right:
            self._graphs[key] = graph
        else:
            logger.warning("a CUDA graph of a call differs from it, and is not used")
        return result

    def _captured(
        self, function: Callable[..., Any], arguments: dict[str, Any], rows: int, graph_rows: int
    ) -> Graph:
        """Return a graph of a call with `graph_rows` rows, of which the call fills `rows`."""
        inputs = {
            name: with_rows(value, graph_rows) if has_rows(name, value, rows) else value.clone()
            for name, value in arguments.items()
            if isinstance(value, Tensor)
        }
        static_arguments = {**arguments, **inputs}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            function(**static_arguments)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # requests in other threads use the device meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = function(**static_arguments)
        return Graph(graph, inputs, output, graph_rows)


def padded(rows: int) -> int:
    """Return the rows of the graph that makes a call: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


def with_rows(value: Tensor, rows: int) -> Tensor:
    """Return a copy with so many rows; those that are added repeat the last one."""
    more = rows - len(value)
    return torch.cat([value, value[-1:].expand(more, *value.shape[1:])]) if more else value.clone()


def first_rows(value: Tensor, rows: int, graph_rows: int) -> Tensor:
    """Return a copy of what belongs to the first rows of a graph's output."""
    return value[:rows].clone() if value.dim() and len(value) == graph_rows else value.clone()


class Watching(TorchDispatchMode):
    """Notes an operation of this thread that no graph can hold."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unsuited = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the operation gives."""
        result = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2]
        if name.startswith(UNSUITED) or _crosses(args, result):
            self.unsuited = self.unsuited or name
        return result


def _crosses(args: Any, result: Any) -> bool:
    """Return whether an operation carries a tensor from the processor to a GPU, or back."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    if not tensors or not isinstance(result, Tensor):
        return False
    if result is tensors[0] and len(tensors) > 1 and tensors[1].dim() > 0:  # such as copy_
        return tensors[0].is_cuda != tensors[1].is_cuda
    return any(tensor.is_cuda for tensor in tensors) != result.is_cuda


def default_generator() -> torch.Generator:
    """Return what draws the random numbers of the current GPU for all who bring no generator."""
    generator: torch.Generator = torch.cuda.default_generators[torch.cuda.current_device()]
    return generator


def is_plain(function: Callable[..., Any]) -> bool:
    """Return whether a network is as it was made: neither compiled nor with adapters."""
    network = getattr(function, "__self__", None)
    compiled = getattr(network, "_compiled_call_impl", None) is not None
    return not (compiled or hasattr(network, "_orig_mod") or getattr(network, "peft_config", None))


def device_of(arguments: dict[str, Any]) -> torch.device | None:
    """Return the GPU where all tensors of a call lie; None where they do not."""
    if any(isinstance(value, list | tuple | dict) and value for value in arguments.values()):
        return None
    devices = {value.device for value in arguments.values() if isinstance(value, Tensor)}
    device = next(iter(devices), None)
    return device if len(devices) == 1 and device is not None and device.type == "cuda" else None
