"""Groups of options as dataclasses, and what the commands' help comes to with them."""

import inspect
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from tacache.cli.command_line import app
from tacache.cli.groups import grouped


@dataclass(frozen=True)
class Size:
    """A group with an option that must be given."""

    PANEL: ClassVar = "Size"
    must: Annotated[str, typer.Option()]
    height: Annotated[int, typer.Option(min=1)] = 8


@dataclass(frozen=True)
class Wide(Size):
    """The same group with one more option."""

    width: Annotated[int | None, typer.Option(help="How wide.")] = None


def parsed(command, *arguments):
    """What a command is called with, or the result where it is not called."""
    seen = []

    def kept(*_, **given):
        seen.append(given)

    kept.__signature__ = inspect.signature(command)
    made = typer.Typer()
    made.command()(grouped(kept))
    result = CliRunner().invoke(made, list(map(str, arguments)))
    return seen[0] if seen else result


def draw(name: str, *, seed: Annotated[int, typer.Option()] = 0, size: Wide) -> None:
    """Draw."""


def test_a_group_comes_as_its_dataclass():
    given = parsed(draw, "fox", "--width", 3, "--must", "x")
    assert given == {"name": "fox", "seed": 0, "size": Wide(height=8, must="x", width=3)}


def test_options_of_a_group_are_checked_as_any_other():
    for wrong in (["--must", "x", "--height", 0], []):
        assert parsed(draw, "fox", *wrong).exit_code == 2


def test_a_group_is_a_panel_of_the_help():
    shown = parsed(draw, "--help").output
    assert shown.index("--seed") < shown.index("Size") < shown.index("--height")


def test_two_options_of_one_name_are_an_error():
    def twice(height: int, *, size: Size) -> None:
        """Draw."""

    with pytest.raises(ValueError, match="duplicate parameter name: 'height'"):
        grouped(twice)


@pytest.mark.parametrize("known", app.registered_commands, ids=lambda one: one.callback.__name__)
def test_commands_can_be_read(known):
    """A command's function is short, and its help begins with at most five options."""
    assert len(inspect.getsource(inspect.unwrap(known.callback)).splitlines()) <= 60
    parameters = typer.main.get_command_from_info(
        known, pretty_exceptions_short=False, rich_markup_mode="rich"
    ).params
    first = [
        one.name
        for one in parameters
        if one.param_type_name == "option" and one.rich_help_panel is None and not one.hidden
    ]
    assert len(first) <= 5


def test_help_is_wrapped_where_the_terminal_ends():
    for columns in (60, 80, 120):
        shown = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": str(columns)}).output
        words = " ".join(shown.split())
        assert "A benchmark that was killed goes on where it stopped. Under torchrun or" in words
        prose = shown[shown.index("A benchmark that") : shown.index("Examples")]
        *lines, _ = prose.strip().splitlines()
        firsts = [line.split()[0] for line in prose.strip().splitlines()[1:]]
        for line, first in zip(lines, firsts, strict=True):  # the next word had no room
            assert len(line.strip()) + 1 + len(first) > columns - 2, line
