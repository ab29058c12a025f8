"""`tacache` with the transformers and decoders of FLUX and Wan replayed from CUDA graphs.

A small model waits for its kernels to be launched one by one. A graph launches them at once: the
same kernels on the same numbers, several times sooner, so that studies of tiny models take minutes.

    torchrun --nproc-per-node 8 benchmarks/graphed.py bench tiny-wan --suite main -o r.jsonl

What a graph would not show runs as ever: caches and meters inside the model, counters of FLOPs,
anything off a GPU. Times and peak memory are those of the graphs.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

WARM_UP = 3  # calls before a graph is captured
# what their models are called with, in the order of their arguments
WAN = ("hidden_states", "timestep", "encoder_hidden_states")
FLUX = (
    "hidden_states",
    "encoder_hidden_states",
    "pooled_projections",
    "timestep",
    "img_ids",
    "txt_ids",
    "guidance",
)
Plain = Callable[..., tuple[Tensor, ...]]


class Replays:
    """The graphs of one method of a model's class, by model and by the shapes it is called with."""

    def __init__(self, plain: Plain) -> None:
        self.plain = plain
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor]] = {}

    def __call__(self, model: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
        """What the method returns for these tensors, in a tensor of its own."""
        shapes = ((name, tuple(value.shape), value.dtype) for name, value in tensors.items())
        key = (model, *shapes)
        if key not in self.graphs:
            self.graphs[key] = self._captured(model, tensors)
        graph, inputs, output = self.graphs[key]
        for name, value in tensors.items():
            inputs[name].copy_(value)
        graph.replay()
        return output.clone()

    def _captured(
        self, model: nn.Module, tensors: dict[str, Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor]:
        inputs = {name: value.clone() for name, value in tensors.items()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                wanted = self.plain(model, **inputs, return_dict=False)[0]
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # a pipeline's call has a thread of its own while others wait
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = self.plain(model, **inputs, return_dict=False)[0]
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(output, wanted):
            raise RuntimeError(f"the graph of {type(model).__name__} differs from the model")
        return graph, inputs, output


def replay(kind: type[nn.Module], method: str, tensors: tuple[str, ...]) -> None:
    """Have a method of a model's class replayed, where it is called with these tensors alone."""
    plain = getattr(kind, method)
    replays = Replays(plain)

    @functools.wraps(plain)
    def replayed(self: Any, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        named = {**dict(zip(tensors, args, strict=False)), **kwargs}
        others = {name for name in named if name not in tensors and named[name] is not None}
        if return_dict or len(args) > len(tensors) or others or not is_plain(self, named):
            return plain(self, *args, return_dict=return_dict, **kwargs)
        return (replays(self, {n: named[n] for n in tensors if named.get(n) is not None}),)

    setattr(kind, method, replayed)


def is_plain(model: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether nothing but the model's own kernels would run, on a GPU."""
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    if torch.is_grad_enabled() or _get_current_dispatch_mode() is not None:
        return False
    if not all(value.is_cuda for value in tensors):
        return False
    return not any(part._forward_hooks or "forward" in vars(part) for part in model.modules())


def replay_models() -> None:
    """Have the transformers and decoders of FLUX and Wan replayed from now on."""
    from diffusers import (
        AutoencoderKL,
        AutoencoderKLWan,
        FluxTransformer2DModel,
        WanTransformer3DModel,
    )

    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape and process
    replay(FluxTransformer2DModel, "forward", FLUX)
    replay(WanTransformer3DModel, "forward", WAN)
    for decoder in (AutoencoderKL, AutoencoderKLWan):
        replay(decoder, "decode", ("z",))


def main() -> None:
    """The command line of `tacache`."""
    from tacache.cli.command_line import main as tacache

    replay_models()
    tacache()


if __name__ == "__main__":
    main()
