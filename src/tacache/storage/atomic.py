"""Files that are complete or not there: a finished draft replaces the file in one move."""

import functools
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tacache.errors import StorageError, first_line

DRAFT = ".tacache-"  # in the names of drafts
MAX_DRAFT_S = 3600.0  # since anything was written to a draft that still has a writer
TRIAL = bytes(2**16)  # what a folder must take before long work begins


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """Give an empty draft beside `target`; it replaces the target if the block ends without error.

    The draft has a name of its own with the target's suffix, and is created exclusively, so that
    nothing that lay there before is written through. It is removed where the block fails, and by a
    later process where its writer was killed. What the system refuses, such as a full disk, is a
    StorageError that names the target.
    """
    draft = target.with_name(f".{target.stem[:40]}{DRAFT}{uuid.uuid4().hex[:12]}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clean(target.parent)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(target)
    except StorageError:
        raise
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with suppress(NotADirectoryError):  # where a file stands in the place of the folder
            draft.unlink(missing_ok=True)


@functools.cache
def _clean(folder: Path) -> None:
    """Remove the drafts that killed writers have left in a folder, once in a process."""
    latest = time.time() - MAX_DRAFT_S
    with suppress(OSError):  # a folder that cannot be read may still be written to
        for name in os.listdir(folder):
            draft = folder / name
            if name.startswith(".") and DRAFT in name and draft.lstat().st_mtime < latest:
                draft.unlink()


def write_atomically(target: Path, text: str) -> None:
    """Write `text` to `target`: a reader sees the old file or the new one, never half."""
    with writing(target) as draft:
        draft.write_text(text, encoding="utf-8")


def check_writable(folder: Path) -> None:
    """Refuse a folder that takes no files, before the work whose results would go there.

    A folder that is not there yet is not made: the nearest one above it is tried.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise StorageError(f"{there} is a file, and a folder is needed: name another")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(TRIAL)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(target: Path, error: Exception) -> StorageError:
    """Return the error that names the file or folder, with the system's reason and what to do."""
    reason = getattr(error, "strerror", None) or first_line(error)
    return StorageError(f"cannot write {target} ({reason}): make room, or name another place")
