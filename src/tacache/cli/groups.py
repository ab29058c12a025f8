"""Commands that take options in groups: a dataclass is a group and each field is an option.

A parameter of the command itself is an option that people need first. A dataclass stands for a
panel of the help, which its class variable `PANEL` names.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

from typer.models import ParameterInfo


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one flat list of options, which is what typer can read.

    Every parameter whose type is a dataclass gives way to the fields of the dataclass. Two
    options of the same name are an error.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in parameters
        if is_dataclass(parameter.annotation)
    }
    flat = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in parameters
        for option in (
            options_of(groups[parameter.name]) if parameter.name in groups else [parameter]
        )
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **options)

    run.__doc__ = one_line_a_paragraph(command.__doc__ or "")
    run.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in flat}
    return run


def one_line_a_paragraph(text: str) -> str:
    """Join the lines of each paragraph, so that the help is wrapped where the terminal ends."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def options_of(group: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a dataclass, each in the panel of the group."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, *notes = get_args(hints[field.name])
        (info,) = (copy(note) for note in notes if isinstance(note, ParameterInfo))
        info.rich_help_panel = group.PANEL
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, info],
        )
