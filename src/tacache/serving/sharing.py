"""A pipeline whose tokenizers several threads may use, whichever of their methods they call."""

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

from tacache.serving.standing import StandIn


def with_shared_tokenizers(pipe: Any) -> Any:
    """Copy the pipeline object, with the same parts and one lock around its tokenizers.

    A fast tokenizer keeps how it pads and cuts as a state that every call sets. Pipelines call
    `tokenize` beside the tokenizer itself, so a lock around its call alone is not enough.
    """
    lock, copied = threading.RLock(), copy.copy(pipe)
    for name, part in pipe.components.items():
        if part is not None and name.startswith(("tokenizer", "processor")):
            copied.__dict__[name] = StandIn(part, _methods_under(lock, part))
    return copied


def _methods_under(lock: threading.RLock, part: Any) -> dict[str, Callable[..., Any]]:
    """All methods of an object, each of which waits for the lock."""
    kind = type(part)
    names = [name for name in dir(kind) if not name.startswith("__")]
    methods = [name for name in names if callable(getattr(kind, name, None))]
    found = {name: _under(lock, getattr(part, name)) for name in methods}
    return {**found, "__call__": _under(lock, part)}


def _under(lock: threading.RLock, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return call
