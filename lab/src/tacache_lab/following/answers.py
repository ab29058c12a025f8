"""Prompts with known answers, and whether what was found in a picture is what they ask for."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from tacache.errors import HostError
from tacache.storage.files import Frozen
from tacache.storage.reading import parse_json
from tacache_lab.following.detector import Architecture, Found, detect

NEARNESS = 0.1  # of two sizes together: centres closer than this are beside no other, GenEval's
Tag = Literal["single_object", "two_object", "counting", "colors", "position", "color_attr"]
Relation = Literal["left of", "right of", "above", "below"]
TAGS: tuple[Tag, ...] = (
    "single_object",
    "two_object",
    "counting",
    "colors",
    "position",
    "color_attr",
)


class ExpectedObject(Frozen):
    """So many objects of a class, in a colour, in relation to another entry of the list."""

    noun: str = Field(alias="class")
    count: int = Field(ge=1)
    color: str | None = None
    position: tuple[Relation, int] | None = None


class Item(Frozen):
    """A prompt with its known answer."""

    tag: Tag
    prompt: str
    include: tuple[ExpectedObject, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _references_exist(self) -> Self:
        for i, wanted in enumerate(self.include):
            if wanted.position and wanted.position[1] not in set(range(len(self.include))) - {i}:
                raise ValueError(f"entry {i} lies {wanted.position[0]} an entry that is not there")
        return self


def read_items(path: str | os.PathLike[str]) -> list[Item]:
    """Return prompts with known answers: JSON lines of `tag`, `prompt` and `include`."""
    return [_item(line, f"{path}, line {i}") for i, line in _lines(path)]


def read_answers(source: str | os.PathLike[str]) -> dict[str, Item]:
    """Return the known answers in a file of prompts, by prompt; a line without `include` has none.

    Other fields may stand beside those of an item. A file that is no JSONL has no answers, nor has
    a set of prompts that ships under a name.
    """
    path, answers = Path(source), {}
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return {}
    for i, line in _lines(path):
        fields = _fields(line)
        if "include" in fields:
            known = {name: fields[name] for name in Item.model_fields if name in fields}
            item = _item(json.dumps(known), f"{path}, line {i}")
            answers[item.prompt] = item
    return answers


def check(objects: Sequence[Found], item: Item) -> bool:
    """Return whether what was found is what the prompt asks for.

    Counting prompts take no more either.
    """
    groups = [_matched(objects, wanted, item.tag == "counting") for wanted in item.include]
    return all(groups) and all(
        wanted.position[0] in relations(thing, other)
        for wanted, group in zip(item.include, groups, strict=True)
        if wanted.position
        for thing in group
        for other in groups[wanted.position[1]]
    )


def relations(first: Found, second: Found) -> set[Relation]:
    """Return where the first lies seen from the second: up to two answers, as GenEval has it."""
    offsets, nearness = (
        (first.x - second.x, first.y - second.y),
        NEARNESS * (first.size + second.size),
    )
    distance = (offsets[0] ** 2 + offsets[1] ** 2) ** 0.5
    axes: tuple[tuple[Relation, Relation], ...] = (("left of", "right of"), ("above", "below"))
    return {
        names[offset > 0]
        for offset, names in zip(offsets, axes, strict=True)
        if abs(offset) - nearness > 0.5 * distance
    }


def judge(detector: nn.Module, images: Tensor, items: Sequence[Item]) -> list[tuple[Tag, bool]]:
    """Return the tag of each prompt and whether its picture follows it, for `score`."""
    if len(images) != len(items):
        raise HostError(f"{len(images)} pictures for {len(items)} prompts: one each is needed")
    _check_known(items, cast(Architecture, detector.architecture))
    by_picture = detect(detector, images)
    return [
        (item.tag, check(objects, item)) for objects, item in zip(by_picture, items, strict=True)
    ]


def score(results: Iterable[tuple[Tag, bool]]) -> dict[str, float]:
    """Return the share of followed prompts by tag, and the mean over tags as `overall`."""
    passed: dict[Tag, list[bool]] = {}
    for tag, right in results:
        passed.setdefault(tag, []).append(right)
    if not passed:
        raise HostError("there is nothing to score: give at least one result")
    if unknown := passed.keys() - set(TAGS):
        raise HostError(f"unknown tag {min(unknown)!r}: there are {', '.join(TAGS)}")
    shares: dict[str, float] = {tag: fmean(passed[tag]) for tag in TAGS if tag in passed}
    return {**shares, "overall": fmean(shares.values())}


def _lines(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Return the lines of a file that say something, with their numbers."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"cannot read prompts from {path}: {error}") from error
    return [(i, line) for i, line in enumerate(lines, start=1) if line.strip()]


def _fields(line: str) -> dict[str, Any]:
    """Return the fields of a line.

    A comment, and what `read_prompts` is to complain of, has none.
    """
    try:
        fields = parse_json(line, finite=False)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _item(line: str, where: str) -> Item:
    try:
        return Item.model_validate_json(line)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the line"
        raise HostError(f"{where}: {place}: {error.errors()[0]['msg']}") from error


def _check_known(items: Iterable[Item], architecture: Architecture) -> None:
    """Refuse what a detector cannot see, which must not count as missing from the picture."""
    wanted = [thing for item in items for thing in item.include]
    asked = {thing.noun for thing in wanted} - {*architecture.nouns}
    asked |= {thing.color for thing in wanted if thing.color} - {*architecture.colours}
    if asked:
        raise HostError(
            f"the detector does not know {min(asked)!r}: ask for what it was trained on"
        )


def _matched(objects: Sequence[Found], wanted: ExpectedObject, exactly: bool) -> list[Found]:
    """Return the surest objects of the class, as many as wanted.

    None where they are not as wanted.
    """
    same = sorted((f for f in objects if f.noun == wanted.noun), key=lambda f: -f.confidence)
    if len(same) < wanted.count or (exactly and len(same) > wanted.count):
        return []
    chosen = same[: wanted.count]
    if wanted.color and any(thing.colour != wanted.color for thing in chosen):
        return []
    return chosen
