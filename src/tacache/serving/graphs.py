"""CUDA graphs of calls: where launching kernels takes longer than running them, replays are faster.

A small model, or a large one at a small size, waits for its kernels to be launched one by one. A
graph launches all of them at once: the same kernels on the same numbers.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacache.serving.joining import is_close, mapped

logger = logging.getLogger("tacache.serving")
EARLY = 3  # calls of a shape that are made as they are: to capture one takes as long as many
LAUNCH_BOUND = 0.6  # of a call's time: from where on launching is what takes it
MOST = 128  # graphs that are kept


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


class Graphs:
    """Makes calls through graphs where that helps, and as they are elsewhere.

    A call is captured after a few of its kind and rows, if such calls with as many rows or more
    were seen to be bound by launching. What cannot be captured, or differs when it is replayed, is
    called as it is.
    """

    def __init__(self) -> None:
        self.is_on = torch.cuda.is_available()
        self._graphs: dict[Hashable, Graph | None] = {}  # by kind and rows; None: as it is
        self._bound: dict[Hashable, int] = {}  # the most rows that were bound by launching
        self._seen: Counter[Hashable] = Counter()
        self._pool: Any = None  # memory that all graphs share: one runs at a time

    def call(
        self, function: Callable[..., Any], arguments: dict[str, Any], kind: Hashable, rows: int
    ) -> Any:
        """What the function returns; `kind` and `rows` tell calls apart that differ in shape."""
        key = (kind, rows)
        graph = self._graphs.get(key)
        if graph is not None:
            return graph(arguments)
        if kind is None or not self.is_on or key in self._graphs or not on_cuda(arguments):
            return function(**arguments)
        self._seen[key] += 1
        is_bound = rows <= self._bound.get(kind, 0)
        if self._seen[key] > EARLY and is_bound:
            return self._first(function, arguments, key)
        if self._seen[key] < EARLY or is_bound:
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
        result = function(**arguments)
        self._graphs[key] = None
        if sum(one is not None for one in self._graphs.values()) >= MOST:
            return result
        try:
            graph = self._captured(function, arguments)
            replayed = graph(arguments)
        except Exception as error:  # whatever a network does that no graph can hold
            torch.cuda.synchronize()
            logger.info("a call is made without a CUDA graph: %s", error)
            return result
        if is_close(replayed, result):
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


def on_cuda(arguments: dict[str, Any]) -> bool:
    """Whether all tensors of a call lie on a GPU, and none is hidden inside another argument."""
    if any(isinstance(one, list | tuple | dict) and one for one in arguments.values()):
        return False
    return all(one.is_cuda for one in arguments.values() if isinstance(one, Tensor))
