"""Calls of a network that can be made as one: which may share a batch, how they join and part."""

import hashlib
import inspect
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from tacache.tasu import relative_distance

CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of results that are to be the same; others:
CLOSE_IN_HALF = 0.05
WITHOUT_ROWS = ("txt_ids", "img_ids")  # positions, the same for every row, unless they have 3 axes
LISTED_ROWS = ("img_shapes", "txt_seq_lens")  # lists with one entry a row (Qwen-Image)
DIGEST = "_tacache_digest"  # an attribute of a tensor: its version, and the hash of its content
MAX_DIGESTED_NUMBERS = 1 << 20  # numbers of a tensor that is compared by its content


@dataclass(frozen=True)
class JoinableCall:
    """A call of a network: its arguments by name, its rows, and what must agree to share a batch.

    `key` is a number that calls have in common which may share a batch; None where a call has
    something that cannot be compared: it is made alone.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    rows: int
    key: int | None


class CallKeys:
    """What is known of calls and their tensors, so that a call is compared with others quickly."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._count = itertools.count()  # asked from many threads: no number is given twice
        self._signatures: dict[Callable[..., Any], inspect.Signature] = {}

    def digest(self, tensor: Tensor) -> str | None:
        """Return a hash of the tensor's content; None where it is too large to be read.

        It is read once: the same tensor is passed at every step of a run.
        """
        if tensor.numel() > MAX_DIGESTED_NUMBERS:
            return None
        version, digest = getattr(tensor, DIGEST, (-1, ""))
        if version != tensor._version:
            plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest = hashlib.sha256(plain.numpy().tobytes()).hexdigest()
            setattr(tensor, DIGEST, (tensor._version, digest))
        return str(digest)

    def number(self, parts: Hashable) -> int:
        """Return the number of what calls have in common, the same whenever that is equal."""
        return self._numbers.setdefault(parts, next(self._count))

    def signature(self, function: Callable[..., Any]) -> inspect.Signature:
        """Return a function's signature; looking it up takes as long as a step of a small model."""
        if function not in self._signatures:
            self._signatures[function] = inspect.signature(function)
        return self._signatures[function]


def joinable(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], known: CallKeys
) -> JoinableCall:
    """Return the call `function(*args, **kwargs)` with what is needed to join it to others."""
    signature, named = known.signature(function), kwargs
    if args:
        arguments = signature.bind(*args, **kwargs).arguments
        extra = arguments.pop("kwargs", {})  # where the network takes any others
        named = {**arguments, **extra}
    # Rows are counted at the function's own first tensor, however the caller orders them.
    values = (named.get(name) for name in (*signature.parameters, *named))
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if first is None or first.dim() == 0:
        return JoinableCall(function, named, 1, None)
    rows = len(first)
    parts = [(name, _compared(name, value, rows, known)) for name, value in sorted(named.items())]
    comparable = all(part is not None for _, part in parts)
    key = known.number((_name_of(function), *parts)) if comparable else None
    return JoinableCall(function, named, rows, key)


def joined(calls: Sequence[JoinableCall]) -> dict[str, Any]:
    """Return the arguments of one call that makes all of these, whose keys are equal."""
    first = calls[0]
    if len(calls) == 1:
        return first.arguments
    return {
        name: _join(name, [call.arguments[name] for call in calls], first.rows)
        for name in first.arguments
    }


def parted(result: Any, rows: Sequence[int]) -> list[Any]:
    """Return what each of the calls would have returned, from what the one call did."""
    if isinstance(result, Tensor):
        return list(torch.split(result, list(rows)))
    if isinstance(result, tuple):
        columns = [parted(part, rows) for part in result]
        return [tuple(column[i] for column in columns) for i in range(len(rows))]
    if is_dataclass(result) and not isinstance(result, type):
        named = {field.name: parted(getattr(result, field.name), rows) for field in fields(result)}
        kind = type(result)
        return [kind(**{name: of[i] for name, of in named.items()}) for i in range(len(rows))]
    if result is None:
        return [None] * len(rows)
    raise TypeError(f"a {type(result).__name__} cannot be parted by rows")


def mapped(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a network's result with every tensor in it changed."""
    if isinstance(result, Tensor):
        return change(result)
    if isinstance(result, tuple):
        return tuple(mapped(part, change) for part in result)
    if is_dataclass(result) and not isinstance(result, type):
        kind = type(result)
        named = {
            field.name: mapped(getattr(result, field.name), change) for field in fields(result)
        }
        return kind(**named)
    return result


def is_close(result: Any, wanted: Any) -> bool:
    """Return whether two results of a network are the same but for rounding, tensor by tensor."""
    return all(_near(*pair) for pair in zip(_tensors(result), _tensors(wanted), strict=True))


def _tensors(result: Any) -> list[Tensor]:
    tensors = list[Tensor]()
    mapped(result, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors


def _near(result: Tensor, wanted: Tensor) -> bool:
    limit = CLOSE.get(wanted.dtype, CLOSE_IN_HALF)
    if torch.equal(result, wanted):
        return True
    return bool((relative_distance(result.float(), wanted.float()) <= limit).all())


def _name_of(function: Callable[..., Any]) -> Hashable:
    """Return what tells the functions of shared modules apart: the module and the method's name."""
    return id(getattr(function, "__self__", function)), getattr(function, "__name__", "")


def has_rows(name: str, value: Any, rows: int) -> bool:
    """Return whether an argument has one entry a row."""
    if isinstance(value, Tensor):
        shape = value.shape
        positions = name in WITHOUT_ROWS and len(shape) < 3
        return not positions and len(shape) > 0 and shape[0] == rows
    return name in LISTED_ROWS and isinstance(value, list) and len(value) == rows


def _compared(name: str, value: Any, rows: int, known: CallKeys) -> Hashable | None:
    """Return what must be equal in two calls for them to be joined; None where unknown."""
    if isinstance(value, Tensor):
        kind = (value.dtype, value.device)
        if has_rows(name, value, rows):
            return ("rows", value.shape[1:], *kind)
        content = known.digest(value)
        return None if content is None else ("tensor", value.shape, *kind, content)
    if has_rows(name, value, rows):
        return ("listed", repr(value[0]) if name == "img_shapes" else "")
    if isinstance(value, dict):
        inner = [(key, _compared(key, item, rows, known)) for key, item in sorted(value.items())]
        is_plain = all(part is not None and part[0] != "rows" for _, part in inner)  # type: ignore[index]
        return ("dict", *inner) if is_plain else None
    if isinstance(value, tuple):
        inner = [(str(i), _compared("", item, 0, known)) for i, item in enumerate(value)]
        return ("tuple", *inner) if all(part is not None for _, part in inner) else None
    if value is None or isinstance(value, (bool, int, float, str)):
        return ("plain", repr(value))
    return None


def _join(name: str, values: Sequence[Any], rows: int) -> Any:
    """Join one argument of several calls."""
    if not has_rows(name, values[0], rows):
        return values[0]
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    return [entry for value in values for entry in value]
