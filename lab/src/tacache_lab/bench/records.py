"""Records of a benchmark: one JSON line a sample and method, with all that a table needs.

A process that shares the work writes a file of its own beside the results ("part"); parts are
joined into the results at the end, and at the start of the next run where that end never came.
"""

import glob
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field, JsonValue, model_validator
from typing_extensions import Self

from tacache.errors import TACacheError
from tacache.storage.atomic import write_atomically
from tacache.storage.files import FileRecord, Frozen
from tacache.storage.journal import PACKED, Journal
from tacache.storage.origin import Origin

Status = Literal["done", "failed", "unreachable"]
# what methods are tuned to and ranked by: the full-step run, or the flow that it approximates
Reference = Literal["run", "flow"]
# name -> number, or "not run: why"
Values = dict[str, float | str]
# name -> one number a step, None where a step has none
Traces = dict[str, tuple[float | None, ...]]
DIGITS = 6  # significant ones, of traces


class RecordError(TACacheError):
    """Records cannot be read, or do not belong together."""


class Fidelity(Frozen):
    """How near a result is to a reference: |x - reference| / |reference| of latents; metrics."""

    drift: Annotated[float, Field(ge=0)]
    metrics: Values


class TunedOn(Frozen):
    """The calibration samples a method was made ready on, and how long their full runs took."""

    source: str
    samples: Annotated[int, Field(ge=1)]
    prompts_sha256: str
    seconds: float


class Machine(Frozen):
    """What the numbers were measured on."""

    device: str
    versions: dict[str, str]


class Key(NamedTuple):
    """What tells records of one file apart."""

    method: str
    evaluations: int | None
    prompt: str
    seed: int


class Record(FileRecord):
    """One sample by one method, at one budget (None: a method that has its own).

    `evaluated` are the times at which the model was evaluated, in order, as counted there and to
    six digits; `noise_sha256` is that of the noise it started from. `seconds` are those of the
    whole call, from text to picture, the median of `timings` where it was timed more than once;
    `full_seconds` are those of the same sample's full run, timed by the same process. `flops` are
    its floating-point operations, `prepare_seconds` those of tuning once before all samples, and
    `prepare_evaluations` how often that evaluated the model, full runs of the prompts apart.
    `processes` is how many shared the work while it was timed, and `processes_per_device` how many
    of them the device. `traces` has numbers a step, where they were asked for. Of a cache inside
    the model, `equivalent_evaluations` are those that the work of its blocks amounts to: a step it
    skips is not quite free. `reference` is "flow" where methods were tuned to end near the flow,
    which `to_fine` then compares with; `tries` is how many settings of a rival were tried at most,
    where not all were.
    """

    FORMAT: ClassVar[str] = "tacache-record"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = RecordError
    REMEDY: ClassVar[str] = "Delete the line, and run the benchmark again to replace it"

    method: str
    evaluations: Annotated[int, Field(ge=1)] | None = None
    prompt: str
    seed: int
    status: Status
    reason: str | None = None
    settings: dict[str, JsonValue] | None = None
    evaluated: tuple[float, ...] = ()
    noise_sha256: str | None = None
    seconds: float | None = None
    memory_bytes: int | None = None
    prepare_seconds: float | None = None
    to_full: Fidelity | None = None
    to_fine: Fidelity | None = None
    scores: Values = Field(default_factory=dict)
    picture: str | None = None
    tuned_on: TunedOn | None = None
    steps: Annotated[int, Field(ge=1)]
    fine: int | None = None
    origin: Origin
    machine: Machine
    timings: Annotated[tuple[float, ...], Field(min_length=2)] | None = None
    full_seconds: Annotated[float, Field(gt=0)] | None = None
    flops: Annotated[int, Field(ge=1)] | None = None
    processes: Annotated[int, Field(ge=1)] = 1
    processes_per_device: Annotated[int, Field(ge=1)] = 1
    traces: Traces | None = None
    equivalent_evaluations: Annotated[float, Field(gt=0)] | None = None
    prepare_evaluations: Annotated[int, Field(ge=0)] | None = None
    reference: Literal["flow"] | None = None
    tries: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.status == "done") != (self.reason is None):
            raise RecordError("a record that is not done says why, and only such a one")
        if self.status == "done" and (self.seconds is None or not self.evaluated):
            raise RecordError("a record that is done has seconds and evaluations")
        return self

    @property
    def key(self) -> Key:
        """Return what tells it apart in its file."""
        return Key(self.method, self.evaluations, self.prompt, self.seed)

    @property
    def spent(self) -> int:
        """Return how often the model was evaluated."""
        return len(self.evaluated)

    def to_line(self) -> str:
        """Return the record as a line of a file."""
        return json.dumps(self.as_fields()) + "\n"


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a file, packed by gzip or not.

    A last line torn by a kill is left out.
    """
    return [Record.from_json(line, place) for place, line in _journal(Path(path)).lines()]


def _journal(path: Path) -> Journal:
    return Journal(path, {"format": Record.FORMAT}, "records", "benchmark", RecordError)


class Adds(Protocol):
    """Where finished records go."""

    def __call__(self, record: Record) -> None:
        """Add one, at once and for good."""


class RecordFile:
    """The results of a benchmark and the parts that its processes write."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix == PACKED:
            raise RecordError(f"{self.path} is packed: gunzip it first, records are appended to it")

    @property
    def is_there(self) -> bool:
        """Return whether there are results, or parts of some."""
        return self.path.exists() or bool(self._parts())

    def load(self) -> dict[Key, Record]:
        """Return all records of the results; of two with one key the later one."""
        return {record.key: record for record in read_records(self.path)}

    def join(self) -> None:
        """Move what is in parts into the results; of two records with one key the later stays."""
        parts = self._parts()
        records = [record for file in (self.path, *parts) for record in read_records(file)]
        by_key = {record.key: record for record in records}
        if parts or len(by_key) < len(records):
            self.replace(by_key.values())
        for part in parts:
            part.unlink()

    def replace(self, records: Iterable[Record]) -> None:
        """Write the results anew, whole or not at all."""
        write_atomically(self.path, "".join(record.to_line() for record in records))

    @contextmanager
    def adding(self, rank: int = 0, count: int = 1) -> Iterator[Adds]:
        """Append records as they come: to the results, or to a part where several write."""
        journal = _journal(self.path if count == 1 else self._part(rank))
        journal.cut_torn_line()
        yield lambda record: journal.append(record.as_fields())

    def _part(self, rank: int) -> Path:
        return self.path.with_name(f"{self.path.name}.part-{rank}")

    def _parts(self) -> list[Path]:
        return sorted(self.path.parent.glob(f"{glob.escape(self.path.name)}.part-*"))


def plain(values: Any) -> dict[str, JsonValue]:
    """Return the fields of a pydantic value as they go into a file."""
    fields: dict[str, JsonValue] = values.model_dump(mode="json")
    return fields


def rounded(values: Iterable[float | None]) -> tuple[float | None, ...]:
    """Return numbers of a trace as they go into a file."""
    return tuple(None if x is None else float(f"{x:.{DIGITS}g}") for x in values)
