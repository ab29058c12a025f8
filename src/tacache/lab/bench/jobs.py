"""What a benchmark is asked for, and the list of tasks that follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.lab.bench.calibration_sets import CalibrationSet
from tacache.lab.bench.methods import GENERAL, GENERAL_PROMPTS, Asked
from tacache.lab.bench.records import Key, Reference, Status
from tacache.lab.bench.scoring import DEFAULT_METRICS
from tacache.lab.following import Item
from tacache.lab.metrics import METRICS
from tacache.prompts import Sample, read_prompts
from tacache.storage.files import Frozen


@dataclass(frozen=True)
class Job:
    """What a benchmark is asked for; `call` has the pipeline's own arguments.

    Every run is timed `repeats` times; `trace` asks for numbers a step. `answers` say what the
    pictures of prompts must show, where that is known. With the flow as `reference`, `fine` steps
    of a second-order solver stand for it, and methods are tuned to end near it. At most `tries`
    settings of each rival are tried; None: all that it has.
    """

    methods: Sequence[str]
    evaluations: Sequence[int]
    prompts: Sequence[str]
    calibration: Sequence[str]
    call: Mapping[str, Any]
    seeds: Sequence[int] = (0,)
    calibration_source: str = "given"
    metrics: Sequence[str] = DEFAULT_METRICS
    fine: int | None = None
    keep: Path | None = None
    repeats: int = 1
    trace: bool = False
    answers: Mapping[str, Item] = field(default_factory=dict)
    reference: Reference = "run"
    tries: int | None = None

    @property
    def subjects(self) -> list[Sample]:
        """Every prompt with every seed."""
        return [Sample(prompt, seed) for prompt in self.prompts for seed in self.seeds]

    @property
    def flow(self) -> int | None:
        """The steps of the runs that stand for the flow, where it is the reference."""
        return self.fine if self.reference == "flow" else None

    def calibration_prompts(self, asked: Asked) -> tuple[str, ...]:
        """The calibration prompts a method asks for."""
        prompts = self.calibration
        if asked.source is not None:
            prompts = read_prompts(GENERAL_PROMPTS if asked.source == GENERAL else asked.source)
        if asked.samples is not None and asked.samples > len(prompts):
            raise TACacheError(
                f"{asked.name} asks for {asked.samples} calibration prompts of {len(prompts)}"
            )
        return tuple(prompts[: asked.samples])

    def check(self) -> None:
        """Refuse what cannot be benchmarked before anything is run."""
        wanted = {
            "methods": self.methods,
            "prompts": self.prompts,
            "seeds": self.seeds,
            "calibration prompts": self.calibration,
        }
        for name, given in wanted.items():
            if not given:
                raise TACacheError(f"there are no {name}: give at least one")
        if self.reference == "flow" and self.fine is None:
            raise TACacheError("the flow is run with many steps: say with how many (fine)")
        if self.tries is not None and self.tries < 1:
            raise TACacheError(f"at least one setting of a rival is tried, not {self.tries}")
        if self.repeats < 1:
            raise TACacheError(f"a run is timed at least once, not {self.repeats} times")
        if unknown := [name for name in self.metrics if name not in METRICS]:
            raise TACacheError(f"no metric {unknown[0]!r}: there are {', '.join(METRICS)}")
        if len(set(self.prompts)) < len(self.prompts):
            raise TACacheError("a prompt stands twice among the prompts: give each once")
        if shared := set(self.prompts) & set(self.calibration):
            raise TACacheError(f"{min(shared)!r} is a calibration prompt too: judge by others")


class Task(NamedTuple):
    """One method at one budget, made ready on a calibration set."""

    asked: Asked
    evaluations: int | None
    calibration_set: CalibrationSet

    def __str__(self) -> str:
        return f"{self.asked.name} at {self.evaluations or 'its own budget'}"

    @property
    def calibrated(self) -> bool:
        """Whether its method is made ready on the calibration samples, or needs none."""
        return self.asked.method.calibrated

    def key(self, subject: Sample) -> Key:
        """The key of its record for a subject."""
        return Key(self.asked.name, self.evaluations, subject.text, subject.seed)


class Prepared(Frozen):
    """A method made ready for a budget, or why it could not be."""

    status: Status
    reason: str | None = None
    kind: str | None = None  # the class of its settings
    settings: dict[str, Any] | None = None
    seconds: float
    evaluations: int | None = None  # of the model, beyond the full runs it was made ready on
