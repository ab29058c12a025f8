"""The atomic write, on disks that are full and in folders where others plant links."""

import os
import subprocess
import sys
import threading

import pytest

from tacache.errors import StorageError
from tacache.storage import atomic
from tacache.storage.atomic import check_writable, write_atomically, writing


def test_a_write_cut_short_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "x.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_the_new_text_is_never_seen_half_written(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write_atomically(path, "old")
    seen = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (seen.append(path.read_text()), fsync(fd)))
    write_atomically(path, "new")
    assert seen == ["old"]
    assert path.read_text() == "new"


def test_nothing_is_written_through_a_link_at_the_drafts_name(tmp_path, monkeypatch):
    class Known:
        hex = "0" * 32

    monkeypatch.setattr(atomic.uuid, "uuid4", Known)
    victim, target = tmp_path / "victim", tmp_path / "x.png"
    victim.write_text("mine")
    (tmp_path / f".x{atomic.DRAFT}{'0' * 12}.png").symlink_to(victim)
    with pytest.raises(StorageError, match=r"cannot write .*x\.png \(File exists\)"):
        write_atomically(target, "yours")
    assert victim.read_text() == "mine"
    assert not target.exists()


def test_two_threads_on_one_target_do_not_meet(tmp_path):
    target, meet, drafts = tmp_path / "x.txt", threading.Barrier(2), []

    def write(text):
        with writing(target) as draft:
            drafts.append(draft)
            draft.write_text(text)
            meet.wait()
            assert draft.read_text() == text

    threads = [threading.Thread(target=write, args=(text * 5,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drafts)) == 2
    assert target.read_text() in ("aaaaa", "bbbbb")
    assert os.listdir(tmp_path) == ["x.txt"]


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
from tacache.errors import StorageError
from tacache.fitting.full_runs import keep_runs
from tacache.storage.tensors import save_values
from tacache.storage.atomic import check_writable, write_atomically
from tacache.storage.journal import Journal
folder = Path(sys.argv[1])

journal = Journal(folder / "journal", {"job": "x"}, "entries", "work", StorageError)
large = torch.zeros(2, 10000)
for write in (
    lambda: write_atomically(folder / "text", "x" * 100_000),
    lambda: keep_runs(folder / "runs", "job", (1.0, 0.0), large, large),
    lambda: save_values(folder / "tensors", {"x": large}),
    lambda: check_writable(folder / "deep" / "er"),
    lambda: [journal.append({"n": n, "text": "x" * 3000}) for n in range(9)],
):
    try:
        write()
    except StorageError as error:
        print(error)
print(list(journal.read(lambda entry: entry["n"])))
journal.path.unlink()
"""


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_that_names_the_file_and_leaves_no_draft(tmp_path):
    """A limit on the size of files stands for the disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    *lines, kept = done.stdout.splitlines()
    for line, name in zip(lines, ("text", "runs", "tensors", "deep/er", "journal"), strict=True):
        assert line.startswith(f"cannot write {tmp_path / name} (")
    assert kept == "[0, 1]"
    assert os.listdir(tmp_path) == []


def test_a_folder_is_tried_without_a_trace(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file, and a folder is needed: name another"):
        check_writable(tmp_path / "file" / "b")


def test_a_read_only_folder_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(StorageError, match=r"cannot write .* \(Read-only file system\)"):
        check_writable(tmp_path)


def test_drafts_of_killed_writers_are_removed_and_those_of_others_stay(tmp_path):
    old, new, foreign = (tmp_path / name for name in (
        f".plan{atomic.DRAFT}1.json", f".plan{atomic.DRAFT}2.json", ".plan.json"))  # fmt: skip
    for path in (old, new, foreign):
        path.write_text("half")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    write_atomically(tmp_path / "plan.json", "whole")
    assert sorted(tmp_path.iterdir()) == sorted([new, foreign, tmp_path / "plan.json"])
