"""The directive `commands`: every command of `tacache` with its options, read from the parser."""

from typing import Any

import typer
from docutils import nodes
from rich.markup import render
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tacache.cli.command_line import app


class Commands(SphinxDirective):
    """Put a section for each command here."""

    def run(self) -> list[nodes.Node]:
        """Read Markdown that is made from the parser."""
        text = "\n\n".join(map(section, commands()))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def commands() -> list[Any]:
    """Every command that the help lists."""
    group: Any = typer.main.get_command(app)
    return [command for _, command in sorted(group.commands.items()) if not command.hidden]


def section(command: Any) -> str:
    """A command as Markdown: what it does, what is typed, examples, and its options by panel."""
    what, _, examples = plain(command.help or "").partition("Examples")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    context = typer.Context(command)
    usage = " ".join(["tacache", command.name, *command.collect_usage_pieces(context)])
    typed = "\n".join(f"$ {line}" for line in lines)
    parts = [f"## tacache {command.name}", what.strip(), f"```text\n{usage}\n```"]
    parts += [f"Examples:\n\n```console\n{typed}\n```"] if lines else []
    return "\n\n".join([*parts, *tables(command, context)])


def tables(command: Any, context: Any) -> list[str]:
    """A table of options for each panel of the help, the arguments first."""
    panels: dict[str, list[str]] = {}
    for option in command.params:
        record = option.get_help_record(context)  # None where it is hidden
        if record is not None and option.name != "help":
            is_argument = option.param_type_name == "argument"
            panel = "Arguments" if is_argument else option.rich_help_panel or "Options"
            panels.setdefault(panel, []).append(row(*record))
    return ["\n".join([f"| {panel} | |", "|---|---|", *rows]) for panel, rows in panels.items()]


def row(name: str, words: str) -> str:
    """A line of a table: how an option is written, and what it does."""
    name, words = (text.replace("|", "\\|") for text in (name.replace(" range>", ">"), words))
    return f"| `{name}` | {' '.join(words.split())} |"


def plain(text: str) -> str:
    """The text without the marks that rich prints in colour or bold."""
    return render(text).plain


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
