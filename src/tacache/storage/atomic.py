"""Files that are complete or not there: a draft beside a file takes its place when it is done."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """An empty draft beside `target`, which replaces it when the block ends without an error.

    The draft has a name of its own with the target's suffix, and is created exclusively, so that
    nothing that lay there before is written through. It is removed where the block fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.stem[:40]}.{uuid.uuid4().hex[:12]}{target.suffix}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(target: Path, text: str) -> None:
    """Write `text` to `target`: a reader sees the old file or the new one, never half."""
    with writing(target) as draft:
        draft.write_text(text, encoding="utf-8")
