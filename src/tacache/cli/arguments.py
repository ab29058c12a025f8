"""From options to a pipeline's arguments, and what stands around its runs on the command line."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tacache.errors import TACacheError, first_line
from tacache.models import EMBEDDED, default_call, steady_threads
from tacache.prompts import check_seeds


def call_arguments(
    model: str, more: list[str] | None, remembered: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The pipeline's arguments: the model's defaults, then a plan's, our options, and --call."""
    names = argument_names(model)
    given = {names.get(k, k): value for k, value in options.items() if value is not None}
    return {**default_call(model), **(remembered or {}), **given, **parsed(more)}


def argument_names(model: str) -> dict[str, str]:
    """What the model's pipeline calls those of our options that have another name there."""
    own = "true_cfg_scale" if "true_cfg_scale" in default_call(model) else "guidance_scale"
    return {"steps": "num_inference_steps", "frames": "num_frames", "guidance": own}


def parsed(more: list[str] | None) -> dict[str, Any]:
    """The arguments of --call, each JSON where it reads as such and else text."""
    call: dict[str, Any] = {}
    for pair in more or []:
        name, found, text = pair.partition("=")
        if not found:
            raise TACacheError(f"--call takes NAME=VALUE, not {pair!r}")
        try:
            call[name] = json.loads(text)
        except json.JSONDecodeError:
            call[name] = text
    return call


def numbers(text: str) -> list[int]:
    """The numbers of an option such as 0,1,2."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise TACacheError(f"expected whole numbers with commas between, not {text!r}") from error


def seeds_of(text: str) -> list[int]:
    """The seeds of an option, each once."""
    found = numbers(text)
    check_seeds(found)
    return found


@contextmanager
def naming(pipe: Any) -> Iterator[None]:
    """What a pipeline raises on arguments it cannot use, in one line with its name."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TACacheError(f"{type(pipe).__name__} failed: {reason}") from error


def threads(model: str, pipe: Any) -> AbstractContextManager[None]:
    """The threads a model runs with: as they are, but for the small ones that ship."""
    return steady_threads(pipe) if model in EMBEDDED else nullcontext()
