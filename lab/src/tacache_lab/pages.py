"""What the demo's page and the report have in common: templates, and pictures inside the page."""

import base64
from typing import Any

from tacache.errors import TACacheError


def template(package: str, name: str, extra: str) -> Any:
    """Return a template of a package, which jinja2 fills in.

    `extra` is the one that installs it.
    """
    try:
        from jinja2 import Environment, PackageLoader
    except ModuleNotFoundError as error:
        raise TACacheError(f"the page needs: pip install 'tacache[{extra}]'") from error
    loader = PackageLoader(package)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(name)


def data_address(kind: str, content: bytes) -> str:
    """Return an address that holds a file of a media type such as image/png."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
