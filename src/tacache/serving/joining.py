"""Calls of a network that can be made as one: which may share a batch, how they join and part."""

import hashlib
import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

WITHOUT_ROWS = ("txt_ids", "img_ids")  # positions, the same for every row, unless they have 3 axes
LISTED_ROWS = ("img_shapes", "txt_seq_lens")  # lists with one entry a row (Qwen-Image)
LARGEST_DIGEST = 1 << 20  # numbers of a tensor that is compared by its content


@dataclass(frozen=True)
class JoinableCall:
    """A call of a network: its arguments by name, its rows, and what must agree to share a batch.

    `key` is None where the call has something that cannot be compared: it is made alone.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    rows: int
    key: Hashable | None


class Digests:
    """What small tensors contain, read once each: the same one is passed at every step of a run."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()  # tensors are not compared by their content

    def of(self, tensor: Tensor) -> str | None:
        """A hash of the tensor's content; None where it is too large to be read."""
        if tensor.numel() > LARGEST_DIGEST:
            return None
        digest: str
        version, digest = self._known.get(tensor, (-1, ""))
        if version != tensor._version:
            plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest = hashlib.sha256(plain.numpy().tobytes()).hexdigest()
            self._known[tensor] = tensor._version, digest
        return digest


def joinable(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], digests: Digests
) -> JoinableCall:
    """The call `function(*args, **kwargs)` with what is needed to join it to others."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    extra = arguments.pop("kwargs", {})  # where the network takes any others
    named = {**arguments, **extra}
    first = next((value for value in named.values() if isinstance(value, Tensor)), None)
    if first is None or first.dim() == 0:
        return JoinableCall(function, named, 1, None)
    rows = len(first)
    parts = [(name, _compared(name, value, rows, digests)) for name, value in sorted(named.items())]
    known = all(part is not None for _, part in parts)
    return JoinableCall(function, named, rows, (_name_of(function), *parts) if known else None)


def joined(calls: Sequence[JoinableCall]) -> dict[str, Any]:
    """The arguments of one call that makes all of these, whose keys are equal."""
    first = calls[0]
    if len(calls) == 1:
        return first.arguments
    return {
        name: _join(name, [call.arguments[name] for call in calls], first.rows)
        for name in first.arguments
    }


def parted(result: Any, rows: Sequence[int]) -> list[Any]:
    """What each of the calls would have returned, from what the one call did."""
    if isinstance(result, Tensor):
        return list(torch.split(result, list(rows)))
    if isinstance(result, tuple):
        columns = [parted(one, rows) for one in result]
        return [tuple(column[i] for column in columns) for i in range(len(rows))]
    if is_dataclass(result) and not isinstance(result, type):
        named = {one.name: parted(getattr(result, one.name), rows) for one in fields(result)}
        kind = type(result)
        return [kind(**{name: of[i] for name, of in named.items()}) for i in range(len(rows))]
    if result is None:
        return [None] * len(rows)
    raise TypeError(f"a {type(result).__name__} cannot be parted by rows")


def _name_of(function: Callable[..., Any]) -> Hashable:
    """What tells the functions of shared modules apart: the module and the method's name."""
    return id(getattr(function, "__self__", function)), getattr(function, "__name__", "")


def _has_rows(name: str, value: Any, rows: int) -> bool:
    """Whether an argument has one entry a row."""
    if isinstance(value, Tensor):
        positions = name in WITHOUT_ROWS and value.dim() < 3
        return not positions and value.dim() > 0 and len(value) == rows
    return name in LISTED_ROWS and isinstance(value, list) and len(value) == rows


def _compared(name: str, value: Any, rows: int, digests: Digests) -> Hashable | None:
    """What must be equal in two calls for them to be joined; None where that is not known."""
    if isinstance(value, Tensor):
        kind = (value.dtype, value.device)
        if _has_rows(name, value, rows):
            return ("rows", tuple(value.shape[1:]), *kind)
        content = digests.of(value)
        return None if content is None else ("tensor", tuple(value.shape), *kind, content)
    if _has_rows(name, value, rows):
        return ("listed", repr(value[0]) if name == "img_shapes" else "")
    if isinstance(value, dict):
        inner = [(key, _compared(key, one, rows, digests)) for key, one in sorted(value.items())]
        is_plain = all(part is not None and part[0] != "rows" for _, part in inner)  # type: ignore[index]
        return ("dict", *inner) if is_plain else None
    if isinstance(value, tuple):
        inner = [(str(i), _compared("", one, 0, digests)) for i, one in enumerate(value)]
        return ("tuple", *inner) if all(part is not None for _, part in inner) else None
    if value is None or isinstance(value, bool | int | float | str):
        return ("plain", repr(value))
    return None


def _join(name: str, values: Sequence[Any], rows: int) -> Any:
    """One argument of several calls."""
    if not _has_rows(name, values[0], rows):
        return values[0]
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    return [entry for value in values for entry in value]
