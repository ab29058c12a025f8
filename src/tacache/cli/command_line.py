"""The command line: parse, call the library, print."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import tacache
from tacache.cli import stored_commands as stored
from tacache.cli.calibrate_command import calibrate
from tacache.cli.fit_command import fit
from tacache.cli.generate_command import generate
from tacache.cli.groups import grouped
from tacache.cli.plan_commands import plan, pull, push, show
from tacache.cli.printing import say, tell
from tacache.cli.serve_command import serve
from tacache.cli.studio_command import studio
from tacache.errors import TACacheError
from tacache.extensions import COMMANDS, extensions

# The base of what typer raises on wrong options; it is not among typer's public names.
UsageError: Any = typer.BadParameter.__mro__[1]

# missing module -> the extra that brings it
EXTRAS = {
    **dict.fromkeys(("diffusers", "transformers", "PIL", "huggingface_hub"), "diffusers"),
    "gradio": "studio",
    **dict.fromkeys(("fastapi", "prometheus_client", "ray", "starlette", "uvicorn"), "serve"),
}
# A command that the lab adds, and what brings it with all that it needs.
LAB_COMMANDS = {
    "bench": "pip install tacache-lab (in a checkout: ./lab)",
    "demo": "pip install 'tacache-lab[demo]' (in a checkout: './lab[demo]' ./models)",
    "export": "pip install tacache-lab (in a checkout: ./lab)",
    "report": "pip install 'tacache-lab[report]' (in a checkout: './lab[report]')",
}


class Commands(TyperGroup):
    """A group of commands that ends on a user's error with one line and exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options before the command."""
        with one_line_errors():
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of one word or, as `plan push`, of two."""
        if args[0] in LAB_COMMANDS and args[0] not in self.commands:
            fail(f"`tacache {args[0]}` needs tacache-lab: {LAB_COMMANDS[args[0]]}")
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's own options and run it."""
        with one_line_errors():
            return super().invoke(ctx)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the user did wrong into one line on standard error and exit code 2."""
    try:
        yield
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        tell("tacache: stopped")
        raise typer.Exit(130) from None
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        fail(error.format_message())
    except TACacheError as error:
        fail(str(error))
    except OSError as error:
        is_of_a_file = error.filename is not None and error.strerror is not None
        fail(f"{error.filename}: {error.strerror}" if is_of_a_file else str(error))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        fail(f"this needs: pip install 'tacache[{extra}]'")


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    tell(f"tacache: {message}")
    raise typer.Exit(2)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Rectified-flow image and video generators several times faster, without training.

    [bold]Examples[/bold]

    tacache demo

    tacache generate black-forest-labs/FLUX.1-dev --speedup 4 --prompt "a red fox"

    tacache fit black-forest-labs/FLUX.1-dev

    tacache plans

    tacache plan flux.profile.json --evaluations 13 -o flux.plan.json

    tacache show flux.plan.json

    tacache calibrate black-forest-labs/FLUX.1-dev --prompts calibration -o flux.profile.json
    """,
)


def _version(show: bool) -> None:
    if show:
        say(f"tacache {tacache.__version__}")
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
    """Read the options that stand before a command."""


for command in (calibrate, plan, fit, show, generate, studio, serve):
    app.command()(grouped(command))
for name, extension in extensions(COMMANDS).items():
    app.command(name)(grouped(extension.load()))
app.command("plan push")(grouped(push))
app.command("plan pull")(grouped(pull))
app.command()(grouped(stored.plans))
for part in (stored.show, stored.remove, stored.export):
    app.command(f"plans {part.__name__}")(grouped(part))


def main() -> None:
    """Run the command `tacache`."""
    app()
