import hashlib
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tacache.errors import HostError
from tacache_lab import published_files
from tacache_lab.published_files import Member, PublishedArchive, cache_folder

CONTENTS = {"first.bin": b"one", "second.bin": b"two"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def published(archive: bytes, suffix: str) -> PublishedArchive:
    return PublishedArchive(
        title="toy files",
        requirement="toy-files==1.0",
        archive=f"toy_files-1.0{suffix}",
        sha256=sha256(archive),
        folder="toys",
        members={name: Member(f"toy/{name}", sha256(CONTENTS[name])) for name in CONTENTS},
    )


def packed(suffix: str) -> bytes:
    """An archive of two files."""
    file = io.BytesIO()
    if suffix == ".whl":
        with zipfile.ZipFile(file, "w") as wheel:
            for name, content in CONTENTS.items():
                wheel.writestr(f"toy/{name}", content)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w:gz") as sdist:
        for name, content in CONTENTS.items():
            member = tarfile.TarInfo(f"toy/{name}")
            member.size = len(content)
            sdist.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture(params=[".whl", ".tar.gz"])
def toys(request, monkeypatch, tmp_path) -> PublishedArchive:
    """An archive that lies in the cache; nothing can be downloaded."""
    monkeypatch.setenv("TACACHE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    archive = packed(request.param)
    toys = published(archive, request.param)
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / toys.archive).write_bytes(archive)
    return toys


def test_an_archive_put_there_by_hand_is_read(toys, tmp_path):
    assert toys.read("first.bin") == b"one"
    (tmp_path / "toys" / toys.archive).unlink()
    assert toys.read("second.bin") == b"two"  # both were kept
    assert sorted(os.listdir(tmp_path / "toys")) == ["first.bin", "second.bin"]


def test_a_changed_file_is_not_read(toys, tmp_path):
    toys.read("first.bin")
    (tmp_path / "toys" / "first.bin").write_bytes(b"something else")
    assert toys.read("first.bin") == b"one"  # made again from the archive
    (tmp_path / "toys" / "first.bin").write_bytes(b"something else")
    (tmp_path / "toys" / toys.archive).write_bytes(b"something else")
    with pytest.raises(HostError, match=r"toy files are in toy_files-1\.0.* \(no file\)") as error:
        toys.read("first.bin")
    assert f"put that file into {tmp_path / 'toys'}" in str(error.value)


def test_a_member_that_is_not_the_one_meant_is_refused(toys):
    toys.members["first.bin"] = Member("toy/second.bin", sha256(b"one"))
    with pytest.raises(HostError, match=r"is not what toy-files==1\.0 holds"):
        toys.read("first.bin")


@pytest.mark.slow
def test_offline_the_error_says_what_pip_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TACACHE_CACHE", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HostError, match=r"not fetched \(ERROR"):
        published(b"", ".whl").read("first.bin")


def test_a_download_that_hangs_ends(monkeypatch, tmp_path):
    monkeypatch.setenv("TACACHE_CACHE", str(tmp_path))
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(published_files, "TIMEOUT", 0.2)
    with pytest.raises(HostError, match="no end after"):
        published(b"", ".whl").read("first.bin")


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TACACHE_CACHE", str(tmp_path / "file"))
    with pytest.raises(HostError, match="Set TACACHE_CACHE"):
        published(b"", ".whl").read("first.bin")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("TACACHE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TACACHE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tacache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "tacache"
