"""What is kept of a host's full runs until a plan is fitted to them.

Each sample is a file of its own in a folder of its setting, so that learning goes on after a kill.
One process at a time learns a setting: it holds the folder's lock until the fit is done.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from tacache.errors import HostError, StorageError
from tacache.storage.atomic import check_writable, unwritable
from tacache.storage.finished import digest
from tacache.storage.tensors import load_values, save_values

logger = logging.getLogger("tacache.hosts")

MAX_BYTES = 4 * 2**30  # of all that is kept; a sample beyond is kept without its states
SUFFIX = ".sample"


class RecordedSample(NamedTuple):
    """One sample of a full run: how to call the host for it again, and what that gave."""

    call: dict[str, Any]
    times: tuple[float, ...]
    ends: tuple[tuple[Tensor, Tensor], ...]  # state and velocity of the first and the last step
    states: Tensor | None  # of all steps and the end, where there is room for them
    velocities: Tensor | None
    seconds: float  # that one evaluation took

    @property
    def noise(self) -> Tensor:
        """Return the state it starts from, with the one sample along dim 0."""
        return self.ends[0][0]

    @property
    def key(self) -> str:
        """Return a name that samples share only where call and noise are the same."""
        return hashlib.sha256(digest([self.call, self.noise]).encode()).hexdigest()[:16]


class Learning:
    """The kept samples of one setting, for the process that learns it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: set[Path] = set()
        lock = folder.with_name(f"{folder.name}.lock")
        self._lock = FileLock(lock, thread_local=False)

    def begin(self) -> bool:
        """Return whether this process may learn until `end`; another one may be at it.

        A folder that takes no files is a StorageError.
        """
        if self._lock.is_locked:
            return True
        try:
            check_writable(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # samples hold prompts, which are nobody else's
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except StorageError:
            raise
        except OSError as error:
            raise unwritable(self.folder, error) from error
        return True

    @property
    def resume(self) -> Path:
        """Return the file that keeps the full runs for an interrupted fit."""
        return self.folder / "fit.runs"

    def count(self) -> int:
        """Return how many samples are kept."""
        return len(self._files())

    def samples(self) -> list[RecordedSample]:
        """Return the kept samples; a damaged file is deleted, and its sample is learned again."""
        return [kept for path in self._files() for kept in _loaded(path)]

    def unseen(self) -> Iterator[RecordedSample]:
        """Return the samples that were not given by this before."""
        for path in self._files():
            if path not in self._seen:
                yield from _loaded(path)
                self._seen.add(path)

    def keep(self, kept: RecordedSample) -> None:
        """Write one more sample."""
        numbers = [int(path.stem.split("-")[0]) for path in self._files()]
        path = self.folder / f"{max(numbers, default=-1) + 1:04d}-{kept.key}{SUFFIX}"
        save_values(path, kept._asdict())

    def knows(self, sample: RecordedSample) -> bool:
        """Return whether this very sample, its call and its noise, is kept already."""
        return any(path.stem.endswith(f"-{sample.key}") for path in self._files())

    def has_room_for(self, size: int) -> bool:
        """Return whether so many bytes more stay within what may be kept in all."""
        return sum(map(_size, self.folder.parent.rglob("*"))) + size <= MAX_BYTES

    def end(self) -> None:
        """Let another process learn; what is kept stays."""
        self._lock.release()

    def forget(self) -> None:
        """Delete all that is kept, and end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.end()

    def clear(self) -> None:
        """Delete what a killed process has left, unless another one is at it."""
        if self.folder.exists():
            try:
                if self.begin():
                    self.forget()
            except StorageError as error:
                logger.debug("%s is left as it is: %s", self.folder, error)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"[0-9]*-*{SUFFIX}"))


def _loaded(path: Path) -> list[RecordedSample]:
    """Return the sample of a file, or none if the file is damaged."""
    try:
        return [RecordedSample(**load_values(path))]
    except Exception as error:  # unpickling raises anything on a damaged file
        logger.warning("%s is damaged and was deleted (%s)", path, type(error).__name__)
        path.unlink(missing_ok=True)
        return []


def _size(path: Path) -> int:
    """Return the bytes of a file; none where another process has just deleted it."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


class RunRecord:
    """A full run while it is made: a batch of samples, each to be called again by itself."""

    def __init__(
        self,
        learning: Learning,
        wanted: int,
        times: tuple[float, ...],
        call_of: Callable[[int, int], dict[str, Any]],
        done: Callable[[], object],
    ) -> None:
        self._learning, self._wanted, self._times = learning, wanted, times
        self._call_of, self._done = call_of, done
        self._states: list[Tensor] = []
        self._velocities: list[Tensor] = []
        self._next: Tensor | None = None
        self._whole, self._seen = True, 0
        self._parts: dict[str | None, tuple[Tensor, ...]] = {}  # of a joint model, in one turn
        self._began = time.perf_counter()

    def see(self, x: Tensor, v: Tensor, x_next: Tensor) -> None:
        """Take in a step: its state, its velocity, and where it led; write after the last one."""
        steps = len(self._times) - 1
        x, v, x_next = (part.detach().cpu().clone() for part in (x, v, x_next))
        if self._next is not None and not torch.equal(x, self._next):
            raise HostError("the latents are edited between the steps")
        if not self._states:
            size = steps * (x.nbytes + v.nbytes)
            self._whole = self._learning.has_room_for(size)
        if not self._whole:  # only the newest step beside the first
            del self._states[1:], self._velocities[1:]
        self._states.append(x)
        self._velocities.append(v)
        self._next, self._seen = x_next, self._seen + 1
        if self._seen == steps:
            self._write(x_next)
            self._done()

    def see_latent(
        self, latent: str | None, count: int, x: Tensor, v: Tensor, x_next: Tensor
    ) -> None:
        """Take in the step of one latent, of as many as a joint model steps in turn.

        What is kept has them one behind the other, one sample a row. Latents that are a table of
        tokens, or differ in their first dimension, belong to one sample.
        """
        if latent in self._parts:
            raise HostError("the pipeline did not step all of its latents in a turn of its loop")
        # Copies: the loop may write a step's result back before the next latent is stepped.
        self._parts[latent] = tuple(part.detach().cpu().clone() for part in (x, v, x_next))
        if len(self._parts) == count:
            sizes = {len(parts[0]) if parts[0].ndim > 2 else 1 for parts in self._parts.values()}
            rows = sizes.pop() if len(sizes) == 1 else 1
            states = zip(*self._parts.values(), strict=True)
            self._parts = {}
            self.see(*(torch.cat([x.reshape(rows, -1) for x in parts], 1) for parts in states))

    def _write(self, end: Tensor) -> None:
        rows, steps = len(end), len(self._times) - 1
        seconds = (time.perf_counter() - self._began) / (rows * steps)
        for row in range(rows):
            if self._learning.count() >= self._wanted:
                break
            states = [state[row : row + 1].clone() for state in (*self._states, end)]
            velocities = [velocity[row : row + 1].clone() for velocity in self._velocities]
            kept = RecordedSample(
                call=self._call_of(row, rows),
                times=self._times,
                ends=((states[0], velocities[0]), (states[-2], velocities[-1])),
                states=torch.stack(states) if self._whole else None,
                velocities=torch.stack(velocities) if self._whole else None,
                seconds=seconds,
            )
            if not self._learning.knows(kept):  # a sample counts once, or it would judge itself
                self._learning.keep(kept)
        self._states, self._velocities = [], []
