"""The yardsticks: full steps, fewer Euler steps, and plain reuse on TACache's own anchors."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from tacache.calibration import measure
from tacache.errors import PlanError
from tacache.plan import make_plan
from tacache.ssc import MAX_SKIP
from tacache.storage.files import Frozen
from tacache.storage.origin import Origin
from tacache.velocity import euler
from tacache_lab.methods.caching import AnchoredRule, AnchorSettings, Rebuild, reused
from tacache_lab.methods.seam import Baseline, Meter, RecordedProblem, SamplingProblem


class GridSettings(Frozen):
    """A grid of the method's own: it steps through these times."""

    times: tuple[float, ...]


def euler_steps(model: Meter, x: Tensor, times: Sequence[float]) -> Tensor:
    """Return Euler's method (eq. 1 of the paper), one evaluation a step."""
    for t, t_next in pairwise(times):
        x = euler(x, model(x, t), t, t_next)
    return x


class Full(Baseline[GridSettings]):
    """The reference: Euler on the full grid."""

    name = "full"
    citation = "Liu et al., Flow Straight and Fast, ICLR 2023 (Euler on all steps)"
    needs = "it evaluates every step"
    tuned = False

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[GridSettings]:
        """Return the full grid, where the budget is the number of its steps."""
        full = evaluations == recording.steps
        return [GridSettings(times=tuple(recording.times))] if full else []

    def sample(self, model: Meter, problem: SamplingProblem, settings: GridSettings) -> Tensor:
        """Return Euler on these times."""
        return euler_steps(model, problem.noise, settings.times)


class FewerSteps(Full):
    """Euler on a grid of K steps, made the way the full one was made."""

    name = "fewer"
    citation = "Liu et al., Flow Straight and Fast, ICLR 2023 (Euler on K steps)"

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[GridSettings]:
        """Return the K-step grid."""
        return [GridSettings(times=recording.shorter(evaluations))]


class ReuseOnAnchors(AnchoredRule[AnchorSettings]):
    """TACache's schedule (SSC, eq. 6-8) without its reconstruction: v_j until the next anchor."""

    name = "reuse"
    citation = "Accelerating Rectified Flow Models via Trajectory-Aware Caching, 2026 (SSC alone)"
    needs = "its schedule starts with an interval of one"

    def candidates(self, recording: RecordedProblem, evaluations: int) -> Sequence[AnchorSettings]:
        """Return the anchors of `make_plan`, with a longer max_skip where the budget needs one."""
        profile = measure(recording.velocities, tuple(recording.times), Origin())
        longest = max(MAX_SKIP, -(-(recording.steps - 1) // max(1, evaluations - 1)))
        try:
            plan = make_plan(profile, evaluations=evaluations, max_skip=longest, rule="reuse")
        except PlanError:
            return []
        return [AnchorSettings(anchors=plan.anchors)]

    def rebuild(self, settings: AnchorSettings) -> Rebuild:
        """Return the last evaluated velocity."""
        return reused("velocity")
