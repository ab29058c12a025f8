"""Cells of tables that hold a number are not broken in two: 42.47 ± 2.30, 8.59 s, 33.20, 4 %."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

NUMBER = re.compile(r"[-+]?\d[\d.,]*x?(?: (?:±|of|to|s|ms|dB|GiB|%|†|‡|[-+]?[\d.,]+))*")


def mark(app: Sphinx, tree: Any) -> None:
    """Give every cell with a number a class, for which the style sheet has a rule."""
    for cell in tree.findall(nodes.entry):
        is_code = next(cell.findall(nodes.literal), None) is not None
        if not is_code and NUMBER.fullmatch(cell.astext().strip()):
            cell["classes"].append("number")


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page when it was read."""
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True}
