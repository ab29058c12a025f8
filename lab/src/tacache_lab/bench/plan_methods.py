"""Plans of this package as methods of the benchmark: how each is made for a budget."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from tacache.diagnostics import damp, diagnose
from tacache.errors import PlanError
from tacache.fitting import check_budget, fit_budget
from tacache.fitting.fit_options import FitOptions, Target
from tacache.fitting.reference import record
from tacache.fitting.samples import FunctionSamples
from tacache.instant import instant_plan
from tacache.plan import Plan, Rule, make_plan
from tacache.stepper import sample
from tacache.storage.files import Frozen
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.methods import RecordedProblem, SamplingProblem
from tacache_lab.methods.tuning import least, spread

RATIOS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
DAMPED = 4  # calibration samples that cos(theta) is measured on
# what a plan's record leaves out: it is the same for all plans of a calibration
RATES = {"times", "magnitude", "direction", "origin", "certificate", "breaks"}


class Followed:
    """A plan of ours, whichever way it is made."""

    budgeted: bool = True
    calibrated: bool = True

    def sample(self, problem: SamplingProblem, settings: Any) -> Tensor:
        """Follow the plan."""
        return sample_by_plan(problem, settings)

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """Return the plan without the calibration's own numbers."""
        fields: dict[str, JsonValue] = settings.model_dump(
            mode="json", exclude=RATES, exclude_none=True
        )
        return fields


class Planned(Followed):
    """A plan from a profile, with a ratio of the thresholds that is given or the best there is."""

    def __init__(self, rule: Rule, ratio: float | None = None) -> None:
        self.rule, self.ratio = rule, ratio

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Plan:
        """Return the plan that ends nearest to the reference on the calibration samples."""
        by_anchors: dict[tuple[int, ...], Plan] = {}
        for ratio in (self.ratio,) if self.ratio else (None, *RATIOS):
            plan = make_plan(
                calibration_set.profile, evaluations=evaluations, ratio=ratio, rule=self.rule
            )
            by_anchors.setdefault(plan.anchors, plan)
        plans = spread(list(by_anchors.values()), calibration_set.most)
        if len(plans) == 1:
            return plans[0]
        with calibration_set.recording() as recording:
            parts = [recording.of([row]) for row in range(recording.samples)]

            def error(plan: Plan, part: int) -> float:
                return parts[part].error(sample_by_plan(parts[part], plan))

            return least(plans, error, len(parts))


class Damped(Planned):
    """The best plan of `tasu`, damped by the alignment it has on calibration samples."""

    def __init__(self) -> None:
        super().__init__("tasu")

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Plan:
        """Return the same anchors with other strengths of the direction."""
        plan = super().prepare(calibration_set, evaluations)
        with calibration_set.recording() as recording:
            few = recording.first(DAMPED)
            diagnosis = diagnose(few.velocity, few.noise, plan, condition=few.condition)
        return damp(plan, [diagnosis])


class Thresholds(Followed):
    """A plan from a profile by the paper's thresholds."""

    budgeted = False

    def __init__(self, rule: Rule, tau_k: float, tau_d: float) -> None:
        self.rule, self.tau_k, self.tau_d = rule, tau_k, tau_d

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return the plan they lead to."""
        return make_plan(
            calibration_set.profile, tau_k=self.tau_k, tau_d=self.tau_d, rule=self.rule
        )


class Instant(Followed):
    """A plan at once, which the grid alone decides."""

    calibrated = False

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Plan:
        """Return the plan; nothing is measured for it."""
        assert evaluations is not None
        caller = calibration_set.caller
        return instant_plan(caller.times, evaluations, breaks=caller.breaks)


class FittedPlan(Followed):
    """A fitted plan; what a fit starts from is kept for the samples seen last.

    It is fitted to the full run or to the flow, on as many of the first calibration samples as a
    fit may take: the states of the flow are not free.
    """

    def __init__(self, target: Target = "run", *, search: bool = True) -> None:
        self.target, self.options = target, FitOptions(target=target, search=search)
        self._known: dict[str, Any] = {}

    def prepare(self, calibration_set: CalibrationSet, evaluations: int | None) -> Frozen:
        """Return a fit on the calibration samples, with what is probed before it done once."""
        assert evaluations is not None
        with calibration_set.recording() as recording:
            runs = self.allowed(recording, calibration_set, evaluations)
            return self.fit(runs, calibration_set, evaluations)

    def allowed(
        self, recording: RecordedProblem, calibration_set: CalibrationSet, evaluations: int
    ) -> "CalibrationRuns":
        """Return the samples of a fit: all, or to the flow the most that a fit can pay for."""
        everyone = CalibrationRuns(recording, calibration_set)
        for samples in range(everyone.total, 1, -1) if self.target == "flow" else ():
            runs = CalibrationRuns(recording.first(samples), calibration_set)
            with suppress(PlanError):
                self.check(runs, evaluations)
                return runs
        self.check(everyone, evaluations)
        return everyone

    def check(self, runs: "CalibrationRuns", evaluations: int) -> None:
        """Refuse what a fit cannot pay for, or cannot do."""
        check_budget(runs, evaluations, self.options)

    def fit(
        self, runs: "CalibrationRuns", calibration_set: CalibrationSet, evaluations: int
    ) -> Plan:
        """Fit a plan for a budget; no other place of the benchmark does."""
        key = calibration_set.caller.key(calibration_set.prompts_sha256, runs.total)
        if key not in self._known:
            self._known.clear()
            self._known[key] = record(runs, self.options)
        return fit_budget(runs, self._known[key], evaluations, self.options)

    def shown(self, settings: Any) -> dict[str, JsonValue]:
        """Return the plan, what it was fitted to and what the fit spent, the full runs included."""
        fields = super().shown(settings)
        certificate = settings.certificate
        if self.target == "run" or certificate is None:
            return fields
        return fields | {
            "target": self.target,
            "held_out": certificate.held_out,
            "max_evaluations": self.options.max_evaluations,
            "evaluations_spent": certificate.evaluations_spent,
            "equivalent_steps": certificate.equivalent_steps,
        }


class CalibrationRuns(FunctionSamples):
    """Calibration samples as a fit runs them; other step counts are on the host's own grids."""

    def __init__(self, recording: RecordedProblem, calibration_set: CalibrationSet) -> None:
        super().__init__(recording.velocity, recording.noise, recording.times, recording.condition)
        self.breaks = calibration_set.caller.breaks
        self._calibration = calibration_set

    @contextmanager
    def on_steps(self, steps: int) -> Iterator[FunctionSamples]:
        """Open the same samples from the same noise in calls with so many steps."""
        with self._in_calls(steps=steps) as runs:
            yield runs

    @contextmanager
    def on_levels(self, times: tuple[float, ...]) -> Iterator[FunctionSamples]:
        """Open the same samples from the same noise in calls on these noise levels."""
        with self._in_calls(times=times) as runs:
            yield runs

    @contextmanager
    def _in_calls(self, **grid: Any) -> Iterator[FunctionSamples]:
        caller, subjects = self._calibration.caller, self._calibration.subjects[: self.total]
        with ExitStack() as stack:
            opened = [stack.enter_context(caller.open(subject, **grid)) for subject in subjects]

            def velocity(x: Tensor, t: float, sample: Any) -> Tensor:
                rows = [opened[i](x[k : k + 1], t) for k, i in enumerate(sample)]
                return torch.cat(rows)

            noise = torch.cat([subject.run.noise for subject in opened])
            runs = FunctionSamples(velocity, noise, opened[0].times, self.condition)
            runs.breaks = self.breaks
            yield runs


@torch.no_grad()
def sample_by_plan(problem: SamplingProblem, plan: Plan) -> Tensor:
    """Return the samples of a problem by a plan."""
    return sample(problem.velocity, problem.noise, plan, condition=problem.condition)
