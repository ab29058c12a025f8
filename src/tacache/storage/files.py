"""Versioned JSON files: validated on load, written whole or not at all."""

import difflib
import json
import os
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from tacache.errors import TACacheError
from tacache.storage.atomic import check_writable, write_atomically
from tacache.storage.reading import MAX_FILE_BYTES, parse_json, read_bounded

Record = TypeVar("Record", bound="FileRecord")
OtherRecord = TypeVar("OtherRecord", bound="FileRecord")


class Frozen(BaseModel):
    """An immutable value; unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileRecord(Frozen):
    """A value that lives in a JSON file with a format name and a version."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    ERROR: ClassVar[type[TACacheError]]
    REMEDY: ClassVar[str]

    def as_fields(self) -> dict[str, Any]:
        """Return what the file holds: format, version, and every field that is set."""
        fields = self.model_dump(mode="json", exclude_none=True)
        return {"format": self.FORMAT, "version": self.VERSION, **fields}

    def to_json(self) -> str:
        """Return the file's text: one field a line, so that files diff well."""
        fields = self.as_fields().items()
        lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields)
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file; who reads it meanwhile sees the old one or the new one, never half."""
        target, text = self.check_target(path), self.to_json()
        try:
            parse_json(text)
        except ValueError as error:
            raise self.ERROR(
                f"{target} could not be read again, so it is not written: {error}"
            ) from error
        write_atomically(target, text)
        return target

    @classmethod
    def check_target(cls, path: str | os.PathLike[str]) -> Path:
        """Return the path if a file of this kind may be written there; no other is replaced."""
        target = Path(path)
        if target.is_dir():
            raise cls.ERROR(f"{target} is a folder: name a file")
        if target.exists() and _format_of(target) not in (cls.FORMAT, None):
            raise cls.ERROR(
                f"{target} is there and is not a {cls.FORMAT} file: name another file, or delete it"
            )
        check_writable(target.parent)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and validate a file."""
        source = Path(path)
        try:
            text = read_bounded(source)
        except (OSError, ValueError) as error:
            raise cls.ERROR(f"cannot read {source}: {error}") from error
        return cls.from_json(text, name=str(source))

    @classmethod
    def from_json(cls, text: str, name: str = "the text") -> Self:
        """Parse and validate a file's text; `name` says in errors where it came from."""
        fields = cls._header_checked(text, name)
        try:
            return cls.model_validate_json(json.dumps(fields), strict=True)
        except ValidationError as error:
            raise cls.ERROR(f"{name}: {cls._first_problem(error)}. {cls.REMEDY}") from error
        except TACacheError as error:
            raise cls.ERROR(f"{name}: {error}. {cls.REMEDY}") from error

    @classmethod
    def _header_checked(cls, text: str, name: str) -> dict[str, Any]:
        """Return the fields without format and version, after checking both."""
        try:
            parsed = parse_json(text)
        except ValueError as error:
            raise cls.ERROR(
                f"{name} is not JSON that can be used ({error}). {cls.REMEDY}"
            ) from error
        fields: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
        file_format = fields.pop("format", None)
        if file_format != cls.FORMAT:
            what = (
                f"its format is {file_format!r}" if file_format else "it has no such format field"
            )
            raise cls.ERROR(f"{name} is not a {cls.FORMAT} file: {what}")
        version = fields.pop("version", None)
        if isinstance(version, bool) or version != cls.VERSION:
            raise cls.ERROR(
                f"{name} has version {version!r} of {cls.FORMAT}, this tacache reads version "
                f"{cls.VERSION}: use the tacache that wrote it, or make the file again"
            )
        return fields

    @classmethod
    def _first_problem(cls, error: ValidationError) -> str:
        problems = error.errors()
        unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
        problem = (unknown or problems)[0]  # a misspelt name explains the missing one
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            close = difflib.get_close_matches(where, cls.model_fields, n=1)
            return f"unknown field '{where}'" + (f" (meant '{close[0]}'?)" if close else "")
        message = problem["msg"][0].lower() + problem["msg"][1:]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return f"field '{where}': {message}{more}"


def load_either(
    path: Path,
    first: type[Record],
    second: type[OtherRecord],
    *,
    name: str | None = None,
    max_bytes: int = MAX_FILE_BYTES,
) -> Record | OtherRecord:
    """Load a file as whichever of two kinds it says it is; `name` stands for it in errors."""
    name = str(path) if name is None else name
    kinds = f"a {first.FORMAT} file nor a {second.FORMAT} file"
    try:
        text = read_bounded(path, max_bytes)
        content = parse_json(text)
    except ValueError as error:
        raise TACacheError(f"{name} is not JSON that can be used: {error}") from error
    file_format = content.get("format") if isinstance(content, dict) else None
    if file_format == first.FORMAT:
        return first.from_json(text, name)
    if file_format == second.FORMAT:
        return second.from_json(text, name)
    raise TACacheError(f"{name} is neither {kinds}: its format is {file_format!r}")


def _format_of(path: Path) -> Any:
    """Return the format that a JSON file names; None for an empty file, "" for any other file."""
    try:
        text = read_bounded(path)
        content = parse_json(text) if text.strip() else {"format": None}
    except (OSError, ValueError):
        return ""
    return content.get("format", "") if isinstance(content, dict) else ""
