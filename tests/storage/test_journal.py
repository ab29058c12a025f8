"""A journal: what a kill leaves is no harm, nobody's file is lost, all is bounded."""

import gzip
import json
import tracemalloc

import pytest

from tacache.errors import StorageError, TACacheError
from tacache.storage import journal as journals
from tacache.storage.journal import Journal


class WorkError(TACacheError):
    """What the journal of these tests raises."""


def journal(path, job="job"):
    return Journal(path, {"job": job}, "entries", "work", WorkError)


def found(path, job="job"):
    return list(journal(path, job).read(lambda entry: entry["n"]))


def test_what_is_appended_is_read_in_its_order(tmp_path):
    path = tmp_path / "deep" / "x"
    assert found(path) == []
    for n in (3, 1, float("inf")):
        journal(path).append({"n": n})
    assert found(path) == [3, 1, float("inf")]
    assert path.read_text().startswith('{"job": "job", "n": 3}\n')


def test_without_a_path_nothing_is_kept():
    journal(None).append({"n": 1})
    assert found(None) == []


@pytest.mark.parametrize("torn", ["{", '{"jo', '{"job": "job", "n', '{"job": "job", "n": 1}'])
def test_a_torn_line_is_passed_over_and_the_next_entry_has_a_line_of_its_own(tmp_path, torn):
    path = tmp_path / "x"
    journal(path).append({"n": 0})
    with path.open("a") as file:
        file.write(torn)
    assert found(path) == [0]
    journal(path).append({"n": 2})
    assert found(path)[0] == 0
    assert found(path)[-1] == 2


def test_a_torn_last_line_can_be_cut_off(tmp_path):
    path = tmp_path / "x"
    journal(path).cut_torn_line()  # nothing is there
    journal(path).append({"n": 0})
    whole = path.read_text()
    path.write_text(whole + '{"job": "jo')
    journal(path).cut_torn_line()
    assert path.read_text() == whole


@pytest.mark.parametrize(
    "text", ["a diary", "a diary\n", '{"job": "job", "n": 1}\na diary\n', "[]"]
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "x"
    path.write_text(text)
    for use in (lambda: found(path), journal(path).cut_torn_line):
        with pytest.raises(WorkError, match="x is no file of entries, or an earlier version"):
            use()
    assert path.read_text() == text


def test_entries_of_another_job_are_refused(tmp_path):
    journal(tmp_path / "x", "other").append({"n": 1})
    with pytest.raises(WorkError, match=r"x holds entries of another work .* delete it"):
        found(tmp_path / "x")


@pytest.mark.parametrize(
    "line",
    [
        '{"job": "job"}',
        '{"job": "job", "n": 1, "n": 2}',
        '{"job": "job", "n": ' + "[" * 100 + "]" * 100 + "}",
        '{"job": "job", "n": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"job": "job", "n": 1' + "0" * 400 + "}",
    ],
    ids=["a missing field", "a key twice", "deep", "too deep to parse", "huge"],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "x"
    path.write_text('{"job": "job", "n": 1}\n' + line + "\n")
    with pytest.raises(WorkError, match=r"x, line 2 is damaged, or an earlier version wrote it"):
        found(path)


@pytest.mark.slow
def test_a_pack_that_unpacks_to_very_much_is_refused_with_little_memory(tmp_path, monkeypatch):
    path = tmp_path / "x.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(WorkError, match="is no file of entries"):  # as the first line says
        found(path)
    monkeypatch.setattr(journals, "MAX_LINE_BYTES", 2**20)
    with gzip.open(path, "wb") as file:
        file.write(b'{"job": "job", "n": "')
        for _ in range(64):
            file.write(b"x" * 2**20)
    with pytest.raises(WorkError, match="line 1: there are more than 1 MiB"):
        found(path)
    assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    tracemalloc.stop()


def test_a_journal_of_sound_lines_has_an_end(tmp_path, monkeypatch):
    path = tmp_path / "x.gz"
    line = json.dumps({"job": "job", "n": "x" * 1000}).encode() + b"\n"
    with gzip.open(path, "wb") as file:
        for _ in range(3000):
            file.write(line)
    monkeypatch.setattr(journals, "MAX_JOURNAL_BYTES", 2**20)
    with pytest.raises(WorkError, match="there are more than 1 MiB, which no file of entries has"):
        found(path)


def test_a_journal_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/x \(.*\): make room, or name"):
        journal(tmp_path / "file" / "x").append({"n": 1})
