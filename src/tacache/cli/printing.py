"""Everything that the commands print goes through these four functions."""

import json
import sys
from typing import Any

from rich.console import Console, RenderableType

from tacache.errors import printable


def say(message: str) -> None:
    """Print a line of the result on standard output."""
    print(printable(message))


def tell(message: str) -> None:
    """Print one line about the run on standard error, where it does not mix with the result."""
    print(printable(" ".join(message.split())), file=sys.stderr)


def show(view: RenderableType) -> None:
    """Print a table or a view on standard output."""
    Console().print(view)


def print_json(value: Any) -> None:
    """Print a value on standard output for programs to read."""
    print(json.dumps(value, indent=2))
