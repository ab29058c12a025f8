"""Notebooks run from top to bottom in a new folder, and are small."""

import json

import pytest
from tests.docs import notebooks

FILES = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path / "home"))
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept = [len(cell["outputs"]) for cell in notebooks.code_cells(notebook)]
    notebooks.run(notebook, path.name)
    made = [len(cell["outputs"]) for cell in notebooks.code_cells(notebook)]
    assert made == kept, "python -m tests.docs.notebooks keeps the outputs"
