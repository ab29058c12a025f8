"""The paper's appendix C: how far a plan drifts from the reference, and why.

The reference and the planned run advance side by side from the same noise, so that no trajectory
is stored. Drift and alignment compare the two runs; the bound of eq. 16 is a statement about one
step from the reference's own velocity.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor

from tacache.errors import HostError, PlanError
from tacache.plan import Plan
from tacache.stepper import Stepper
from tacache.storage.files import Frozen
from tacache.tasu import (
    advance,
    dot,
    init_direction,
    norm,
    orthogonal_part,
    realign,
    relative_distance,
    share,
)
from tacache.velocity import Batch, Condition, Velocity, batches, check_velocity, euler
from tacache.work.progress import track


class Alignment(Frozen):
    """cos(theta) between the historical and the true orthogonal direction, over cached steps."""

    records: int
    mean: float
    positive: float
    percentile_10: float
    median: float
    percentile_90: float


class Bound(Frozen):
    """One cached step from the reference's velocity before it, relative to that velocity's norm.

    `error` is the distance of the TASU update (eq. 15) to the oracle update (eq. 14), `bound` what
    eq. 16 allows, `excess` the largest of error - bound over samples (at most rounding), and
    `distance` how far the TASU update is from the velocity the model really gives. `cos_theta` is
    the mean alignment of the planned run at this step.
    """

    step: int
    cos_theta: float
    error: float
    bound: float
    excess: float
    distance: float


class Diagnostics(Frozen):
    """How far a plan drifts from the full run at every state and step, and why."""

    samples: int
    skip_ratio: float
    state_drift: tuple[float, ...]
    state_drift_error: tuple[float, ...]
    velocity_drift: tuple[float, ...]
    evaluated_drift: float
    cached_drift: float | None
    alignment: Alignment | None
    bounds: tuple[Bound, ...]


# What is collected, one number a sample, by (quantity, step).
Records = defaultdict[tuple[str, int], list[float]]


@torch.no_grad()
def diagnose(
    velocity: Velocity,
    noise: Tensor,
    plan: Plan,
    *,
    condition: Condition | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Diagnostics:
    """Run `plan` beside the full-step reference from the same noise, and compare step by step.

    Args:
        velocity: The guided velocity, `velocity(x, t, **condition)`.
        noise: The states that the samples start from, along dim 0.
        plan: The plan that is looked at.
        condition: What belongs to each sample, by the names of `velocity`'s arguments.
        batch_size: How many samples one call of `velocity` gets at most.
        progress: Whether to show a progress bar.

    Returns:
        How far the run is from the reference, step by step.

    Raises:
        TACacheError: If a velocity is not finite.

    """
    records: Records = defaultdict(list)
    for batch in track(list(batches(noise, condition, batch_size)), "diagnosing", progress):
        _compare(velocity, batch, plan, records)
    return _summary(records, plan)


def damp(plan: Plan, diagnoses: Sequence[Diagnostics]) -> Plan:
    """Return a `tasu` plan with d cos(theta) in the place of d: the rule `damped`.

    An update of strength s along a direction at angle theta to the true one leaves the error
    s^2 - 2 s d cos(theta) + d^2, least at s = d cos(theta); the paper takes s = d (eq. 13). The
    cosine is the mean over what was diagnosed; where it is negative there is no update.
    """
    if plan.rule != "tasu" or plan.direction is None:
        raise PlanError(f"only a tasu plan can be damped, this one has the rule {plan.rule!r}")
    cached = {n for n in range(plan.steps) if n not in plan.anchors}
    if not diagnoses or any(
        b.step not in cached for diagnosis in diagnoses for b in diagnosis.bounds
    ):
        raise PlanError("damping needs diagnostics of this plan: diagnose it first")
    direction = list(plan.direction)
    for n in range(1, plan.steps):
        seen = [
            (b.cos_theta, diagnosis.samples)
            for diagnosis in diagnoses
            for b in diagnosis.bounds
            if b.step == n
        ]
        if seen:
            cosine = sum(c * count for c, count in seen) / sum(count for _, count in seen)
            direction[n - 1] *= max(0.0, cosine)
    return plan.model_copy(update={"rule": "damped", "direction": tuple(direction)})


def _compare(velocity: Velocity, batch: Batch, plan: Plan, records: Records) -> None:
    def add(quantity: str, step: int, values: Tensor) -> None:
        numbers = values.flatten().tolist()
        if not all(map(math.isfinite, numbers)):
            raise HostError(
                f"the {quantity} comparison is not finite at step {step}: a state or velocity "
                "there is zero, infinite or not a number"
            )
        records[quantity, step] += numbers

    stepper = Stepper(plan)
    x_full = x_plan = batch.noise
    precise_full = precise_plan = batch.noise  # replaced at step 0, always an anchor
    full_anchors: list[Tensor] = []
    plan_anchors: list[Tensor] = []
    for n, (t, t_next) in enumerate(pairwise(plan.times)):
        before_full, before_plan = precise_full, precise_plan
        evaluated = stepper.evaluates
        v_full = check_velocity(velocity(x_full, t, **batch.condition), x_full)
        v_plan = stepper.velocity(x_plan, partial(velocity, x_plan, t, **batch.condition))
        precise_full, precise_plan = v_full.double(), v_plan.double()
        add("state", n, relative_distance(x_plan, x_full))
        add("velocity", n, relative_distance(v_plan, v_full))
        if evaluated:
            full_anchors = [*full_anchors, precise_full][-2:]
            plan_anchors = [*plan_anchors, precise_plan][-2:]
        elif plan.weights is None and len(plan_anchors) == 2:
            historical = realign(init_direction(plan_anchors[1], plan_anchors[0]), before_plan)
            true = realign(precise_full - before_full, before_full)
            add("alignment", n, dot(historical, true))
            p = init_direction(full_anchors[1], full_anchors[0])
            for quantity, values in _bound(plan, n - 1, before_full, precise_full, p).items():
                add(quantity, n, values)
        x_full = euler(x_full, v_full, t, t_next)
        x_plan = euler(x_plan, v_plan, t, t_next)
    add("state", plan.steps, relative_distance(x_plan, x_full))


def _bound(plan: Plan, n: int, v: Tensor, v_next: Tensor, p: Tensor) -> dict[str, Tensor]:
    """Return both sides of eq. 16 at step n, with the plan's indicators and the history p."""
    dt = plan.times[n] - plan.times[n + 1]
    growth, planned_d = plan.update(n)
    planned_k = torch.full_like(norm(v), math.log(growth) / dt)
    change = v_next - v
    k = share(change, along=v) / dt
    true, historical = realign(change, v), realign(p, v)
    # Without a direction there is no update across v, whatever its strength.
    d = norm(orthogonal_part(change, along=v)) / norm(v) * norm(true)
    used_d = planned_d * norm(historical)
    oracle = (k * dt).exp() * v + d * norm(v) * true
    estimate = advance(v, historical, growth, planned_d)
    c = dt * (torch.maximum(planned_k, k) * dt).exp()
    misaligned = 2 * used_d * d * (1 - dot(historical, true)).clamp(min=0)  # rounding aside
    bound = ((c * (planned_k - k)) ** 2 + (used_d - d) ** 2 + misaligned).sqrt()
    error = norm(estimate - oracle) / norm(v)
    distance = norm(estimate - v_next) / norm(v)
    return {"error": error, "bound": bound, "excess": error - bound, "distance": distance}


def _summary(records: Records, plan: Plan) -> Diagnostics:
    def mean(quantity: str, step: int) -> float:
        return fmean(records[quantity, step])

    def pooled(quantity: str, steps: Sequence[int]) -> list[float]:
        return [value for n in steps for value in records[quantity, n]]

    samples = len(records["state", 0])
    cached = [n for n in range(plan.steps) if n not in plan.anchors]
    compared = [n for n in cached if ("bound", n) in records]
    return Diagnostics(
        samples=samples,
        skip_ratio=len(cached) / plan.steps,
        state_drift=tuple(mean("state", n) for n in range(plan.steps + 1)),
        state_drift_error=tuple(
            stdev(records["state", n]) / math.sqrt(samples) if samples > 1 else 0.0
            for n in range(plan.steps + 1)
        ),
        velocity_drift=tuple(mean("velocity", n) for n in range(plan.steps)),
        evaluated_drift=fmean(pooled("velocity", plan.anchors)),
        cached_drift=fmean(pooled("velocity", cached)) if cached else None,
        alignment=alignment(pooled("alignment", compared)) if compared else None,
        bounds=tuple(
            Bound(
                step=n,
                cos_theta=mean("alignment", n),
                error=mean("error", n),
                bound=mean("bound", n),
                excess=max(records["excess", n]),
                distance=mean("distance", n),
            )
            for n in compared
        ),
    )


def alignment(cosines: Sequence[float]) -> Alignment:
    """Return how the cosines of cached steps are spread."""
    low, median, high = np.percentile(cosines, [10, 50, 90])
    return Alignment(
        records=len(cosines),
        mean=fmean(cosines),
        positive=fmean(cosine > 0 for cosine in cosines),
        percentile_10=float(low),
        median=float(median),
        percentile_90=float(high),
    )
