"""The records of a benchmark: their format, torn lines, and parts of several processes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tacache.storage.origin import Origin
from tacache_lab.bench.records import (
    Fidelity,
    Machine,
    Record,
    RecordError,
    RecordFile,
    TunedOn,
    read_records,
    rounded,
)

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "v1.records.jsonl"
TRACED = Path(__file__).parents[3] / "tests" / "golden" / "v1.traced.records.jsonl"


def record(**changes: Any) -> Record:
    fields = {
        "method": "tasu",
        "evaluations": 2,
        "prompt": "a red fox",
        "seed": 0,
        "status": "done",
        "settings": {"rule": "tasu", "anchors": [0, 1], "tau_k": 0.06},
        "evaluated": (1.0, 0.75),
        "noise_sha256": "ab",
        "seconds": 0.5,
        "prepare_seconds": 2.0,
        "to_full": Fidelity(drift=0.125, metrics={"psnr": 30.5, "lpips": "not run: no weights"}),
        "tuned_on": TunedOn(source="calibration", samples=8, prompts_sha256="cd", seconds=4.0),
        "steps": 4,
        "fine": None,
        "origin": Origin(kind="diffusers", pipeline="FluxPipeline", call={"height": 32}),
        "machine": Machine(device="cpu: x86_64", versions={"tacache": "0.1.0", "torch": "2.4"}),
    }
    return Record(**(fields | changes))


RECORDS = [
    record(method="full", evaluations=4, settings=None, to_full=None, tuned_on=None,
           prepare_seconds=None, evaluated=(1.0, 0.75, 0.5, 0.25)),
    record(picture="pictures/0000-a-red-fox-s0-tasu-2.png", memory_bytes=1024,
           scores={"clip-iqa": 0.5}, to_fine=Fidelity(drift=0.25, metrics={})),
    record(method="magcache:flux", evaluations=None, settings={"delta": 0.24}),
    record(method="vde", status="unreachable", reason="vde cannot run on 2 evaluations",
           settings=None, evaluated=(), noise_sha256=None, seconds=None, to_full=None),
]  # fmt: skip


# with the fields that came later and are left out while unset
WITH_MORE = [
    record(method="full", evaluations=4, settings=None, to_full=None, tuned_on=None,
           prepare_seconds=None, evaluated=(1.0, 0.75, 0.5, 0.25), flops=123456789012,
           traces={"times": (1.0, 0.75, 0.5, 0.25, 0.0), "magnitude": (0.1, -0.2, 0.3, None),
                   "direction": (0.5, 0.25, 0.125, None)}),
    record(timings=(0.4, 0.5, 0.9), flops=61728394506, processes=8,
           processes_per_device=8,
           traces={"state_drift": (0.0, 0.0, 0.01, 0.02, 0.125),
                   "velocity_drift": (0.0, 0.0, 0.1, 0.2), "evaluated": (1.0, 1.0, 0.0, 0.0),
                   "cos_theta": (None, None, 0.75, 0.5)}),
    record(method="dicache", settings={"threshold": 0.5}, equivalent_evaluations=2.25,
           flops=70000000000),
    record(method="ab2", settings={"times": [1.0, 0.5, 0.0]}, tuned_on=None, timings=(0.4, 0.6),
           full_seconds=1.25, processes=8, processes_per_device=1),
]  # fmt: skip


@pytest.mark.parametrize(("path", "records"), [(GOLDEN, RECORDS), (TRACED, WITH_MORE)])
def test_the_golden_files_read_as_they_were_written(path, records):
    assert read_records(path) == records
    assert path.read_text() == "".join(one.to_line() for one in records)


def test_traces_have_six_digits():
    assert rounded([1 / 3, None, 123456.789, 0.0]) == (0.333333, None, 123457.0, 0.0)


def test_of_two_records_with_one_key_the_later_stays(tmp_path):
    file, later = RecordFile(tmp_path / "r.jsonl"), record(seconds=0.25)
    with file.adding() as add:
        for one in (RECORDS[0], record(), later):
            add(one)
    file.join()
    assert read_records(file.path) == [RECORDS[0], later]


def test_a_record_knows_what_it_spent():
    assert [one.spent for one in RECORDS] == [4, 2, 2, 0]
    assert RECORDS[2].key == ("magcache:flux", None, "a red fox", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"psrn": 3.0}, "unknown field 'psrn'"),
        ({"version": 2}, "version 2 of tacache-record, this tacache reads version 1"),
        ({"format": "tacache-plan"}, "is not a tacache-record file"),
        ({"seconds": None}, "has seconds"),
        ({"status": "failed"}, "says why"),
        ({"reason": "slow"}, "says why"),
        ({"status": "perhaps"}, "status"),
        ({"evaluations": 0}, "evaluations"),
        ({"seconds": float("inf")}, "seconds"),
        ({"timings": [0.5]}, "timings"),
        ({"flops": 0}, "flops"),
        ({"traces": {"state_drift": ["far"]}}, "traces"),
    ],
)
def test_a_line_that_is_not_right_is_an_error_with_its_number(tmp_path, change, message):
    path = tmp_path / "r.jsonl"
    wrong = json.loads(RECORDS[1].to_line()) | change
    path.write_text(RECORDS[0].to_line() + json.dumps(wrong) + "\n")
    with pytest.raises(RecordError, match="line 2") as raised:
        read_records(path)
    assert message in str(raised.value)


def test_whatever_a_kill_leaves_of_a_line_is_written_over(tmp_path):
    path, second = tmp_path / "r.jsonl", RECORDS[1].to_line()
    for length in (1, 5, 30, len(second) // 2, len(second) - 1):
        path.write_text(RECORDS[0].to_line() + second[:length])
        assert read_records(path) == RECORDS[:1]
        with RecordFile(path).adding() as add:
            add(RECORDS[1])
            add(RECORDS[2])
        assert read_records(path) == RECORDS[:3]


@pytest.mark.parametrize("content", ["# my notes", "# my notes\n", '{"prompt": "a fox"}\n', "{"])
def test_a_file_of_another_kind_stays_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    if content == "{":  # may be all that a kill has left
        assert read_records(path) == []
        return
    with pytest.raises(RecordError):
        read_records(path)
    with pytest.raises(RecordError), RecordFile(path).adding():
        pass
    assert path.read_text() == content


def test_parts_are_joined_once_whatever_happens_in_between(tmp_path):
    file = RecordFile(tmp_path / "r.jsonl")
    with file.adding() as add:
        add(RECORDS[0])
    for rank in (0, 1):
        with file.adding(rank, 2) as add:
            add(RECORDS[1 + rank])
    (left,) = tmp_path.glob("*part-1")
    torn = left.read_text() + RECORDS[3].to_line()[:40]
    file.join()
    assert read_records(file.path) == RECORDS[:3]
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
    left.write_text(torn)  # as if the kill came before the part was gone
    file.join()
    assert read_records(file.path) == RECORDS[:3]
    assert not left.exists()


def test_a_packed_file_is_read_and_not_appended_to(tmp_path):
    plain_text = GOLDEN.read_bytes()
    packed = tmp_path / "results.jsonl.gz"
    packed.write_bytes(gzip.compress(plain_text))
    assert read_records(packed) == read_records(GOLDEN)
    with pytest.raises(RecordError, match="is packed: gunzip it first"):
        RecordFile(packed)
    packed.write_bytes(plain_text)
    with pytest.raises(RecordError, match="cannot be unpacked"):
        read_records(packed)


def test_parts_of_any_name_are_found(tmp_path):
    file = RecordFile(tmp_path / "run[1].jsonl")
    assert not file.is_there
    with file.adding(1, 2) as add:
        add(RECORDS[0])
    assert file.is_there
    file.join()
    assert read_records(file.path) == RECORDS[:1]


def test_a_damaged_pack_is_named(tmp_path):
    path = tmp_path / "r.jsonl.gz"
    packed = bytearray(gzip.compress(GOLDEN.read_bytes()))
    packed[20:60] = bytes(40)
    for content in (bytes(packed), b"no pack"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"r\.jsonl\.gz cannot be unpacked"):
            read_records(path)
