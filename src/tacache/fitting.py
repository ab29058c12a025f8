"""Fitted plans: every interval's average velocity as a weighted sum of the last few evaluated ones.

Weights are found in lock-step: fit one interval over all samples at the states reached, advance all
samples with it, fit the next. Each interval so repairs the drift of those before it. Anchors come
from a dynamic program (`placement`) and a local search on the final error; samples that no weight
is fitted to judge both.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacache.decomposition import norm
from tacache.errors import HostError, PlanError
from tacache.grid import as_times, break_steps
from tacache.placement import (
    Floats,
    as_columns,
    best_anchors,
    growth_between,
    inner_products,
    local_errors,
    pooled,
)
from tacache.plan import Certificate, Plan
from tacache.profile import Host
from tacache.progress import track
from tacache.rules import weighted_sum
from tacache.velocity import Condition, Velocity, batches, check_velocity, euler

RIDGES = (1e-6, 1e-3, 1e-2)  # of the normal equations' mean diagonal, towards plain reuse
REWEIGHTED = 4  # rounds in which samples are weighted by their last error
FLOOR = 0.02  # of the mean error, below which a sample gains no more weight
SIMPLER = 0.02  # of the log error: what a longer history must gain
PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 2  # where, and on how many samples, growth is measured
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long
POWERS = (1.0, 0.5, 1.5, 2.5)  # of the measured growth, each a start of the search
KEEP_EVERY = 10  # steps
SEARCHED = 8  # samples that are run while searching
STEPS = (1, -1, 2, -2)

Value = TypeVar("Value")


class Runs(Protocol):
    """Samples a fit can evaluate: of a velocity function, or held calls of a pipeline.

    `noise` holds those of this process, (samples, ...); `numbers` are their numbers among all.
    """

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    noise: Tensor
    numbers: Sequence[int]
    total: int
    together: bool  # a part cannot be evaluated alone
    job: str  # what the runs depend on beside noise and times: kept files name it

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """The velocities of the chosen samples (positions in `noise`) at states x and a step."""

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Everyone's values by the samples' numbers."""


class FunctionRuns:
    """A velocity function's samples; without a condition it always gets the whole batch."""

    def __init__(
        self,
        velocity: Velocity,
        noise: Tensor,
        times: Iterable[float],
        condition: Condition | None = None,
        batch_size: int | None = None,
    ) -> None:
        next(batches(noise, condition, batch_size))  # refuse before any work
        self.velocity, self.noise, self.times = velocity, noise, as_times(times)
        self.condition, self.batch_size = condition, batch_size
        self.breaks: tuple[float, ...] = ()
        self.numbers: Sequence[int] = range(len(noise))
        self.total = len(noise)
        self.together, self.job = condition is None, ""

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One call of the function a batch."""
        picked = {name: _picked(values, chosen) for name, values in (self.condition or {}).items()}
        found = torch.cat(
            [
                check_velocity(
                    self.velocity(batch.noise, self.times[step], **batch.condition), batch.noise
                ).clone()
                for batch in batches(x, picked, self.batch_size)
            ]
        )
        for s, k in enumerate(chosen):
            check_finite(found[s], step, f"sample {k}")
        return found

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """All samples are here."""
        return dict(mine)


def check_finite(v: Tensor, step: int, sample: str) -> None:
    """A velocity that is no number ends the fit with the sample's name."""
    if not bool(torch.isfinite(v).all()):
        raise HostError(f"{sample}: the velocity at step {step} is infinite or not a number")


class Reference(NamedTuple):
    """Full-step runs of all samples, recorded once and fitted to at any budget."""

    states: Tensor  # (steps + 1, samples of this process, ...), on the CPU
    errors: Floats  # local errors, of all processes' samples
    growth: list[float]
    held_out: int  # the samples with the first numbers
    spent: int


class Fit(NamedTuple):
    """A lock-step fit: what is needed to apply it, and to go on from any of its intervals."""

    anchors: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    states: tuple[Tensor, ...]  # at each anchor, and at the end
    velocities: tuple[Tensor, ...]  # at each anchor
    drift: dict[int, float]  # of each sample, by its number


@torch.no_grad()
def fit_plan(
    velocity: Velocity,
    noise: Tensor,
    times: Iterable[float],
    *,
    evaluations: int,
    history: int = 4,
    max_evaluations: int = 3000,
    search: bool = True,
    condition: Condition | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Plan:
    """A plan with this many evaluations, fitted on full-step runs from `noise`.

    A quarter of the samples (at least one) is held out from every fit and judges the anchors. One
    evaluation is one velocity of one sample; at most `max_evaluations` are spent, the full runs
    included. `search=False` takes the dynamic program's anchors as they are. Without a condition
    `velocity` always gets the whole batch; `condition={}` says that a part may be evaluated alone.
    """
    runs = FunctionRuns(velocity, noise, times, condition, batch_size)
    check_budget(runs, evaluations, history, max_evaluations)
    reference = record(runs, progress=progress)
    return fit_budget(
        runs,
        reference,
        evaluations,
        history=history,
        max_evaluations=max_evaluations if search else 0,
        progress=progress,
    )


def check_budget(
    runs: Runs, evaluations: int, history: int, max_evaluations: int, measuring: int = 0
) -> None:
    """Refuse before the first full run what cannot be fitted, and measured for so many more."""
    steps, parts = len(runs.times) - 1, len(break_steps(runs.times, runs.breaks))
    if runs.total < 2:
        raise PlanError("a fit needs at least two samples: one of them is held out to judge it")
    if not 1 + parts <= evaluations <= steps:
        raise PlanError(
            f"{evaluations} evaluations are impossible: {steps} steps take {1 + parts} to {steps}"
        )
    if history < 1:
        raise PlanError(f"history is at least 1 velocity, not {history}")
    needed = runs.total * (steps + evaluations) + _probe_cost(runs) + measuring
    if max_evaluations < needed:
        raise PlanError(
            f"max_evaluations={max_evaluations} is too few: the full runs, the probes and the "
            f"final fit of {runs.total} samples take {needed}; give fewer samples"
        )


def record(runs: Runs, *, resume: Path | None = None, progress: bool = False) -> Reference:
    """Run all samples with full steps, and measure how errors made on the way grow.

    `resume` names a file that keeps the runs as far as they are, every few steps.
    """
    steps, everyone = len(runs.times) - 1, range(len(runs.noise))
    states, velocities = _kept(resume, runs)
    x = states[-1].to(runs.noise.device)
    for n in track(range(len(velocities), steps), "full steps", progress):
        v = runs.evaluate(x, n, everyone)
        x = euler(x, v, runs.times[n], runs.times[n + 1])
        velocities.append(v.cpu())
        states.append(x.cpu())
        if resume and (len(velocities) % KEEP_EVERY == 0 or len(velocities) == steps):
            _keep(resume, runs, states, velocities)
    walked, recorded = torch.stack(velocities), torch.stack(states)
    grams = runs.gathered({i: inner_products(walked[:, k]) for k, i in enumerate(runs.numbers)})
    held_out = held_out_of(runs.total)
    kept = [grams[i] for i in sorted(grams) if i >= held_out]
    parts = break_steps(runs.times, runs.breaks)
    return Reference(
        states=recorded,
        errors=local_errors(pooled(kept), runs.times, parts),
        growth=_growth(runs, recorded, progress),
        held_out=held_out,
        spent=runs.total * steps + _probe_cost(runs),
    )


def held_out_of(total: int) -> int:
    """How many samples judge a fit: a quarter, at least one."""
    return max(1, total // 4)


def _kept(path: Path | None, runs: Runs) -> tuple[list[Tensor], list[Tensor]]:
    """States and velocities of a run that was stopped; those of other samples are an error."""
    start = runs.noise.cpu()
    if path is None or not path.exists():
        return [start], []
    found = torch.load(path, weights_only=True)
    same_job = found["times"] == list(runs.times) and found["job"] == runs.job
    if not same_job or not torch.equal(found["states"][0], start):
        raise PlanError(f"{path} holds the runs of another fit: delete it, or name another file")
    return list(found["states"]), list(found["velocities"])


def _keep(path: Path, runs: Runs, states: Sequence[Tensor], velocities: Sequence[Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    walked = {"states": torch.stack(list(states)), "velocities": torch.stack(list(velocities))}
    torch.save({"job": runs.job, "times": list(runs.times), **walked}, draft)
    draft.replace(path)


def fit_budget(
    runs: Runs,
    reference: Reference,
    evaluations: int,
    *,
    history: int = 4,
    max_evaluations: int = 3000,
    progress: bool = False,
) -> Plan:
    """A plan for one budget; with too few evaluations left to search, the program's anchors."""
    from tacache.refinement import follow, needed, refine  # which builds on this module

    left = max_evaluations - reference.spent - runs.total * evaluations
    anchors, spent = best_anchors(reference.errors, reference.growth, evaluations), 0
    problem = Problem(runs, reference, history, list(range(runs.total)))
    few = problem if runs.together else problem.of_first(SEARCHED)
    if left >= len(few.samples) * evaluations:  # of one start
        aside = needed(runs.total, reference.held_out, evaluations)
        share = max(left - aside, left // 4, len(few.samples) * evaluations)
        anchors, spent = search_anchors(few, evaluations, share, progress)
    fit = lock_step(problem, anchors)
    again = runs.total * evaluations  # for a look at all samples under other weights
    weights, more = refine(problem, fit, left - spent - again)
    spent += more
    if weights != fit.weights:
        fit, spent = follow(problem, anchors, weights), spent + again
    judged = [fit.drift[i] for i in range(reference.held_out)]
    fitted = [fit.drift[i] for i in range(reference.held_out, runs.total)]
    return Plan(
        rule="fitted",
        times=runs.times,
        anchors=anchors,
        weights=fit.weights,
        samples=runs.total - reference.held_out,
        breaks=runs.breaks,
        host=Host(
            latent_shape=tuple(runs.noise.shape[1:]),
            dtype=str(runs.noise.dtype).removeprefix("torch."),
        ),
        certificate=Certificate(
            held_out=reference.held_out,
            drift=_mean(judged),
            fit_drift=_mean(fitted),
            evaluations_spent=reference.spent + spent + runs.total * evaluations,
            date=date.today().isoformat(),
        ),
    )


class Problem(NamedTuple):
    """What anchors are fitted to: some of the runs, by their numbers."""

    runs: Runs
    reference: Reference
    history: int
    samples: list[int]

    def of_first(self, count: int) -> "Problem":
        """Some of the held-out samples with some of the others, half and half where possible."""
        held_out = self.reference.held_out
        judges = self.samples[: min(held_out, count // 2)]
        others = [i for i in self.samples if i >= held_out][: count - len(judges)]
        return self._replace(samples=[*judges, *others])

    @property
    def mine(self) -> list[int]:
        """Positions of these samples in this process."""
        return [k for k, i in enumerate(self.runs.numbers) if i in self.samples]

    @property
    def parts(self) -> tuple[int, ...]:
        """The steps at which history starts anew."""
        return break_steps(self.runs.times, self.runs.breaks)


def lock_step(
    problem: Problem, anchors: tuple[int, ...], known: Fit | None = None, first: int = 0
) -> Fit:
    """Fit and walk interval after interval, all samples together.

    With a `known` fit whose anchors are the same up to number `first`, its intervals before are
    taken over, and so is the velocity at that anchor: only the end of its interval has moved.
    """
    runs, states_at, mine = problem.runs, problem.reference.states, problem.mine
    weights = list(known.weights[:first]) if known else []
    states = list(known.states[: first + 1]) if known else [runs.noise[mine]]
    velocities = list(known.velocities[: first + 1]) if known else []
    for i in range(first, len(anchors)):
        n, m = anchors[i], (*anchors, len(runs.times) - 1)[i + 1]
        t, t_next = runs.times[n], runs.times[m]
        if i == len(velocities):
            velocities.append(_evaluated(problem, states[i], n))
        basis = velocities[i::-1][: _reach(anchors, i, problem)]
        target = (states[i] - states_at[m][mine].to(states[i].device)) / (t - t_next)
        products = runs.gathered(
            {
                runs.numbers[k]: as_columns([v[s] for v in basis], target[s])
                for s, k in enumerate(mine)
            }
        )
        fitted = [products[j] for j in sorted(products) if j >= problem.reference.held_out]
        weights.append(choose_weights(np.stack(fitted)))
        average = weighted_sum(basis[: len(weights[-1])], weights[-1]).to(velocities[i].dtype)
        states.append(euler(states[i], average, t, t_next))
    drift = _drift(problem, states[-1])
    return Fit(anchors, tuple(weights), tuple(states), tuple(velocities), drift)


def choose_weights(products: Floats) -> tuple[float, ...]:
    """Weights of one interval from the samples' inner products (samples, basis + 1, basis + 1).

    Length of the history and strength of the ridge are those that predict best a sample left out
    of the fit; of nearly equal ones the shorter history wins.
    """
    longest, best = products.shape[1] - 1, (math.inf, 1, RIDGES[0])
    for length in range(1, longest + 1):
        used = [*range(length), longest]
        part = products[:, used][:, :, used]
        for ridge in RIDGES if length > 1 else RIDGES[:1]:
            score = _left_out_error(part, ridge) if len(part) > 1 else float(length > 1)
            if score < best[0] - (SIMPLER if length > best[1] else 0.0):
                best = (score, length, ridge)
    used = [*range(best[1]), longest]
    return tuple(float(w) for w in solve_weights(products[:, used][:, :, used], best[2]))


def solve_weights(products: Floats, ridge: float = RIDGES[0]) -> Floats:
    """W that minimise the mean log of |target - sum_i w_i v_i|^2 over the samples.

    By weighted least squares, each sample weighted by its last error: fidelity is judged in
    decibels, and plain squares would serve the few samples that are hardest to follow.
    """
    normal, right, size = products[:, :-1, :-1], products[:, :-1, -1], products[:, -1, -1]
    tiny = np.finfo(np.float64).tiny
    share = _inverse(size)
    weights = np.zeros(right.shape[1])
    for _ in range(REWEIGHTED):
        matrix, vector = np.einsum("s,sij->ij", share, normal), share @ right
        small = max(ridge * float(np.diag(matrix).mean()), tiny)
        weights = np.linalg.solve(
            matrix + small * np.eye(len(matrix)), vector + small * np.eye(len(matrix))[0]
        )
        error = np.maximum(_errors(products, weights), 0)
        share = _inverse(error + FLOOR * error.mean())
    return weights


def _inverse(errors: Floats) -> Floats:
    """1 / errors but for a factor: at most 1, and all 1 where there is no error."""
    bounded = np.maximum(errors, max(1e-14 * float(errors.max()), np.finfo(np.float64).tiny))
    shares: Floats = bounded.min() / bounded
    return shares


def search_anchors(
    problem: Problem, evaluations: int, budget: int, progress: bool
) -> tuple[tuple[int, ...], int]:
    """The best of several starts, then moves of one anchor that help, while the budget lasts.

    A move is kept if it lowers the log error by more than its standard error over the samples, and
    that of the held-out ones as well. What precedes the moved anchor is not run again.
    """
    best, spent = _best_start(problem, evaluations, budget)
    tried, settled = {best.anchors}, 0
    order = list(range(evaluations - 1, 0, -1))  # late anchors first: they cost least
    for number in track(range(20 * len(order)), "searching", progress):
        j = order[number % len(order)]
        moved = [_moved(best.anchors, j, by, problem) for by in STEPS]
        before, cost = best, len(problem.samples) * (evaluations - j)
        for anchors in moved:
            if anchors is None or anchors in tried or spent + cost > budget:
                continue
            tried.add(anchors)
            spent += cost
            fit = lock_step(problem, anchors, best, j - 1)
            if _is_better(fit, best, problem.reference.held_out):
                best = fit
                break
        settled = 0 if best is not before else settled + 1
        if settled == len(order) or spent + len(problem.samples) > budget:
            break
    return best.anchors, spent


def _best_start(problem: Problem, evaluations: int, budget: int) -> tuple[Fit, int]:
    """The best of the dynamic program's anchors for several powers of the measured growth."""
    reference, cost = problem.reference, len(problem.samples) * evaluations
    starts = dict.fromkeys(
        best_anchors(reference.errors, np.power(reference.growth, power).tolist(), evaluations)
        for power in POWERS
    )
    fits: list[Fit] = []
    for anchors in starts:
        if not fits or (len(fits) + 1) * cost <= budget:
            fits.append(lock_step(problem, anchors))
    return min(fits, key=lambda fit: _mean(_log_drift(fit))), cost * len(fits)


def _is_better(fit: Fit, best: Fit, held_out: int) -> bool:
    """Whether the gain is larger than chance would give, and one on held-out samples."""
    gains = np.array(_log_drift(best)) - np.array(_log_drift(fit))
    judges = [gain for gain, i in zip(gains, sorted(fit.drift), strict=True) if i < held_out]
    chance = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > chance and np.mean(judges) > 0)


def _moved(anchors: tuple[int, ...], j: int, by: int, problem: Problem) -> tuple[int, ...] | None:
    """The anchors with number j moved; None where it would meet another, or had to stay."""
    n, steps = anchors[j] + by, len(problem.runs.times) - 1
    if anchors[j] in problem.parts or not anchors[j - 1] < n < (*anchors, steps)[j + 1]:
        return None
    return (*anchors[:j], n, *anchors[j + 1 :])


def _growth(runs: Runs, states: Tensor, progress: bool) -> list[float]:
    """How errors grow: at a few steps, make the one that reuse makes, run on, and compare."""
    steps, found = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            error, result = _probe(runs, states[:, chosen].to(runs.noise.device), n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        found.append(math.exp(_mean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), found)


def _probe(runs: Runs, states: Tensor, n: int, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = max(0, n - max(1, round(PROBE_SKIP * (len(times) - 1))))
    slope = (states[before + 1] - states[before]) / (times[before] - times[before + 1])
    x = states[before] + slope * (times[before] - times[n])
    if before == n - 1:  # one step makes no error: go a little too far
        x = x + 0.1 * (states[n] - states[before])
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = euler(x, runs.evaluate(x, i, chosen), times[i], times[i + 1])
    return error, norm(x - states[-1]) + tiny


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def _probe_cost(runs: Runs) -> int:
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))


def _evaluated(problem: Problem, x: Tensor, step: int) -> Tensor:
    return problem.runs.evaluate(x, step, problem.mine) if problem.mine else x


def _reach(anchors: Sequence[int], i: int, problem: Problem) -> int:
    """How many velocities may be used at anchor number i: none from before its part."""
    first = max((part for part in problem.parts if part <= anchors[i]), default=0)
    return min(problem.history, sum(first <= n <= anchors[i] for n in anchors))


def _drift(problem: Problem, x: Tensor) -> dict[int, float]:
    """Relative distance of each sample's result to its reference, by number."""
    wanted = problem.reference.states[-1][problem.mine].to(x.device).double()
    found = (norm(x.double() - wanted) / norm(wanted).clamp_min(1e-300)).flatten().tolist()
    numbers = [problem.runs.numbers[k] for k in problem.mine]
    return problem.runs.gathered(dict(zip(numbers, found, strict=True)))


def _log_drift(fit: Fit) -> list[float]:
    return [math.log(max(fit.drift[i], 1e-12)) for i in sorted(fit.drift)]


def _left_out_error(products: Floats, ridge: float) -> float:
    """Mean log error of each sample under weights fitted to the others."""
    errors = []
    for s in range(len(products)):
        weights = solve_weights(np.delete(products, s, axis=0), ridge)
        left = _errors(products[s : s + 1], weights)[0] / max(products[s, -1, -1], 1e-300)
        errors.append(math.log(max(left, 1e-14)))
    return _mean(errors)


def _errors(products: Floats, weights: Floats) -> Floats:
    """|target - sum_i w_i v_i|^2 of each sample."""
    signed = np.append(-weights, 1.0)
    found: Floats = np.einsum("i,sij,j->s", signed, products, signed)
    return found


def _picked(values: object, chosen: Sequence[int]) -> object:
    if isinstance(values, Tensor):
        return values[list(chosen)]
    return [values[k] for k in chosen]  # type: ignore[index]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
