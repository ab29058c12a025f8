"""From the text of an option to its value, and checks that come before any work."""

import json
from pathlib import Path
from typing import Any

from tacache.errors import TACacheError
from tacache.prompts import check_seeds
from tacache.storage.atomic import check_writable
from tacache.storage.reading import parse_json


def named_values(option: str, pairs: list[str] | None) -> list[tuple[str, str]]:
    """Return the names and the texts of an option that takes NAME=VALUE."""
    values = []
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise TACacheError(f"{option} takes NAME=VALUE, not {pair!r}")
        values.append((name, text))
    return values


def parsed(pairs: list[str] | None) -> dict[str, Any]:
    """Return the arguments of --call; a value is JSON where it reads as such, and else text."""
    arguments = {}
    for name, text in named_values("--call", pairs):
        try:
            arguments[name] = json_or_text(text)
        except ValueError as error:
            raise TACacheError(f"--call {name} cannot be used: {error}") from error
    return arguments


def json_or_text(text: str) -> Any:
    """Return the value that a text stands for; one that no file could hold is a ValueError."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text


def numbers(text: str) -> list[int]:
    """Return the numbers of an option such as 0,1,2."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise TACacheError(f"expected whole numbers with commas between, not {text!r}") from error


def seeds_of(text: str) -> list[int]:
    """Return the seeds of an option, none of which may be given twice."""
    seeds = numbers(text)
    check_seeds(seeds)
    return seeds


def words(text: str) -> list[str]:
    """Return the words of an option such as psnr,ssim."""
    return [word.strip() for word in text.split(",")]


def check_folder(path: Path) -> None:
    """Refuse, before any work, a folder that its files could not be written into."""
    check_writable(path)
