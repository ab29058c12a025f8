"""`tacache studio`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from tacache.cli import hosts
from tacache.cli.options import Call, Load
from tacache.cli.printing import say
from tacache.errors import TACacheError

OPENED = "How the page is opened"
AUTH = "TACACHE_STUDIO_AUTH"  # the environment variable that holds a name and a password


@dataclass(frozen=True)
class Opened:
    """Where the page is, and who may see it."""

    PANEL: ClassVar = OPENED
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = (
        7860
    )
    host: Annotated[
        str, typer.Option(help="The address; any but this machine's own needs --auth.")
    ] = "127.0.0.1"
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="USER:PASSWORD",
            envvar=AUTH,
            help="The name and password that open the page. Other users of this machine can read "
            "an option; they cannot read the environment variable.",
        ),
    ] = None


def studio(
    model: Annotated[
        str, typer.Argument(help="tiny-flux, tiny-wan, a hub id or a pipeline's folder.")
    ] = "tiny-flux",
    *,
    opened: Opened,
    store: Annotated[
        Path | None, typer.Option(help="The folder of stored plans (default: the user's own).")
    ] = None,
    call: Call,
    load: Load,
) -> None:
    """Open a page on this machine: try prompts, see what a speed costs, and learn plans.

    [bold]Examples[/bold]

    tacache studio

    tacache studio tiny-wan --port 8000

    TACACHE_STUDIO_AUTH=me:secret tacache studio ./my-model --host 0.0.0.0
    """
    from tacache.storage.store import PlanStore
    from tacache.studio.model import StudioModel
    from tacache.studio.server import Opening, check_opening, read_auth, serving
    from tacache.studio.shelf import Shelf

    if model in hosts.NAMED:
        raise TACacheError(f"the studio shows pipelines of diffusers, and {model} is none")
    opening = Opening(opened.host, opened.port, read_auth(opened.auth))
    check_opening(opening)
    asked, arguments = load.checked(model), hosts.call_arguments(model, call)
    shown = StudioModel(model, hosts.load(model, asked), arguments)
    with serving(shown, Shelf(shown, PlanStore(store)), opening) as address:
        say(f"The studio is open at {address} (Ctrl+C closes it).")
        while True:
            time.sleep(3600)
