"""What a benchmark is asked for, and the list of tasks that follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.prompts import Sample, read_prompts
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.named_methods import GENERAL, GENERAL_PROMPTS, NamedMethod
from tacache_lab.bench.records import Key, Reference
from tacache_lab.bench.scoring import DEFAULT_METRICS
from tacache_lab.following import Item
from tacache_lab.picture_metrics import METRICS


@dataclass(frozen=True)
class BenchJob:
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
        """Return every prompt with every seed."""
        return [Sample(prompt, seed) for prompt in self.prompts for seed in self.seeds]

    @property
    def flow(self) -> int | None:
        """Return the steps of the runs that stand for the flow, where it is the reference."""
        return self.fine if self.reference == "flow" else None

    def calibration_prompts(self, chosen: NamedMethod) -> tuple[str, ...]:
        """Return the calibration prompts a method asks for."""
        prompts = self.calibration
        if chosen.source is not None:
            prompts = read_prompts(GENERAL_PROMPTS if chosen.source == GENERAL else chosen.source)
        if chosen.samples is not None and chosen.samples > len(prompts):
            raise TACacheError(
                f"{chosen.name} asks for {chosen.samples} calibration prompts of {len(prompts)}"
            )
        return tuple(prompts[: chosen.samples])

    def check(self) -> None:
        """Refuse what cannot be benchmarked before anything is run."""
        needed = {
            "methods": self.methods,
            "prompts": self.prompts,
            "seeds": self.seeds,
            "calibration prompts": self.calibration,
        }
        for name, values in needed.items():
            if not values:
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

    chosen: NamedMethod
    evaluations: int | None
    calibration_set: CalibrationSet

    def __str__(self) -> str:
        return f"{self.chosen.name} at {self.evaluations or 'its own budget'}"

    @property
    def calibrated(self) -> bool:
        """Return whether its method is made ready on the calibration samples, or needs none."""
        return self.chosen.method.calibrated

    def key(self, subject: Sample) -> Key:
        """Return the key of its record for a subject."""
        return Key(self.chosen.name, self.evaluations, subject.text, subject.seed)
