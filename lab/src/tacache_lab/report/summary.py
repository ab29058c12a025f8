"""Records as means, intervals and ranks: what every table, figure and page is made from."""

from typing import ClassVar

from pydantic import Field, JsonValue

from tacache.diagnostics import Alignment
from tacache.errors import TACacheError
from tacache.storage.files import FileRecord, Frozen
from tacache_lab.bench.records import RecordError, Reference
from tacache_lab.report.confidence import Estimate
from tacache_lab.report.quantities import Quantity
from tacache_lab.report.traces import Trace

REFERENCES = ("full", "fine")  # the methods of records that others are compared to
HEADLINES = ("psnr", "ssim", "lpips", "drift")
# the methods of this package; `plan:NAME` of exports
OWN = ("tasu", "fitted", "instant", "damped", "plan")


class Row(Frozen):
    """One method at one budget (None: its own); ranks are those of its table, 1 the best.

    `reason` says why samples are missing, `unmeasured` why a metric has no numbers. `traces` are
    numbers a step, `alignment` is that of the paper's appendix C, where they were recorded.
    """

    method: str
    evaluations: int | None = None
    done: int
    failed: int = 0
    unreachable: int = 0
    reason: str | None = None
    values: dict[str, Estimate]
    unmeasured: dict[str, str]
    ranks: dict[str, int] = Field(default_factory=dict)
    traces: dict[str, Trace] = Field(default_factory=dict)
    alignment: Alignment | None = None

    @property
    def ours(self) -> bool:
        """Return whether it is a method of this package."""
        return is_ours(self.method)

    @property
    def cost(self) -> Estimate | None:
        """Return evaluations it spent.

        Of a cache inside the model, those that its work amounts to.
        """
        return self.values.get("equivalent-evaluations") or self.values.get("evaluations")

    @property
    def over(self) -> bool:
        """Return whether it cost more than the budget, as far as tables show.

        A reference has none.
        """
        if self.evaluations is None or self.cost is None or self.method in REFERENCES:
            return False
        return round(self.cost.mean, 1) > self.evaluations


class Lead(Frozen):
    """How far the best of a table is before the second, pair by pair over samples."""

    quantity: str
    first: str
    second: str
    by: Estimate


class Table(Frozen):
    """The methods of one budget, best first; without a budget, those that have their own."""

    evaluations: int | None = None
    rows: tuple[Row, ...]
    leads: tuple[Lead, ...] = ()


class Study(Frozen):
    """The records of one file."""

    name: str
    model: str
    call: dict[str, JsonValue]
    steps: int
    fine: int | None = None
    prompts: int
    seeds: int
    samples: int
    processes: tuple[int, ...]
    processes_per_device: tuple[int, ...] = (
        1,
    )  # how many of them ran on one device while times were taken
    devices: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    quantities: tuple[Quantity, ...]
    references: tuple[Row, ...]
    tables: tuple[Table, ...]
    reference: Reference = "run"

    @property
    def judged_by(self) -> str:
        """Return the group of quantities that methods are ranked by.

        To full steps, or to the flow.
        """
        return "fine" if self.reference == "flow" else "full"

    @property
    def headlines(self) -> tuple[str, ...]:
        """Return the quantities that tables are ordered by, the first that is there."""
        return headlines(self.reference)

    @property
    def fine_name(self) -> str:
        """Return the fine reference in words."""
        return "the flow" if self.reference == "flow" else f"{self.fine} steps"

    @property
    def shares_device(self) -> bool:
        """Return whether processes shared a device: then times cannot be compared."""
        return max(self.processes_per_device, default=1) > 1

    def has(self, name: str) -> bool:
        """Return whether any row has numbers of a quantity."""
        return any(quantity.name == name for quantity in self.quantities)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all methods, without the references."""
        return [row for table in self.tables for row in table.rows]

    @property
    def methods(self) -> list[str]:
        """Return every method once: ours first, then as they are met."""
        names = dict.fromkeys(row.method for row in self.rows)
        return sorted(names, key=lambda name: not is_ours(name))


class Summary(FileRecord):
    """All studies of a report, as a file for programs."""

    FORMAT: ClassVar[str] = "tacache-summary"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[TACacheError]] = RecordError
    REMEDY: ClassVar[str] = "Make it again with tacache report"

    studies: tuple[Study, ...]


def headlines(reference: Reference) -> tuple[str, ...]:
    """Return the quantities that methods are ranked by, with this reference."""
    group = "fine" if reference == "flow" else "full"
    return tuple(f"{group}.{name}" for name in HEADLINES)


def is_ours(method: str) -> bool:
    """Return whether a method is one of this package, in whatever variant."""
    return method.partition("@")[0].partition(":")[0].partition("-")[0] in OWN
