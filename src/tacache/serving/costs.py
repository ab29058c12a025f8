"""What was measured of requests while they ran, by the size of what they make."""

import math
import threading
from collections.abc import Hashable
from typing import Any, NamedTuple

from tacache.serving.load import Recent, WaveTimes

SIZES = ("height", "width", "num_frames")  # of a call, as pipelines name them
Size = tuple[Any, ...]


class Shape(NamedTuple):
    """How a request evaluates the model: calls of the denoiser an evaluation, rows of each call."""

    calls: int = 1
    rows: int = 1


def size_of(call: dict[str, Any]) -> Size:
    """The size that a call asks for; None stands for the pipeline's own."""
    return tuple(call.get(name) for name in SIZES)


class Costs:
    """Seconds of waves, of decoding, and of what a request does before and after, by size.

    What is known of one size stands for another in proportion to their pixels, until that one is
    measured itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one thread makes waves, and others ask
        self._waves: dict[Hashable, WaveTimes] = {}
        self._decoding: dict[Hashable, WaveTimes] = {}
        self._before: dict[Hashable, Recent] = {}
        self._rest: dict[Hashable, Recent] = {}
        self._shapes: dict[Hashable, Shape] = {}

    def __bool__(self) -> bool:
        with self._lock:
            return bool(self._waves)

    def add_wave(self, size: Hashable, rows: int, seconds: float) -> None:
        """Note how long a call of the denoiser took."""
        with self._lock:
            self._waves.setdefault(size, WaveTimes()).add(rows, seconds)

    def add_decoding(self, size: Hashable, rows: int, seconds: float) -> None:
        """Note how long a call of the decoder took."""
        with self._lock:
            self._decoding.setdefault(size, WaveTimes()).add(rows, seconds)

    def add_request(self, size: Hashable, before: float, rest: float, shape: Shape) -> None:
        """Note what a request took before its first evaluation and after its picture was made."""
        with self._lock:
            self._before.setdefault(size, Recent()).add(before)
            self._rest.setdefault(size, Recent()).add(rest)
            self._shapes.pop(size, None)  # the latest is the last
            self._shapes[size] = shape

    def wave(self, size: Hashable, rows: int) -> float:
        """Seconds of a call of the denoiser."""
        with self._lock:
            if not self._waves:
                raise ValueError("no wave was measured yet")
            known, scale = _nearest(self._waves, size)
            return known.of(rows) * scale

    def paying(self, size: Hashable, most: int) -> int:
        """The rows of a wave of this size beyond which more do not pay; `most` at the most."""
        with self._lock:
            return self._waves[size].paying(most) if size in self._waves else most

    def measured(self, size: Hashable) -> dict[int, float]:
        """The seconds of calls of the denoiser by their rows, as far as they were measured."""
        with self._lock:
            return self._waves[size].seconds if size in self._waves else {}

    def decoding(self, size: Hashable, rows: int) -> float:
        """Seconds of a call of the decoder; none where none was measured."""
        with self._lock:
            if not self._decoding:
                return 0.0
            known, scale = _nearest(self._decoding, size)
            return known.of(rows) * scale

    def before(self, size: Hashable) -> float:
        """Seconds from a request's start to its first evaluation: prompts are encoded there."""
        with self._lock:
            return _value(self._before, size)

    def rest(self, size: Hashable) -> float:
        """Seconds from a request's last evaluation or decoding to its end."""
        with self._lock:
            return _value(self._rest, size)

    def shape(self, size: Hashable) -> Shape:
        """How requests of this size evaluate the model, by the last one that was made."""
        with self._lock:
            latest = next(reversed(self._shapes.values()), Shape())
            return self._shapes.get(size, latest)


def _value(known: dict[Hashable, Recent], size: Hashable) -> float:
    """What was measured of this size, else the most of any."""
    if size in known:
        return known[size].seconds
    return max((one.seconds for one in known.values()), default=0.0)


def _nearest(known: dict[Hashable, WaveTimes], size: Hashable) -> tuple[WaveTimes, float]:
    """The times of this size, or of the one nearest in pixels, and by how much to scale them."""
    if size in known:
        return known[size], 1.0
    scales = {other: _ratio(size, other) for other in known}
    nearest = min(scales, key=lambda other: abs(math.log(scales[other])))
    return known[nearest], scales[nearest]


def _ratio(size: Any, other: Any) -> float:
    """The pixels of one size over those of another; 1 where either is the pipeline's own."""
    pairs = [(a, b) for a, b in zip(size or (), other or (), strict=False) if a and b]
    return float(math.prod(a / b for a, b in pairs))
