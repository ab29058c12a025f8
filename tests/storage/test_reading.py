"""Files that may be damaged or hostile are bounded before they are looked at."""

import json

import pytest

from tacache.storage.reading import MAX_FILE_BYTES, parse_json, read_bounded


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(100 * MAX_FILE_BYTES)  # a hole, that takes no room
    with pytest.raises(ValueError, match="it has more than 16 MiB"):
        read_bounded(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs twice"),
        ("[" * 40 + "]" * 40, "nested more than 32 deep"),
        ("[" * 100_000, "nested too deeply"),
        ("[1e31]", "beyond 1e"),
        ("[-1" + "0" * 400 + "]", "beyond 1e"),
        ("[1e400]", "not a finite number"),
        ("[NaN]", "not a finite number"),
    ],
)
def test_what_no_sound_file_holds_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_all_else_is_as_json_reads_it():
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert parse_json(json.dumps(value)) == value
    assert parse_json("[Infinity]", finite=False) == [float("inf")]
