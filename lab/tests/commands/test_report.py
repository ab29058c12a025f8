"""`tacache report`: the files it writes, and the README it keeps true."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from tests import command_line
from tests.command_line import our_line
from tests.report_support import bench, save

from tacache_lab.report import Summary, fill, read_study, study
from tacache_lab.report.readme import marked

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


run = partial(command_line.run, "report")


@pytest.fixture
def results(tmp_path) -> Path:
    return save(bench(), tmp_path / "in" / "main.jsonl")


@pytest.fixture
def quick(monkeypatch) -> None:
    """One figure only."""
    from tacache_lab.report import figures

    monkeypatch.setattr(figures, "FIGURES", {"pareto": figures.FIGURES["pareto"]})


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_report_is_a_folder(results, tmp_path):
    before = results.read_bytes()
    made = run(results, "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "6 files in" in made.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "index.html", "main-pareto.png", "main-pareto.svg", "main.csv", "main.md", "summary.json",
    ]  # fmt: skip
    assert Summary.load(tmp_path / "out" / "summary.json").studies == (study("main", bench()),)
    assert results.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_several_files_are_several_studies_and_json_names_what_was_written(results, tmp_path):
    other = save(bench()[:4], tmp_path / "in" / "other.jsonl")
    made = run(results, other, "-o", tmp_path / "out", "--pictures", 0, "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert all(Path(file).is_file() for file in facts["files"])
    assert {Path(file).name for file in facts["files"]} >= {"main.md", "other.md", "index.html"}
    assert (tmp_path / "out" / "index.html").read_text().count('class="study"') == 2


def test_a_document_gets_its_tables_and_nothing_else_is_written(results, tmp_path):
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- tacache report: main -->\n<!-- end -->\nafter\n")
    made = run(results, "--into", document)
    assert made.exit_code == 0, made.output
    assert "has new tables" in made.stdout
    text = document.read_text()
    assert "| fitted | **39.10" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert not (tmp_path / "report").exists()
    again = run(results, "--into", document, "--json")
    assert json.loads(again.stdout) == {"files": [], "changed": False}
    assert "is as it was measured" in run(results, "--into", document).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("no marks\n", "shows none of main: put <!-- tacache report: main -->"),
        ("<!-- tacache report: main full.psrn -->\n<!-- end -->\n", "has no 'full.psrn'"),
    ],
)
def test_documents_that_cannot_be_filled_are_left_alone(results, tmp_path, content, message):
    document = tmp_path / "README.md"
    if content is not None:
        document.write_text(content)
    assert message in our_line(run(results, "--into", document))
    assert content is None or document.read_text() == content


def test_mistakes_are_our_line(results, tmp_path):
    assert "there is no results file" in our_line(run(tmp_path / "none.jsonl"))
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose this\n")
    assert "is no file of records" in our_line(run(notes, "-o", tmp_path / "out"))
    assert "two results files are named" in our_line(run(results, results))
    assert not (tmp_path / "out").exists()
    assert not Path("report").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_only_a_report_is_written_over(results, tmp_path):
    (tmp_path / "out").mkdir()
    notes = tmp_path / "out" / "main.md"
    notes.write_text("do not lose this\n")
    assert "no report wrote it" in our_line(run(results, "-o", tmp_path / "out"))
    assert notes.read_text() == "do not lose this\n"
    notes.unlink()
    for _ in range(2):
        assert run(results, "-o", tmp_path / "out").exit_code == 0


def test_a_record_with_a_huge_number_is_our_line(results, tmp_path):
    text = results.read_text().replace('"psnr": ', '"psnr": 1e308, "other": ', 1)
    results.write_text(text)
    assert "psnr' is beyond 1e+30" in our_line(run(results, "-o", tmp_path / "out"))


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_what_is_missing_is_said_before_anything_is_written(
    results, tmp_path, package, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'tacache[report]'" in our_line(run(results, "-o", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_help_has_examples():
    shown = run("--help").stdout
    for text in (
        "Examples",
        "tacache report results.jsonl -o report",
        "--into",
        "--pictures",
        "top=8",
    ):
        assert text in shown


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("document", [f"docs/reference/{name}.md" for name in ("results", "clips")])
def test_a_document_shows_what_was_measured(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    names = marked(text)
    assert names
    files = {path.name.partition(".")[0]: path for path in RESULTS.glob("*.jsonl*")}
    missing = set(names) - set(files)
    assert not missing, f"{document} shows {missing}, which benchmarks/results does not have"
    studies = {name: read_study(files[name]) for name in names}
    files_shown = " ".join(f"benchmarks/results/{files[name].name}" for name in studies)
    assert fill(text, studies) == text, f"run: tacache report {files_shown} --into {document}"
