"""Notebooks run cell by cell: `python -m tests.docs.notebooks` runs them and keeps their outputs.

A notebook is a JSON file, and a plain run of its cells needs no server and no further package.
"""

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
DPI = 72  # small pictures


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any], name: str) -> None:
    """Run all cells in one namespace, and put what they print and draw into them."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
        lines = printed.getvalue().splitlines(keepends=True)
        text = [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []
        cell["execution_count"], cell["outputs"] = number, [*text, *drawn()]


def drawn() -> list[dict[str, Any]]:
    """The figures that are open, as outputs; they are closed."""
    from matplotlib import pyplot

    outputs = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", dpi=DPI, metadata={"Software": None})
        data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["figure"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    return outputs


def main() -> None:
    """Run every notebook and write it again."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run(notebook, path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
