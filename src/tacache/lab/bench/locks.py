"""One benchmark at a time appends to a results file."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacache.lab.bench.records import RecordError


@contextmanager
def held(lock: Path, results: Path) -> Iterator[None]:
    """Hold a lock file while results are worked on; a kill lets go of it.

    Results are written anew where parts are joined: what another benchmark appends meanwhile would
    be lost.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _taken(descriptor):
            raise RecordError(
                f"another benchmark is appending to {results}: wait for it, or name another file "
                "and put the two together afterwards (cat A B > C)"
            )
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Whether the lock is ours; where a system has no such locks, it is taken for granted."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a network file system may know no locks
        return error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
    return True
