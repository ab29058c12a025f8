"""benchmarks/demo.py and demo_means.py: figures of the demo for its page and for the pages."""

import json
import sys

import pytest
from benchmarks import demo as command
from benchmarks import demo_means
from tests.demo_support import budget, demo_of

MARKERS = "before\n<!-- tacache demo: m{} -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def folder(tmp_path):
    """What `tacache demo` leaves, as far as it is copied."""
    made = demo_of(*(budget(rule, k, 30.0) for k in (13, 10, 7) for rule in ("fitted", "tasu")))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "demo.json").write_text(made.model_dump_json())
    (tmp_path / "made" / "strip.png").write_bytes(b"picture")
    (tmp_path / "made" / "film.webp").write_bytes(b"film")
    return tmp_path / "made"


def test_strip_record_and_table_go_into_the_documentation(folder, tmp_path, monkeypatch, capsys):
    figures, page = tmp_path / "figures", tmp_path / "page.md"
    figures.mkdir()
    page.write_text(MARKERS.format(""))
    monkeypatch.setattr(command, "FIGURES", figures)
    monkeypatch.setattr(command, "PAGES", (page,))
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo", str(folder)])
    command.main()
    assert capsys.readouterr().out == "page.md has new tables\n"
    assert json.loads((figures / "demo-m.json").read_text())["model"] == "m"
    assert (figures / "demo-m.png").read_bytes() == b"picture"
    assert (figures / "demo-m.webp").read_bytes() == b"film"
    text = page.read_text()
    assert text.startswith("before\n<!-- tacache demo: m -->\n\n| ")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "old" not in text
    assert text.count("| ours, fitted |") == 3
    command.main()
    assert page.read_text() == text
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_figures_over_24_prompts_are_those_of_the_records():
    text = demo_means.TARGET.read_text(encoding="utf-8")
    assert text == demo_means.text()
    known = json.loads(text)
    rows = {(run["model"], run["steps"]): run["plans"] for run in known["runs"]}
    assert {row["prompts"] for plans in rows.values() for row in plans} == {24}
    (fitted,) = (
        row for row in rows["tiny-flux", 50] if (row["rule"], row["evaluations"]) == ("fitted", 13)
    )
    assert (fitted["psnr"], fitted["p5"]) == (39.96, 26.64)
