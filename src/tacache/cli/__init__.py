"""The command line: parse, call the library, print."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import tacache
from tacache.cli.demo import demo
from tacache.cli.models import calibrate, generate
from tacache.cli.plans import plan, show
from tacache.errors import TACacheError

# missing module -> the extra that brings it
EXTRAS = {"diffusers": "diffusers", "transformers": "diffusers", "PIL": "diffusers"}


class Commands(TyperGroup):
    """Ends on a user's error with one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (TACacheError, OSError) as error:
            print(f"tacache: {error}", file=sys.stderr)
            raise typer.Exit(2) from error
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(tuple(EXTRAS)):
                raise
            extra = EXTRAS[str(error.name).partition(".")[0]]
            print(f"tacache: this needs: pip install 'tacache[{extra}]'", file=sys.stderr)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Rectified-flow image and video generators several times faster, without training.

    [bold]Examples[/bold]

    tacache demo

    tacache plan flux.profile.json --evaluations 13 -o flux.plan.json

    tacache show flux.plan.json

    tacache calibrate black-forest-labs/FLUX.1-dev --prompts calibration -o flux.profile.json

    tacache generate black-forest-labs/FLUX.1-dev --plan flux.plan.json --prompt "a red fox"
    """,
)


def _version(show: bool) -> None:
    if show:
        print(f"tacache {tacache.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before a command; the application's help is on the application."""


for command in (demo, calibrate, plan, show, generate):
    app.command()(command)


def main() -> None:
    """The entry point of the command `tacache`."""
    app()
