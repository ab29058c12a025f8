"""One benchmark at a time appends to a results file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tacache.lab.bench.records import RecordError


@contextmanager
def held(lock: Path, results: Path) -> Iterator[None]:
    """Hold a lock file while results are worked on; a kill lets go of it.

    Results are written anew where parts are joined: what another benchmark appends meanwhile would
    be lost.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    holding = FileLock(lock)
    try:
        holding.acquire(timeout=0)
    except Timeout as error:
        raise RecordError(
            f"another benchmark is appending to {results}: wait for it, or name another file and "
            "put the two together afterwards (cat A B > C)"
        ) from error
    try:
        yield
    finally:
        holding.release()
