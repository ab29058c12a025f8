"""`tacache studio`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from tacache.cli import named_models
from tacache.cli.model_kinds import KINDS
from tacache.cli.options import CallOptions, LoadOptions
from tacache.cli.printing import say
from tacache.errors import TACacheError

OPENED = "How the page is opened"
AUTH = "TACACHE_STUDIO_AUTH"  # the environment variable that holds a name and a password


@dataclass(frozen=True)
class PageOptions:
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
        str,
        typer.Argument(
            help="tiny-flux, tiny-flux-turbo, tiny-wan, a hub id or a pipeline's folder."
        ),
    ] = "tiny-flux",
    *,
    opened: PageOptions,
    store: Annotated[
        Path | None, typer.Option(help="The folder of stored plans (default: the user's own).")
    ] = None,
    call: CallOptions,
    load: LoadOptions,
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

    if model in KINDS:
        raise TACacheError(f"the studio shows pipelines of diffusers, and {model} is none")
    opening = Opening(opened.host, opened.port, read_auth(opened.auth))
    check_opening(opening)
    loading, arguments = load.checked(model), named_models.call_arguments(model, call)
    shown = StudioModel(model, named_models.load(model, loading), arguments)
    with serving(shown, PlanStore(store), opening) as address:
        say(f"The studio is open at {address} (Ctrl+C closes it).")
        while True:
            time.sleep(3600)
