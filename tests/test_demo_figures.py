"""benchmarks/demo.py: a demo's strip and record for the documentation, and tables from it."""

import json
import sys

import pytest

from benchmarks import demo as command
from tacache.errors import TACacheError
from tests.demo_support import budget, demo_of

MARKERS = "before\n<!-- tacache demo: m{} -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def folder(tmp_path):
    """What `tacache demo` leaves, as far as it is copied."""
    made = demo_of(*(budget(rule, k, 30.0) for k in (13, 10, 7) for rule in ("fitted", "tasu")))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "demo.json").write_text(made.model_dump_json())
    (tmp_path / "made" / "strip.png").write_bytes(b"picture")
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
    text = page.read_text()
    assert text.startswith("before\n<!-- tacache demo: m -->\n\n| ")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "old" not in text
    assert text.count("| ours, fitted |") == 3
    command.main()
    assert page.read_text() == text
    assert capsys.readouterr().out == ""


def test_a_short_table_is_asked_for_by_its_marker(folder, tmp_path):
    (folder / "demo.json").rename(tmp_path / "demo-m.json")
    assert command.fill(MARKERS.format(" short"), tmp_path).count("| ours, fitted |") == 2


def test_a_table_without_its_record_is_refused(tmp_path):
    with pytest.raises(TACacheError, match=r"demo-m\.json is missing"):
        command.fill(MARKERS.format(""), tmp_path)
