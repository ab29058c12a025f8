"""A link to a page that the site does not have becomes its text and the file's name."""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+\.md)(?:#[^)\s]*)?\)")


def unlink(app: Sphinx, page: str, source: list[str]) -> None:
    """Name the file where a link leads to a page of the repository that is not on the site."""
    folder = Path(page).parent

    def named(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[2])).as_posix()
        is_outside = path.removesuffix(".md") not in app.env.found_docs
        is_file = (Path(app.srcdir) / path).is_file()
        return f"{match[1]} (`{path}`)" if is_outside and is_file else match[0]

    source[0] = LINK.sub(named, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page before it is read."""
    app.connect("source-read", unlink)
    return {"parallel_read_safe": True}
