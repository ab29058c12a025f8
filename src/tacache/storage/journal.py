"""A file to which finished work is appended, so that killed work goes on where it stopped."""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tacache.errors import TACacheError
from tacache.storage.atomic import unwritable
from tacache.storage.reading import MAX_FILE_BYTES, parse_json

PACKED = ".gz"
MAX_LINE_BYTES = MAX_FILE_BYTES  # bytes: an entry holds a profile or a record
MAX_JOURNAL_BYTES = 2**29  # bytes, unpacked: a quarter of a million records with their traces
Decoded = TypeVar("Decoded")


class Journal(NamedTuple):
    """JSON lines that all begin with the same field, such as the job they belong to.

    Entries are appended one by one, also by several processes at once, and never changed. What a
    kill leaves of a line is passed over, and the next entry begins a line of its own. `what` and
    `work` name the entries and what they are of in messages. Without a path nothing is kept.
    """

    path: Path | None
    mark: Mapping[str, str]
    what: str
    work: str
    error: type[TACacheError]

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to the file at once."""
        if self.path is None:
            return
        line = json.dumps({**self.mark, **entry}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(b"\n" * self._is_torn() + line)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def read(self, decode: Callable[[dict[str, Any]], Decoded]) -> Iterator[Decoded]:
        """Return what `decode` makes of each entry; KeyError, TypeError and ValueError may rise."""
        for place, line in self.lines():
            try:
                entry = parse_json(line, finite=False)
                if all(entry[name] == value for name, value in self.mark.items()):
                    yield decode(entry)
                    continue
            except json.JSONDecodeError:
                continue  # a torn line, after which others went on
            except (ValueError, KeyError, TypeError) as error:
                raise self.error(
                    f"{place} is damaged, or an earlier version wrote it: delete {self.path} to "
                    "begin again"
                ) from error
            raise self.error(
                f"{self.path} holds {self.what} of another {self.work} (another model, other "
                "prompts or arguments, or an earlier version): delete it, or name another file"
            )

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each whole line with its place in words; a torn last line is left out."""
        if self.path is None or not self.path.exists():
            return
        packed, size, number = self.path.suffix == PACKED, 0, 0
        try:
            with gzip.open(self.path) if packed else self.path.open("rb") as file:
                while line := file.readline(MAX_LINE_BYTES + 1):
                    size, number = size + len(line), number + 1
                    self._check_line(line, number, size)
                    if line.endswith(b"\n"):
                        yield f"{self.path}, line {number}", line.decode(errors="replace")
        except (OSError, EOFError, zlib.error) as error:
            how = "unpacked" if packed else "read"
            raise self.error(f"{self.path} cannot be {how} ({error}): name another file") from error

    def cut_torn_line(self) -> None:
        """Remove what a kill left of a last line. Nobody else may append meanwhile."""
        if self.path is None or not self.path.exists():
            return
        for _ in self.lines():  # refuses a file of something else, which is not to be cut
            pass
        with self.path.open("rb+") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))

    def _check_line(self, line: bytes, number: int, size: int) -> None:
        """Refuse a line that does not begin as our entries do, or that is too large."""
        begin = json.dumps(dict.fromkeys(self.mark, ""))[:-3].encode()
        if not begin.startswith(line[: len(begin)].rstrip(b"\n")):
            raise self.error(
                f"{self.path} is no file of {self.what}, or an earlier version wrote it: delete "
                "it, or name another file"
            )
        if len(line) > MAX_LINE_BYTES or size > MAX_JOURNAL_BYTES:
            most = MAX_LINE_BYTES if len(line) > MAX_LINE_BYTES else MAX_JOURNAL_BYTES
            raise self.error(
                f"{self.path}, line {number}: there are more than {most // 2**20} MiB, which no "
                f"file of {self.what} has"
            )

    def _is_torn(self) -> bool:
        """Return whether the file ends in the middle of a line."""
        assert self.path is not None
        with self.path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
