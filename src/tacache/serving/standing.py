"""Objects that stand in a pipeline for its networks and tokenizers, which requests share."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from tacache.diffusers.host import plain_scheduler
from tacache.errors import HostError

DENOISERS = ("transformer", "transformer_2", "unet", "prior")
ENCODING = ("tokenizer", "text_encoder", "image_encoder", "processor")  # begin their names


class StandIn:
    """Passes for the real object but for some of its methods and attributes, which are others.

    As with a compiled network, `_orig_mod` is the real one.
    """

    def __init__(self, real: Any, methods: dict[str, Any]) -> None:
        self.__dict__.update(_orig_mod=real, _methods=methods)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._orig_mod)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__["_methods"]
        return methods[name] if name in methods else getattr(self.__dict__["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_orig_mod"], name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method that replaces the real object's call returns."""
        return self.__dict__["_methods"]["__call__"](*args, **kwargs)


def locked(real: Any, lock: threading.RLock) -> StandIn:
    """The object with all its methods under a lock: one thread uses it at a time.

    A fast tokenizer keeps how it pads and cuts as a state that every call sets, and pipelines call
    `tokenize` beside the tokenizer itself: a lock around its call alone is not enough.
    """
    kind = type(real)
    names = [name for name in dir(kind) if not name.startswith("__")]
    methods = [name for name in names if callable(getattr(kind, name, None))]
    found = {name: _under(lock, getattr(real, name)) for name in methods}
    return StandIn(real, {**found, "__call__": _under(lock, real)})


def _under(lock: threading.RLock, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return call


def forward_of(network: Any) -> Callable[..., Any]:
    """The network's call with the signature of its `forward`, by which arguments are named."""

    @functools.wraps(network.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    forward.__self__ = network  # type: ignore[attr-defined]
    return forward


def check_shareable(pipe: Any) -> None:
    """Refuse a pipeline whose parts cannot be shared by several calls."""
    plain_scheduler(pipe)
    name = type(pipe).__name__
    for part_name, part in pipe.components.items():
        if getattr(part, "_hf_hook", None) is not None:
            raise HostError(
                f"{name} moves its {part_name} to the device and back (offloading): a batcher "
                "needs the whole pipeline on the device, with pipe.to(device)"
            )
        if getattr(part, "is_cache_enabled", False):
            raise HostError(
                f"the {part_name} of {name} has a cache that keeps state between evaluations, "
                "which several requests would mix: call disable_cache() on it first"
            )
