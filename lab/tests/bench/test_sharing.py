"""What may be sent: measurements, and nothing that tells of prompts, pictures or folders."""

from __future__ import annotations

from pathlib import Path

from tests.report_support import PROMPTS, judged, record, undone

from tacache.storage.origin import Origin
from tacache_lab.bench.records import TunedOn, read_records
from tacache_lab.bench.sharing import shareable, write_shareable


def test_prompts_are_numbered_and_measurements_stay(tmp_path):
    records = [judged("tasu", 4, number, 31.0) for number in (1, 0, 1)]
    sent = shareable([record.model_copy(update={"picture": "a red fox.png"}) for record in records])
    assert [one.prompt for one in sent] == ["prompt 1", "prompt 2", "prompt 1"]
    assert [one.to_full for one in sent] == [one.to_full for one in records]
    assert [one.noise_sha256 for one in sent] == [one.noise_sha256 for one in records]
    assert {one.picture for one in sent} == {None}
    write_shareable(records, tmp_path / "r.send.jsonl")
    text = (tmp_path / "r.send.jsonl").read_text("utf-8")
    assert not any(prompt in text for prompt in PROMPTS)
    assert read_records(tmp_path / "r.send.jsonl") == shareable(records)


def test_folders_and_texts_of_the_call_are_left_out(tmp_path):
    call = {"height": 32, "negative_prompt": "a wish", "sizes": [1, 2], "texts": ["a wish"]}
    mine = Origin(model=str(tmp_path), call=call)
    (sent,) = shareable([record("tasu", 4, origin=mine)])
    assert sent.origin.model == Path(tmp_path).name
    assert sent.origin.call == {"height": 32, "sizes": [1, 2]}
    (hub,) = shareable([record("tasu", 4, origin=Origin(model="some/flux"))])
    assert hub.origin.model == "some/flux"


def test_prompts_of_a_file_are_the_senders_own():
    def sent_from(source: str) -> str:
        tuned_on = TunedOn(source=source, samples=4, prompts_sha256="cd", seconds=1.0)
        (sent,) = shareable([record("tasu", 4, tuned_on=tuned_on)])
        assert sent.tuned_on
        return sent.tuned_on.source

    assert sent_from("/home/me/wishes.txt") == "own"
    assert sent_from("calibration") == "calibration"


def test_a_failure_is_told_by_its_kind():
    failed = undone("tasu", 4, PROMPTS[0], "failed", "HostError: no /home/me/weights")
    impossible = undone("tasu", 2, PROMPTS[0], "unreachable", "it cannot run on 2 evaluations")
    assert [one.reason for one in shareable([failed, impossible])] == [
        "HostError",
        "it cannot run on 2 evaluations",
    ]
