"""Sharing work between the processes that `torchrun` or `accelerate launch` started."""

import atexit
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from tacache.errors import HostError


@dataclass(frozen=True)
class Together:
    """What the processes hand each other: results by index, or the first failure."""

    count: int

    def exchange(self, value: Any) -> list[Any]:
        """Return everyone's value, in rank order."""
        if self.count == 1:
            return [value]
        everyone: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(everyone, value)
        return everyone

    def gathered(self, mine: dict[int, Any]) -> dict[int, Any]:
        """Return everyone's results by index."""
        return {i: value for part in self.exchange(mine) for i, value in part.items()}


@dataclass(frozen=True)
class Claims:
    """Who does what: every item of some work goes to the process that is first to take it.

    A claim is a file that only one process can create, in a folder that all of them see.
    """

    folder: Path | None  # None: there is one process

    def take(self, item: int) -> bool:
        """Return whether this process is to do an item."""
        if self.folder is None:
            return True
        try:
            (self.folder / str(item)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class Processes:
    """How many processes work on this, and which one this is."""

    rank: int
    count: int

    @classmethod
    def current(cls) -> "Processes":
        """Return this process's place; join the group that the launcher's environment describes."""
        if not torch.distributed.is_available():
            return cls(0, 1)
        if not torch.distributed.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                return cls(0, 1)
            # A share may take hours, and the others wait for it.
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=1))
            atexit.register(torch.distributed.destroy_process_group)
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @contextmanager
    def failing_together(self) -> Iterator[Together]:
        """Run this process's share; if any share fails, every process stops with its reason."""
        together = Together(self.count)
        try:
            yield together
        except Exception as error:
            together.exchange(f"process {self.rank}: {error}")
            raise
        failures = [reason for reason in together.exchange(None) if reason is not None]
        if failures:
            raise HostError(f"another process failed: {failures[0]}")

    @contextmanager
    def claiming(self, folder: Path) -> Iterator[Claims]:
        """Share work out as processes get free; nobody goes on before everybody is done."""
        with self.failing_together() as together:
            if self.count == 1:
                yield Claims(None)
                return
            if self.rank == 0:
                for left in folder.glob("claims-*"):  # by a run that was killed
                    shutil.rmtree(left)
            claims = folder / f"claims-{together.exchange(uuid.uuid4().hex)[0]}"
            claims.mkdir(parents=True, exist_ok=True)
            yield Claims(claims)
        if self.rank == 0:
            shutil.rmtree(claims)


ALONE = Processes(0, 1)  # this process does all of the work
