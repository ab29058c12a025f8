"""Records to send to somebody else: without prompts, pictures and the names of folders."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from tacache.storage.origin import Origin
from tacache_lab.bench.named_methods import GENERAL, GENERAL_PROMPTS
from tacache_lab.bench.records import Record, RecordFile

SHIPPED_SETS = (GENERAL, GENERAL_PROMPTS, "test")


def shareable(records: Sequence[Record]) -> list[Record]:
    """Return the same records without what is private.

    Prompts are numbered in the place of their texts. Pictures are left out, and so are texts among
    the arguments of the call, folders, and the messages of failures, which may name either.
    """
    numbers = {text: i for i, text in enumerate(dict.fromkeys(r.prompt for r in records), 1)}
    return [
        record.model_copy(
            update={
                "prompt": f"prompt {numbers[record.prompt]}",
                "picture": None,
                "origin": _origin(record.origin),
                "tuned_on": record.tuned_on
                and record.tuned_on.model_copy(update={"source": _source(record.tuned_on.source)}),
                "reason": _reason(record),
            }
        )
        for record in records
    ]


def write_shareable(records: Sequence[Record], target: Path) -> None:
    """Write a file of records that can be sent."""
    RecordFile(target).replace(shareable(records))


def _origin(origin: Origin) -> Origin:
    """Return the origin with the last part of a folder's name, and without texts of the call."""
    folder = origin.model is not None and Path(origin.model).exists()
    call = origin.call and {name: v for name, v in origin.call.items() if not _has_text(v)}
    model = Path(origin.model).name if folder and origin.model else origin.model
    return origin.model_copy(update={"model": model, "call": call})


def _has_text(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    if isinstance(value, list):
        return any(map(_has_text, value))
    return isinstance(value, str)


def _source(source: str) -> str:
    """Return the name of a set that ships, or that the prompts were the sender's own."""
    return source if source in SHIPPED_SETS else "own"


def _reason(record: Record) -> str | None:
    """Return why a budget cannot be reached, or the kind of a failure."""
    if record.status != "failed" or record.reason is None:
        return record.reason
    return record.reason.partition(":")[0]
