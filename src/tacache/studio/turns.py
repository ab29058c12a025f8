"""Jobs on one model that several people share: they take turns, tell how far they are, and stop."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from tacache.errors import TACacheError
from tacache.hosts import Pixels

Result = TypeVar("Result")
PATIENCE = 0.1  # seconds between two looks at whether to stop


class StoppedError(TACacheError):
    """Somebody has asked the job to stop."""


class Waiting(NamedTuple):
    """Others have the model first: so many of them."""

    ahead: int


class JobProgress(NamedTuple):
    """A part of a job has done so many of its steps; without a total nobody knows how many."""

    part: str
    done: int
    total: int | None
    preview: Pixels | None = None


class Part(NamedTuple):
    """One of several results of a job, which comes before the others."""

    name: str
    value: object


class Finished(NamedTuple, Generic[Result]):
    """The job is done."""

    result: Result


News = Waiting | JobProgress | Part


class Watch:
    """What a job is given: where it tells its news, and whether it shall stop."""

    def __init__(self, tell: Callable[[News], None], stop: threading.Event) -> None:
        self.tell, self.stop = tell, stop

    @classmethod
    def unheard(cls) -> "Watch":
        """Return a watch whose news nobody hears, and which never stops."""
        return cls(lambda news: None, threading.Event())

    def check(self) -> None:
        """Raise StoppedError if the job shall stop."""
        if self.stop.is_set():
            raise StoppedError("stopped")


class Turns:
    """One model for all: jobs have it one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._line: deque[object] = deque()
        self._moved = threading.Condition()

    @contextmanager
    def turn(self, watch: Watch) -> Iterator[None]:
        """Wait for the model, and have it for the length of a `with` block."""
        ticket = object()
        with self._moved:
            self._line.append(ticket)
        try:
            self._wait(ticket, watch)
            yield
        finally:
            with self._moved:
                self._line.remove(ticket)
                self._moved.notify_all()

    def _wait(self, ticket: object, watch: Watch) -> None:
        told = 0
        with self._moved:
            while ahead := self._line.index(ticket):
                watch.check()
                if ahead != told:
                    watch.tell(Waiting(ahead))
                    told = ahead
                self._moved.wait(PATIENCE)
        watch.check()


def news_of(
    job: Callable[[Watch], Result], stop: threading.Event
) -> Iterator[News | Finished[Result]]:
    """Run a job in a thread of its own; yield what it tells, and at last that it is finished.

    What the job raises is raised here; after a stop that is StoppedError, whatever it was. Progress
    that is out of date by the time it is asked for is left out. The job is stopped if nobody asks
    any more.
    """
    told: queue.Queue[News | Finished[Result] | Exception] = queue.Queue()

    def work() -> None:
        try:
            told.put(Finished(job(Watch(told.put, stop))))
        except Exception as error:
            told.put(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield from _told(told, stop)
    finally:
        stop.set()
        worker.join()


def _told(
    told: "queue.Queue[News | Finished[Result] | Exception]", stop: threading.Event
) -> Iterator[News | Finished[Result]]:
    while True:
        news = told.get()
        if isinstance(news, Exception):
            if stop.is_set():
                raise StoppedError("stopped") from news
            raise news
        if not isinstance(news, JobProgress) or told.empty():
            yield news
        if isinstance(news, Finished):
            return
