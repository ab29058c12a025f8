"""What a record says in numbers, by name: `full.psnr`, `fine.drift`, `score.clip-iqa`, `seconds`.

A metric that a newer benchmark adds needs nothing here; it is shown under its own name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from tacache.storage.files import Frozen
from tacache_lab.bench.records import Fidelity, Record, Values
from tacache_lab.picture_metrics import METRICS
from tacache_lab.report.confidence import FIFTH, LOST, SHARE
from tacache_lab.report.traces import mean_cosine, step_drift

Better = Literal["higher", "lower"]
Getter = Callable[[Record, Record | None], float | None]
GROUPS = ("full", "fine", "score")  # what stands before the dot
IDENTICAL = 100.0  # the most dB that count in a mean; records say 999 of equal pictures
OVERALL = "overall"  # the mean over a metric's kinds, beside those over each
CLOCKED = ("seconds", "speedup")  # what a clock says, where nobody else must use the device


class Quantity(Frozen):
    """How one number of a record is named, written and compared (None: it is not)."""

    name: str
    title: str
    better: Better | None = None
    digits: int = 3
    unit: str = ""

    @property
    def group(self) -> str:
        """Return full, fine or score; cost for all others."""
        first, dot, _ = self.name.partition(".")
        return first if dot else "cost"

    @property
    def metric(self) -> str:
        """Return its name without what it is compared to."""
        return self.name.partition(".")[2] or self.name

    @property
    def kind(self) -> str:
        """Return the kind of samples that a sub-score is a mean over.

        Empty for other quantities.
        """
        whole, _, kind = self.metric.partition("/")
        return kind if whole in METRICS else ""

    @property
    def is_part(self) -> bool:
        """Return whether it is a mean over the samples of one kind."""
        return self.kind not in ("", OVERALL)


def _speedup(record: Record, full: Record | None) -> float | None:
    """Return how many times faster it is than the full run of the same sample."""
    if not record.seconds:
        return None
    if record.full_seconds is not None:
        return record.full_seconds / record.seconds
    if full is None or not full.seconds:
        return None
    alike = (full.machine.device, full.processes_per_device) == (
        record.machine.device,
        record.processes_per_device,
    )
    return full.seconds / record.seconds if alike else None


def _calibration(record: Record, full: Record | None) -> float | None:
    """Return evaluations of the full runs that the method was made ready on."""
    return None if record.tuned_on is None else float(record.tuned_on.samples * record.steps)


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def _teraflops(record: Record, full: Record | None) -> float | None:
    return None if record.flops is None else record.flops / 1e12


def _memory(record: Record, full: Record | None) -> float | None:
    return None if record.memory_bytes is None else record.memory_bytes / 2**30


def _drifts(name: str, title: str, trace: str) -> Iterator[tuple[Quantity, Getter]]:
    """Yield drift from the full run, at evaluated and at cached steps apart."""
    for steps in ("evaluated", "cached"):

        def mean(record: Record, full: Record | None, steps: str = steps) -> float | None:
            return step_drift(record, trace, evaluated=steps == "evaluated")

        yield Quantity(name=f"{name}-{steps}", title=f"{title}, {steps}", digits=4), mean


COSTS: dict[str, tuple[Quantity, Getter]] = {
    quantity.name: (quantity, getter)
    for quantity, getter in (
        (
            Quantity(name="evaluations", title="evaluations", digits=1),
            lambda record, full: float(record.spent),
        ),
        (
            Quantity(name="equivalent-evaluations", title="equivalent", digits=1),
            lambda record, full: record.equivalent_evaluations,
        ),
        (
            Quantity(name="seconds", title="time", better="lower", digits=2, unit="s"),
            lambda record, full: record.seconds,
        ),
        (
            Quantity(name="speedup", title="speedup", better="higher", digits=2, unit="x"),
            _speedup,
        ),
        (
            Quantity(name="prepare", title="tuning", digits=1, unit="s"),
            lambda record, full: record.prepare_seconds,
        ),
        (
            Quantity(name="prepare-evaluations", title="tuning evaluations", digits=0),
            lambda record, full: _number(record.prepare_evaluations),
        ),
        (Quantity(name="calibration", title="calibration evaluations", digits=0), _calibration),
        (Quantity(name="flops", title="TFLOPs", digits=3), _teraflops),
        (Quantity(name="memory", title="peak memory", digits=2, unit="GiB"), _memory),
        *_drifts("state-drift", "state drift", "state_drift"),
        *_drifts("drift", "velocity drift", "velocity_drift"),
        (
            Quantity(name="cos-theta", title="cos theta", digits=3),
            lambda record, full: mean_cosine(record),
        ),
    )
}
EVALUATORS = ("geneval", "vbench", "wise", "compbench")  # of exports; more is better in all
# what is made of a row's samples, and not a mean of theirs
OF_ROWS = {
    FIFTH: Quantity(name=FIFTH, title="PSNR, 5th percentile", better="higher", digits=2, unit="dB"),
    # not ranked: with none lost, all that have none would be first
    SHARE: Quantity(name=SHARE, title=f"below {LOST:g} dB", digits=0, unit="%"),
    "equivalent-steps": Quantity(
        name="equivalent-steps", title="equivalent Euler steps", better="higher", digits=0
    ),
}
DIGITS = {"psnr": 2, "ssim": 4, "lpips": 4, "drift": 4}
DB = "dB"
UNITS = {"psnr": DB}


def quantity(name: str) -> Quantity:
    """Return the quantity of a name."""
    if name in COSTS:
        return COSTS[name][0]
    metric = name.partition(".")[2]
    if metric in OF_ROWS:
        return OF_ROWS[metric].model_copy(update={"name": name})
    kind = metric.partition("-")[0] if not metric.startswith("motion-") else metric[7:]
    return Quantity(
        name=name,
        title=_title(metric),
        better=_better(metric),
        digits=DIGITS.get(kind, 3),
        unit=UNITS.get(kind, ""),
    )


def _title(metric: str) -> str:
    """Return a metric as tables call it; one that is not known by its own name."""
    whole, _, kind = metric.partition("/")
    if whole not in METRICS:
        return metric
    return f"{METRICS[whole].title}: {kind.replace('_', ' ')}" if kind else METRICS[whole].title


def _better(metric: str) -> Better | None:
    """Return which way a metric is better, where that is known."""
    whole = metric.partition("/")[0]
    if metric == "drift":
        return "lower"
    if whole in EVALUATORS:
        return "higher"
    return METRICS[whole].better if whole in METRICS else None


def measured(record: Record, full: Record | None) -> dict[str, float]:
    """Return every number of a finished record; `full` is the full run of the same sample."""
    costs = {name: getter(record, full) for name, (_, getter) in COSTS.items()}
    numbers = {name: value for name, value in costs.items() if value is not None}
    for name, value in _judged(record):
        if not isinstance(value, str):
            numbers[name] = min(value, IDENTICAL) if quantity(name).unit == DB else value
    return numbers


def unmeasured(record: Record) -> dict[str, str]:
    """Return every metric that has no number, with the reason."""
    return {name: value for name, value in _judged(record) if isinstance(value, str)}


def in_order(names: Iterable[str]) -> list[Quantity]:
    """Return quantities as columns stand: to full, to fine, scores, costs.

    Metrics as they are listed.
    """
    first = ("psnr", *OF_ROWS, "ssim", "lpips", "lpips-vgg", "drift")
    metrics = [*first, *_with_kinds()]
    quantities = [quantity(name) for name in dict.fromkeys(names)]

    def place(column: Quantity) -> tuple[int, int]:
        if column.group == "cost":
            return len(GROUPS), list(COSTS).index(column.name)
        return GROUPS.index(column.group), _index(metrics, column.metric)

    return sorted(quantities, key=place)


def _judged(record: Record) -> Iterator[tuple[str, float | str]]:
    """Yield fidelity to both references, and scores."""
    references: tuple[tuple[str, Fidelity | None], ...] = (
        ("full", record.to_full),
        ("fine", record.to_fine),
    )
    for group, fidelity in references:
        if fidelity is not None:
            yield f"{group}.drift", fidelity.drift
            yield from _named(group, fidelity.metrics)
    yield from _named("score", record.scores)


def _with_kinds() -> Iterator[str]:
    """Yield every metric, with its sub-scores after it."""
    for name, metric in METRICS.items():
        yield name
        yield from (f"{name}/{kind}" for kind in (OVERALL, *metric.kinds))


def _named(group: str, values: Values) -> Iterator[tuple[str, float | str]]:
    return ((f"{group}.{name}", value) for name, value in values.items())


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)
