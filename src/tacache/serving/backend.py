"""What the HTTP application asks for outputs: a worker of this process, or replicas elsewhere."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from tacache.serving.wanted import Wanted
from tacache.serving.worker import Event, Worker


class Backend(Protocol):
    """Whatever makes outputs."""

    def run(self, wanted: Wanted) -> AsyncGenerator[Event, None]:
        """What a request asks for: its progress, and its outputs at the end, or Refused."""

    async def check(self) -> None:
        """Raise if requests cannot be answered now."""

    async def snapshots(self) -> Mapping[str, Mapping[str, float]]:
        """What each replica has counted, by its name."""

    async def close(self) -> None:
        """Finish what was taken on."""


class LocalBackend:
    """A worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run(self, wanted: Wanted) -> AsyncGenerator[Event, None]:
        """The worker's own events."""
        return self.worker.run(wanted)

    async def check(self) -> None:
        """The worker is there as long as the process is."""

    async def snapshots(self) -> Mapping[str, Mapping[str, float]]:
        """The worker's numbers."""
        return {"local": self.worker.snapshot()}

    async def close(self) -> None:
        """Wait for the worker's requests."""
        await asyncio.to_thread(self.worker.close)
