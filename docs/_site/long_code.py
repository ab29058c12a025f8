"""Code of many characters may go on in the next line, after a dot, an underscore or a bracket.

Without that, one long name in a cell takes the width of all other columns.
"""

import re
from typing import Any

from sphinx.application import Sphinx

LONG = re.compile(r'(?<=<span class="pre">)[^<]{16,}(?=</span>)')
END_OF_PART = re.compile(r"(?<=[._,(=:/])(?=\w)")


def divisible(code: re.Match[str]) -> str:
    """Mark where a long word of code may be divided."""
    return END_OF_PART.sub("<wbr>", code[0])


def divide(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Mark the long code of a page."""
    if "body" in context:
        context["body"] = LONG.sub(divisible, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page when it is written."""
    app.connect("html-page-context", divide)
    return {"parallel_read_safe": True}
