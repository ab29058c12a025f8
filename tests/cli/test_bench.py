"""`tacache bench`: what it writes and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacache.cli import app
from tacache.cli.bench_table import print_records
from tacache.lab.bench import read_records
from tacache.lab.bench.records import Fidelity
from tests.report_support import record
from tests.tiny import PIPELINES

SIZE = ["--height", "32", "--width", "32", "--call", "max_sequence_length=32", "--steps", "8"]


def run(*arguments: object):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "120"})


def one_line(result) -> str:
    """Our one line among what the libraries log."""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tacache: ")]
    return line


@pytest.fixture(scope="module")
def flux(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "flux"
    PIPELINES["flux"].build().save_pretrained(folder)
    return folder


@pytest.fixture
def few(flux, tmp_path) -> list[object]:
    """A model and prompts few enough for a test."""
    for name, texts in (("test", "a fox\na boat\n"), ("taught", "a lamp\na kite\na cup\n")):
        (tmp_path / f"{name}.txt").write_text(texts)
    prompts = ["--prompts", tmp_path / "test.txt", "--calibration", tmp_path / "taught.txt"]
    return [flux, *SIZE, *prompts, "-o", tmp_path / "out" / "r.jsonl"]


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
        (["--suite", "mian"], "unknown suite 'mian': choose from main, "),
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
    assert message in one_line(made)
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_kind_is_left_alone(few, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose this\n")
    made = run(*few, "--methods", "fewer", "-o", notes)
    assert made.exit_code == 2
    assert "notes.txt" in one_line(made)
    assert notes.read_text() == "do not lose this\n"


def test_the_table_has_the_equivalent_evaluations_of_a_cache_inside_the_model(few, tmp_path):
    asked = ["--methods", "diffusers-fbcache,fewer", "--evaluations", "4", "--count", 1]
    made = run(*few, *asked)
    assert made.exit_code == 0, made.output
    (cache,) = (r for r in read_records(tmp_path / "out" / "r.jsonl") if r.worth is not None)
    assert cache.worth > cache.spent  # a skipped step is not quite free
    lines = {line.split()[1]: line.split() for line in made.stdout.splitlines() if "│" in line}
    assert "equivalent" in made.stdout.split("fewer")[0]
    assert lines["diffusers-fbcache"][7] == f"{cache.worth:.1f}"
    assert "amounts to; compare it by these" in made.stdout
    plain = run(*few, "--methods", "fewer", "--evaluations", "4", "-o", tmp_path / "plain.jsonl")
    assert "equivalent" not in plain.stdout


def test_times_of_a_shared_device_are_told(capsys):
    alone = record("fewer", 4, processes=8, sharing=1)
    print_records([alone], Path("r.jsonl"), ["psnr"], as_json=False)
    assert "not comparable" not in capsys.readouterr().out
    print_records([alone, record("ab2", 4, processes=8)], Path("r.jsonl"), ["psnr"], as_json=False)
    assert (
        "8 processes shared a device, so that times are not comparable" in capsys.readouterr().out
    )


def test_the_table_has_what_was_asked_for_and_says_what_is_not_there(capsys):
    metrics = {"ssim": 0.5, "clip-iqa": "not run: it needs piq"}
    found = {"to_full": Fidelity(drift=0.1, metrics=metrics), "scores": {"following": 0.25}}
    records = [record("ab2", 4).model_copy(update=found)]
    print_records(records, Path("r.jsonl"), ["ssim", "clip-iqa", "following"], as_json=False)
    told = capsys.readouterr().out
    assert "0.5000" in told
    assert "0.2500" in told
    assert "clip-iqa: not run: it needs piq" in told
    assert "psnr" not in told
