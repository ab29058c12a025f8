"""Higher-order solvers on a grid of fewer steps, for x_t = (1 - t) data + t noise.

DPM-Solver++ and UniPC are written in alpha = 1 - t, sigma = t and lambda = log(alpha / sigma), on
the data prediction m = x - t v. Where t is 1 or 0 lambda is infinite: the formulas' limits apply,
and a last step to t = 0 is of first order, as usual.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from tacache.tasu import working_dtype
from tacache.velocity import adams_bashforth
from tacache_lab.methods.seam import Baseline, Meter, RecordedProblem, SamplingProblem
from tacache_lab.methods.simple import GridSettings

Model = Callable[[Tensor, float], Tensor]
Solve = Callable[[Model, Tensor, Sequence[float]], Tensor]


def adams_bashforth_2(model: Model, x: Tensor, times: Sequence[float]) -> Tensor:
    """Return AB2 with variable steps."""
    ((_, end),) = deque(adams_bashforth_steps(model, x, times), maxlen=1)
    return end


def adams_bashforth_steps(
    model: Model, x: Tensor, times: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the velocity of every step of AB2 and the state it leads to.

    The first step is Euler's.
    """
    before: tuple[Tensor, float] | None = None
    for t, t_next in pairwise(times):
        v, length = model(x, t), t - t_next
        average = v if before is None else adams_bashforth(v, before[0], length / before[1])
        x = x - length * average
        before = v, length
        yield v, x


def heun(model: Model, x: Tensor, times: Sequence[float]) -> Tensor:
    """Return Heun's method as in EDM (Karras et al. 2022, Algorithm 1): two evaluations a step.

    A step to t = 0 is Euler's, with one.
    """
    for t, t_next in pairwise(times):
        v = model(x, t)
        reached = x - (t - t_next) * v
        if t_next > 0:
            reached = x - (t - t_next) / 2 * (v + model(reached, t_next))
        x = reached
    return x


def dpm_solver_pp_2m(model: Model, x: Tensor, times: Sequence[float]) -> Tensor:
    """Return DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2)."""
    before: tuple[Tensor, float] | None = None  # m and lambda of the step before
    for t, t_next in pairwise(times):
        m, step = x - t * model(x, t), _log_step(t, t_next)
        data = m
        if before is not None and t_next > 0:
            ratio = step.h / (step.start - before[1])  # 1 / r, zero after a step from t = 1
            data = m + ratio / 2 * (m - before[0])
        x = step.decay * x - step.gain * data
        before = m, step.start
    return x


def unipc(model: Model, x: Tensor, times: Sequence[float]) -> Tensor:
    """Return UniPC of order 2 with B(h) = e^h - 1 (Zhao et al. 2023, bh2): predictor and corrector.

    The corrector uses the evaluation of the next step, so a step costs one.
    """
    step, base, before = None, x, None  # of the step that was predicted: x, and (m, lambda) before
    m = x
    for t, t_next in pairwise(times):
        latest = x - t * model(x, t)
        if step is not None:
            x = _corrected(step, base, m, latest, before)
            before = m, step.start
        base, m, step = x, latest, _log_step(t, t_next)
        x = _predicted(step, base, m, before if t_next > 0 else None)
    return x


class _LogStep(NamedTuple):
    """A step in lambda: its start, its length h, and x' = decay x - gain m, its first order."""

    start: float
    h: float
    decay: float
    gain: float


def _log_snr(t: float) -> float:
    if t <= 0:
        return math.inf
    return math.log((1 - t) / t) if t < 1 else -math.inf


def _log_step(t: float, t_next: float) -> _LogStep:
    """Return decay sigma' / sigma and gain alpha' (e^-h - 1), the latter written without lambda."""
    start = _log_snr(t)
    decay = t_next / t
    return _LogStep(start, _log_snr(t_next) - start, decay, decay * (1 - t) - (1 - t_next))


def _predicted(step: _LogStep, x: Tensor, m: Tensor, before: tuple[Tensor, float] | None) -> Tensor:
    """Return UniP-2: half the slope of the data prediction; UniP-1 without a step before."""
    first = step.decay * x - step.gain * m
    if before is None:
        return first
    inverse = step.h / (before[1] - step.start)  # 1 / r_1, not positive
    return first - step.gain / 2 * inverse * (before[0] - m)


def _corrected(
    step: _LogStep, x: Tensor, m: Tensor, latest: Tensor, before: tuple[Tensor, float] | None
) -> Tensor:
    """Return UniC-2 with the data prediction `latest` at the step's end, or UniC-1."""
    first = step.decay * x - step.gain * m
    if before is None:
        return first - step.gain / 2 * (latest - m)
    hh = -step.h
    phi = math.expm1(hh)
    second = phi / hh - 1
    b_1, b_2 = second / phi, 2 * (second / hh - 0.5) / phi
    r_1 = (before[1] - step.start) / step.h
    rho_1 = (b_1 - b_2) / (1 - r_1)
    slope = rho_1 / r_1 * (before[0] - m) + (b_1 - rho_1) * (latest - m)
    return first - step.gain * slope


class SolverBaseline(Baseline[GridSettings]):
    """A solver on a grid of as many steps as the budget pays for."""

    tuned = False

    def __init__(self, name: str, citation: str, solve: Solve, *, per_step: int = 1) -> None:
        self.name, self.citation = name, citation
        self._solve, self._per_step = solve, per_step

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[GridSettings]:
        """Return the longest grid within the budget.

        Its last step costs one where it ends at t = 0.
        """
        saved = self._per_step - 1 if recording.times[-1] <= 0 else 0
        steps = (evaluations + saved) // self._per_step
        return [GridSettings(times=recording.shorter(steps))] if steps else []

    def sample(self, model: Meter, problem: SamplingProblem, settings: GridSettings) -> Tensor:
        """Solve in working precision; the model sees the noise's dtype."""
        dtype, wide = problem.noise.dtype, working_dtype(problem.noise)

        def widened(x: Tensor, t: float) -> Tensor:
            return model(x.to(dtype), t).to(wide)

        return self._solve(widened, problem.noise.to(wide), settings.times).to(dtype)


SOLVERS = (
    SolverBaseline("dpm++2m", "Lu et al., DPM-Solver++, arXiv:2211.01095, 2022", dpm_solver_pp_2m),
    SolverBaseline("unipc", "Zhao et al., UniPC, NeurIPS 2023 (bh2, order 2)", unipc),
    SolverBaseline("heun", "Karras et al., EDM, NeurIPS 2022 (Algorithm 1)", heun, per_step=2),
    SolverBaseline("ab2", "Adams-Bashforth of order 2 with variable steps", adams_bashforth_2),
)
