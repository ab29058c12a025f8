"""Notebooks run from top to bottom in a new folder, and are small."""

import json

import pytest

from tests.docs import notebooks

FILES = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
LARGEST = 300_000  # bytes, with outputs


def test_there_are_two():
    assert [path.stem for path in FILES] == ["five-minutes", "velocity-function"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path / "home"))
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept = [len(cell["outputs"]) for cell in notebooks.code_cells(notebook)]
    notebooks.run(notebook, path.name)
    made = [len(cell["outputs"]) for cell in notebooks.code_cells(notebook)]
    assert made == kept, "python -m tests.docs.notebooks keeps the outputs"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_of_the_known_format(path):
    assert path.stat().st_size < LARGEST
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
