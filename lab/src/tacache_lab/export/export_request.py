"""What an export is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacache.plan import Plan
from tacache_lab.bench.judging import FULL
from tacache_lab.bench.named_methods import resolve
from tacache_lab.bench.tasks import BenchJob
from tacache_lab.export.benchmarks import SampleFile

BUDGET = 13


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and how: by full steps, a method at a budget, or a plan with its name."""

    benchmark: str
    call: Mapping[str, Any]
    steps: int  # of a full run
    method: str = FULL
    evaluations: int = BUDGET
    plan: tuple[str, Plan] | None = None
    calibration: Sequence[str] = ()
    calibration_source: str = "given"
    fps: int = 16

    @property
    def name(self) -> str:
        """Return what its records call the method."""
        return self.method if self.plan is None else f"plan:{self.plan[0]}"

    @property
    def evaluations_each(self) -> int | None:
        """Return the evaluations of one sample; None for a method that has a budget of its own."""
        if self.plan is not None:
            return self.plan[1].evaluations
        if self.method == FULL:
            return self.steps
        return self.evaluations if resolve(self.method).method.budgeted else None

    def job(self, wanted: Sequence[SampleFile]) -> BenchJob:
        """Return the same as a benchmark's job, which knows how methods are made ready."""
        prompts = list(dict.fromkeys(sample_file.sample.text for sample_file in wanted))
        job = BenchJob(
            methods=[self.method],
            evaluations=[self.evaluations],
            prompts=prompts,
            calibration=self.calibration,
            calibration_source=self.calibration_source,
            call=self.call,
        )
        if self.plan is None and self.method != FULL:  # what only methods need
            job.check()
        return job
