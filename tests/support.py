"""What several test modules use: small flows, profiles and hypothesis strategies."""

import itertools
import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from tests.flows import GaussianMixtureFlow, RotatingFlow
from torch import Tensor

from tacache import Certificate, Origin, Plan, Profile, instant_plan, time_grid

SHAPE = (2, 3)
PROFILE_RULES = ("tasu", "magnitude", "direction", "reuse")
RULES = (*PROFILE_RULES, "fitted")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def noise_of(
    samples: int,
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    device: str = "cpu",
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    return drawn.to(device, dtype)


def mixture(shape: tuple[int, ...] = SHAPE, device: str = "cpu") -> GaussianMixtureFlow:
    """Three components: its trajectories turn and change their speed."""
    means = 1.5 * noise_of(3, shape, seed=100, device=device)
    return GaussianMixtureFlow(means, [0.3, 0.5, 0.2], [0.5, 0.3, 0.2])


def rotating(rate: float = 1.5, growth: float = -0.4) -> RotatingFlow:
    first, second = torch.linalg.qr(noise_of(6, (2,), seed=7))[0].T
    return RotatingFlow(first.reshape(SHAPE), second.reshape(SHAPE), rate, growth)


def profile_from(magnitude: list[float], direction: list[float], shift: float = 1.0) -> Profile:
    """A profile of one sample with these numbers, one a step."""
    zeros = (0.0,) * len(direction)
    return Profile(
        times=tuple(time_grid(len(direction), shift)),
        samples=1,
        magnitude=tuple(magnitude),
        magnitude_std=zeros,
        direction=tuple(direction),
        direction_std=zeros,
    )


def plan_with(rule: str, profile: Profile, anchors: tuple[int, ...]) -> Plan:
    """A plan of any rule on these anchors; a fitted one extrapolates a little."""
    fields = {"times": profile.times, "anchors": anchors}
    if rule == "fitted":
        rows = [(1.0,), (1.25, -0.25), *[(1.5, -0.75, -0.5)] * len(anchors)]
        return Plan(rule=rule, **fields, weights=tuple(rows[: len(anchors)]))
    return Plan(rule=rule, **fields, magnitude=profile.magnitude, direction=profile.direction)


def certified(
    evaluations: int,
    *,
    steps: int = 20,
    times: Sequence[float] | None = None,
    origin: Origin = Origin(),  # noqa: B008
    **figures: float,
) -> Plan:
    """A fitted plan with these figures in its certificate; with `equivalent_steps` for the flow."""
    near = {"flow_drift": 0.01} if "equivalent_steps" in figures else {}
    known = {"held_out": 2, "drift": 0.01, "fit_drift": 0.01, "evaluations_spent": 9, "date": "x"}
    plan = instant_plan(times or time_grid(steps, shift=3.0), evaluations)
    certificate = Certificate(**{**known, **near, **figures})
    return plan.model_copy(update={"rule": "fitted", "certificate": certificate, "origin": origin})


def euler_steps(velocity, x: Tensor, times: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """All states and velocities of an Euler run."""
    states, velocities = [x], []
    for t, following in itertools.pairwise(times):
        velocities.append(velocity(states[-1], t))
        states.append(states[-1] - (t - following) * velocities[-1])
    return torch.stack(states), torch.stack(velocities)


def mean_distance(x: Tensor, truth: Tensor) -> float:
    """The mean relative distance of samples to where they should end."""
    return float(((x - truth).norm(dim=1) / truth.norm(dim=1)).mean())


def euler_run(velocity, x: Tensor, times: tuple[float, ...], **condition) -> Tensor:
    """Plain Euler (eq. 1), written out."""
    for n in range(len(times) - 1):
        x = x - (times[n] - times[n + 1]) * velocity(x, times[n], **condition)
    return x


# Sums of eighths are exact, so that ties happen; any float is the general case.
variations = st.one_of(
    st.integers(0, 8).map(lambda n: n / 8),
    st.floats(0, 2, allow_nan=False, allow_subnormal=False),
)
seeds = st.integers(0, 2**31)


TIMES = (1.0, 0.75, 0.5, 0.25, 0.0)


def fitted(**changes):
    fields = {"rule": "fitted", "times": TIMES, "anchors": (0, 2), "weights": ((1.0,), (1.5, -0.5))}
    return Plan(**{**fields, **changes})


def carried(**changes):
    fields = {"anchors": (0, 1, 2), "weights": ((1.0,), (1.5, -0.5), (1.8, -1.2, -0.25))}
    return fitted(**{**fields, **changes})


def tasu(**changes):
    fields = {"magnitude": (-1.0, 0.5, 0.0, 0.0), "direction": (0.1, 0.2, 0.3, 0.3)}
    return Plan(**{"rule": "tasu", "times": TIMES, "anchors": (0, 1, 3), **fields, **changes})


class KilledError(Exception):
    """Stands for a kill."""


class Counted:
    """A velocity function that notes what it is asked for, and dies after so many evaluations."""

    def __init__(self, flow, most=math.inf):
        self.flow, self.most, self.sizes, self.states = flow, most, [], []

    @property
    def evaluations(self):
        """One a sample."""
        return sum(self.sizes)

    def __call__(self, x, t, **condition):
        """The flow's velocity."""
        assert type(t) is float
        if self.evaluations + len(x) > self.most:
            raise KilledError
        self.sizes.append(len(x))
        self.states.append(x.clone())
        for values in condition.values():
            assert len(values) == len(x)
        return self.flow(x, t)
