"""Jobs: requests whose client comes back for progress and result, as long clips need it."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from tacache.serving.protocol import Limits, Refused, RequestBody
from tacache.serving.worker import Backend, OutputFile, Progress

logger = logging.getLogger("tacache.serving")
BEAT = 15.0  # seconds after which a stream without news says that it is there


class Job:
    """One request that runs by itself: its state, its progress, and its output or its error."""

    def __init__(self, backend: Backend, wanted: RequestBody) -> None:
        self.id, self.created = secrets.token_urlsafe(18), int(time.time())
        self.status = "running"
        self.progress = Progress(0, 0)
        self.output: OutputFile | None = None
        self.error: Refused | None = None
        self._change = asyncio.Event()
        self.begun = asyncio.Event()  # taken on, or refused
        self.task = asyncio.create_task(self._run(backend, wanted))

    async def _run(self, backend: Backend, wanted: RequestBody) -> None:
        try:
            async with contextlib.aclosing(backend.run(wanted)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        self._set(progress=event)
                    else:
                        self._set(status="done", output=event[0])
        except asyncio.CancelledError:
            self._set(status="cancelled")
            raise
        except Exception as error:
            self._set(status="failed", error=_as_refused(error))

    def _set(self, **values: Any) -> None:
        self.__dict__.update(values)
        self.begun.set()
        self._change.set()
        self._change = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Return whether nothing changes any more."""
        return self.status != "running"

    def body(self) -> dict[str, Any]:
        """Return the job as clients see it."""
        fields: dict[str, Any] = {
            "id": self.id,
            "object": "job",
            "created": self.created,
            "status": self.status,
            "evaluations": {"made": self.progress.evaluated, "of": self.progress.of},
        }
        if self.output is not None:
            fields |= {"seed": self.output.seed, "result": f"/v1/jobs/{self.id}/result"}
        return {**fields, **(self.error.body() if self.error is not None else {})}

    async def changes(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the job now and after each change, up to its end; None where nothing happens."""
        while True:
            change = self._change
            yield self.body()
            if self.is_over:
                return
            while not change.is_set():
                try:
                    await asyncio.wait_for(change.wait(), BEAT)
                except asyncio.TimeoutError:
                    yield None

    async def cancel(self) -> None:
        """Stop it, and wait until it has."""
        if not self.is_over:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            if not self.is_over:  # it had not begun
                self._set(status="cancelled")


def _as_refused(error: Exception) -> Refused:
    """Return what the client is told of an error, without the frames and tensors that led to it."""
    if isinstance(error, Refused):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    logger.error("a job failed", exc_info=error)
    return Refused("the request failed: the server's log says why", status=500)


class Jobs:
    """The jobs that are kept: those that run, and the latest of those that are over."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend, self._limits = backend, limits
        self._jobs: dict[str, Job] = {}

    async def start(self, wanted: RequestBody) -> Job:
        """Take on a job; one that cannot be taken on is Refused."""
        self._make_room()
        if len(self._jobs) >= self._limits.jobs:
            raise Refused(
                f"{len(self._jobs)} jobs run already", status=503, code="overloaded", retry_after=10
            )
        job = Job(self._backend, wanted)
        self._jobs[job.id] = job
        await job.begun.wait()
        if job.error is not None:
            del self._jobs[job.id]
            raise job.error
        return job

    def get(self, name: str) -> Job:
        """Return the job of this id."""
        if name not in self._jobs:
            raise Refused(
                "there is no such job: it may be too old to be kept", status=404, code="not_found"
            )
        return self._jobs[name]

    async def finish(self, seconds: float) -> None:
        """Wait until every job is over, and stop those that are not in so many seconds."""
        tasks = [job.task for job in self._jobs.values()]
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=seconds)
        for task in left:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_room(self) -> None:
        """Forget the oldest jobs that are over, while they are too many or too large."""
        for oldest in list(self._jobs.values()):
            kept = sum(len(job.output.data) for job in self._jobs.values() if job.output)
            if len(self._jobs) < self._limits.jobs and kept <= self._limits.kept:
                return
            if oldest.is_over:
                del self._jobs[oldest.id]
