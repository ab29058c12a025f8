"""`tacache bench`: what it writes and says, and what it refuses."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from tests import command_line
from tests.command_line import our_line
from tests.report_support import record
from tests.tiny import PIPELINES

from tacache_lab.bench import read_records
from tacache_lab.bench.records import Fidelity
from tacache_lab.bench.suites import expanded
from tacache_lab.commands.bench_table import means, print_records
from tacache_lab.report.studies import study
from tacache_lab.report.tables import CROWDED

PLAIN = ("fewer", "instant", "tasu", "fitted-fast")
OF_DIFFUSERS = expanded(["diffusers"], "FluxPipeline")
SIZE = ["--height", "32", "--width", "32", "--call", "max_sequence_length=32", "--steps", "8"]


run = partial(command_line.run, "bench", env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def flux(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "flux"
    PIPELINES["flux"].build().save_pretrained(folder)
    return folder


@pytest.fixture
def few(flux, tmp_path) -> list[object]:
    """A model and prompts few enough for a test."""
    for name, texts in (("test", "a fox\na boat\n"), ("lessons", "a lamp\na kite\na cup\n")):
        (tmp_path / f"{name}.txt").write_text(texts)
    prompts = ["--prompts", tmp_path / "test.txt", "--calibration", tmp_path / "lessons.txt"]
    return [flux, *SIZE, *prompts, "-o", tmp_path / "out" / "r.jsonl"]


@pytest.mark.slow
def test_records_pictures_and_a_summary(few, tmp_path):
    asked = ["--methods", "tasu,easycache", "--evaluations", "4,2", "--seeds", 2, "--seed", 5]
    made = run(*few, *asked, "--keep", tmp_path / "pictures", "--fine", 16)
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "out" / "r.jsonl")
    assert len(records) == 4 * (2 + 2 * 2)
    assert {(record.prompt, record.seed) for record in records} == {
        (prompt, seed) for prompt in ("a fox", "a boat") for seed in (5, 6)
    }
    done = [record for record in records if record.status == "done"]
    assert len(list((tmp_path / "pictures").glob("*.png"))) == len(done) == 4 * 5
    assert all((tmp_path / "out" / record.picture).is_file() for record in done)
    assert "24 records in" in made.stdout
    assert "easycache at 2: easycache cannot run on 2 evaluations" in made.stdout
    again = run(*few, *asked, "--keep", tmp_path / "pictures", "--fine", 16, "--json")
    facts = json.loads(again.stdout)
    assert (facts["records"], facts["done"], facts["unreachable"]) == (24, 20, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --methods or --suite"),
        (["--methods", "tasv"], "unknown method 'tasv': choose from tasu, "),
        (["--methods", "tasu:1"], "thresholds are TAU_K/TAU_D, as in tasu:0.06/0.6"),
        (["--suite", "mian"], "unknown suite 'mian': choose from quick, main, "),
        (["--suite", "main", "--steps", 4], "all budgets of the preset are above 4 steps"),
        (["--methods", "tasu", "--evaluations", "x"], "whole numbers"),
        (["--methods", "tasu", "--evaluations", "9"], "a run of 8 steps has no 9 evaluations"),
        (["--methods", "tasu", "--metrics", "psrn"], "no metric 'psrn'"),
        (["--methods", "tasu", "--prompts", "nowhere.txt"], "cannot read prompts"),
        (["--methods", "tasu@4"], "tasu@4 asks for 4 calibration prompts of 3"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(few, tmp_path, arguments, message):
    made = run(*few, *arguments)
    assert made.exit_code == 2
    assert message in our_line(made)
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_kind_is_left_alone(few, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose this\n")
    made = run(*few, "--methods", "fewer", "-o", notes)
    assert made.exit_code == 2
    assert "notes.txt" in our_line(made)
    assert notes.read_text() == "do not lose this\n"


@pytest.mark.slow
def test_the_table_has_the_equivalent_evaluations_of_a_cache_inside_the_model(few, tmp_path):
    asked = ["--methods", "diffusers-fbcache,fewer", "--evaluations", "4", "--count", 1]
    made = run(*few, *asked)
    assert made.exit_code == 0, made.output
    (cache,) = (
        r
        for r in read_records(tmp_path / "out" / "r.jsonl")
        if r.equivalent_evaluations is not None
    )
    assert cache.equivalent_evaluations > cache.spent  # a skipped step is not quite free
    lines = {line.split()[0]: line.split() for line in made.stdout.splitlines() if line}
    assert f"{cache.equivalent_evaluations:.1f}" in lines["diffusers-fbcache"]
    plain = run(*few, "--methods", "fewer", "--evaluations", "4", "-o", tmp_path / "plain.jsonl")
    assert "equivalent" not in plain.stdout


def test_times_of_a_shared_device_are_told(capsys):
    alone = record("fewer", 4, processes=8, processes_per_device=1)
    print_records([alone], Path("r.jsonl"), ["psnr"], as_json=False)
    assert CROWDED not in capsys.readouterr().out
    shared = record("ab2", 4, processes=8, processes_per_device=8)
    print_records([alone, shared], Path("r.jsonl"), ["psnr"], as_json=False)
    assert CROWDED in capsys.readouterr().out


def test_the_table_has_what_was_asked_for_and_says_what_is_not_there(capsys):
    metrics = {"ssim": 0.5, "clip-iqa": "not run: it needs piq"}
    measured = {"to_full": Fidelity(drift=0.1, metrics=metrics), "scores": {"following": 0.25}}
    records = [record("ab2", 4).model_copy(update=measured)]
    shown = means(study("r", records), ["ssim", "clip-iqa", "following"])
    assert shown.titles == ["method", "budget", "evaluations", "time (s)", "drift", "SSIM",
                            "Prompt following"]  # fmt: skip
    (line,) = shown.lines
    assert [part.value for part in line[4:]] == [0.1, 0.5, 0.25]
    print_records(records, Path("r.jsonl"), ["ssim", "clip-iqa", "lpips"], as_json=False)
    told = capsys.readouterr().out
    assert "CLIP-IQA: not run: it needs piq" in told
    assert "lpips: 1 records were made without it" in told


@pytest.mark.slow
@pytest.mark.no_cover
def test_quick_ends_with_a_page_and_a_file_to_send(few, tmp_path):
    """A model on the disk of its owner, from the first line about cost to what is sent."""
    (tmp_path / "test.txt").write_text("".join(f"secret {i}\n" for i in range(9)))
    (tmp_path / "lessons.txt").write_text("".join(f"lesson {i}\n" for i in range(9)))
    asked = ["--suite", "quick", "--evaluations", "5", "--call", "negative_prompt=a secret wish"]
    made = run(*few, *asked)
    assert made.exit_code == 0, made.output
    expected = re.search(r"this takes about ([\d,]+) evaluations", made.stderr)
    assert expected
    target = tmp_path / "out" / "r.jsonl"
    records = read_records(target)
    assert len(OF_DIFFUSERS) >= 4
    assert {r.method for r in records} == {"full", *PLAIN, *OF_DIFFUSERS}
    assert {r.status for r in records} == {"done"}
    assert len({r.prompt for r in records}) == 8
    tuned = {(r.method, r.evaluations): r.prepare_evaluations or 0 for r in records}
    at_velocities = 2 * 8 * 8 + sum(tuned.values()) + sum(r.spent for r in records)
    told = int(expected[1].replace(",", ""))
    assert told > at_velocities * 0.8
    page = (tmp_path / "out" / "r.jsonl.report" / "index.html").read_text("utf-8")
    assert "secret 3" in page
    assert "data:image/png" in page
    sent = tmp_path / "out" / "r.send.jsonl"
    text = sent.read_text("utf-8")
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert ".png" not in text
    assert [r.to_full for r in read_records(sent)] == [r.to_full for r in records]
    again = run(*few, *asked)
    assert again.exit_code == 0
    assert "this takes" not in again.stderr  # nothing is left to do
    assert sent.read_text("utf-8") == text
