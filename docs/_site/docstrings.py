"""Docstrings are plain sentences: what reStructuredText would read as a mark is escaped."""

import re
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

CODE = re.compile(r"(`[^`]+`)")
MARKS = re.compile(r"([*|\\]|_(?=\W|$))")


def escape(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep `code` as it is, and escape stars, bars and trailing underscores elsewhere."""
    for number, line in enumerate(lines):
        parts = CODE.split(line)
        lines[number] = "".join(
            part if CODE.fullmatch(part) else MARKS.sub(r"\\\1", part) for part in parts
        )


def shorten(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leave out the fields of a file's class: the page of formats has them."""
    is_record = isinstance(thing, type) and issubclass(thing, BaseModel)
    return ("", "") if is_record else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Pass every docstring and every signature through."""
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
