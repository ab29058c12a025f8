"""A scheduler's run: its noise levels as our times, and what its step does, found by trying it.

A class is not judged by its name. Its step is made on a known state and velocity, in the manner in
which a plan walks: from any step of the grid, and on a grid of anchors alone.
"""

import functools
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacache.diffusers.hooks import SchedulerHooks
from tacache.errors import HostError
from tacache.grid import as_times

NO_FLOW = (
    "it does not sample a flow (Euler's steps between noise at 1 and data at 0, or UniPC, DPM++ "
    "and others with use_flow_sigmas=True and prediction_type='flow_prediction')"
)
NEW_NOISE = "it draws new noise at each step, so a step cannot be rebuilt from earlier ones"
TRIAL_STEPS = (8, 2)  # some samplers of few steps know no long run
SHAPE = (1, 4, 2, 2)
TOLERANCE = 1e-4  # of a step in float32, on states and velocities near one


class _Refusal(Exception):  # noqa: N818 - it carries a reason to where the scheduler is named
    """Say why a scheduler cannot carry a plan."""


@dataclass(frozen=True)
class SchedulerTrial:
    """A scheduler class with a configuration, of which new ones are made to be tried."""

    kind: Any
    text: str  # the configuration, to compare by
    config: dict[str, Any] = field(compare=False)

    @classmethod
    def of(cls, scheduler: Any) -> "SchedulerTrial":
        """Return the trial of a scheduler's own class, without what a plan adds to it."""
        bases = type(scheduler).__mro__
        kind = next(base for base in bases if not issubclass(base, SchedulerHooks))
        added = ("plan", "strength", "breaks")
        config = {name: value for name, value in scheduler.config.items() if name not in added}
        return cls(kind, json.dumps(config, sort_keys=True, default=repr), config)

    def prepared(self, steps: int) -> Any:
        """Return a new scheduler with a run of so many steps."""
        scheduler = self.kind.from_config(self.config)
        names = inspect.signature(scheduler.set_timesteps).parameters
        shifts = "mu" in names and self.config.get("use_dynamic_shifting")
        scheduler.set_timesteps(num_inference_steps=steps, **({"mu": 1.0} if shifts else {}))
        return scheduler


def check_flow_scheduler(scheduler: Any) -> None:
    """Raise with the reason if this scheduler cannot carry a plan."""
    euler_factor(scheduler)


def euler_factor(scheduler: Any) -> float | None:
    """Return f where a step is x + f (t_next - t) v, t our noise levels; None for other solvers.

    It is 1 in most classes, and -1 where velocities point from noise to data.
    """
    try:
        return _factor_of(SchedulerTrial.of(scheduler))
    except _Refusal as refusal:
        raise HostError(f"{type(scheduler).__name__} cannot carry a plan: {refusal}") from None


def velocity_factor(scheduler: Any) -> float:
    """Return what makes the velocities that a scheduler is given ours, noise minus data."""
    factor = euler_factor(scheduler)
    return 1.0 if factor is None else factor


def run_times(scheduler: Any) -> tuple[float, ...]:
    """Return the noise levels of the run that `set_timesteps` prepared, noise (1) first.

    Reads the whole list at once, so that no step waits for the device.
    """
    sigmas = noise_levels(scheduler.sigmas.tolist())
    if len(sigmas) > 1 and sigmas[-1] == sigmas[-2] > 0:
        sigmas[-1] = 0.0  # DEIS and others stay at their last level; no later step needs its length
    if len(set(sigmas)) < len(sigmas):
        raise HostError(
            f"some of the run's {len(sigmas)} noise levels are equal ({sigmas[0]:g}, "
            f"{sigmas[1]:g}, ...): its shift is too strong, as where it follows a size that the "
            "model was not made for. Call the pipeline with a height and width of the model's own"
        )
    return as_times(sigmas)


def noise_levels(sigmas: Sequence[float]) -> list[float]:
    """Return a scheduler's levels with noise at 1; some count from data to noise."""
    return [1 - sigma for sigma in sigmas] if sigmas[0] < sigmas[-1] else list(sigmas)


@functools.lru_cache(maxsize=256)
def _factor_of(trial: SchedulerTrial) -> float | None:
    """Try a scheduler: Euler's factor, or None for multistep."""
    order = getattr(trial.kind, "order", 1)
    if order != 1:
        raise _Refusal(f"it evaluates the model {order} times a step")
    stages = trial.config.get("stages", 1)
    if stages > 1:  # Helios' pyramid
        raise _Refusal(f"its run has {stages} stages, each on a grid of its own")
    _check_arguments(trial.kind.step)
    known = ("use_flow_sigmas", True), ("prediction_type", "flow_prediction")
    with torch.device("cpu"):
        steps = _check_noise(trial)
        try:
            return _tried_factor(trial, steps)
        except _Refusal:
            if all(trial.config.get(name) == value for name, value in known):
                return None
            raise


def _check_arguments(step: Any) -> None:
    """Refuse a step that cannot be made from a velocity, a timestep and a state alone."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    others = list(inspect.signature(step).parameters.values())[4:]
    needed = [
        parameter.name
        for parameter in others
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]
    if needed:
        raise _Refusal(f"its step asks for {', '.join(needed)} beside velocity, timestep and state")


def _check_noise(trial: SchedulerTrial) -> int:
    """Refuse a step whose result is another one with other random numbers; return the steps."""
    errors = []
    for steps in TRIAL_STEPS:
        try:
            first, second = (_end_of_run(trial.prepared(steps), steps, seed) for seed in (0, 1))
        except Exception as error:  # whatever a class of a stranger's raises is its reason
            errors.append(error)
            continue
        if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
            raise _Refusal(NEW_NOISE)
        return steps
    raise _Refusal(
        "a trial of its step on a velocity of the state's shape fails "
        f"({type(errors[0]).__name__}: {errors[0]})"
    ) from errors[0]


def _end_of_run(scheduler: Any, steps: int, seed: int) -> Tensor:
    """Return where a run with known velocities ends, under these global random numbers."""
    x, v = _known_pair()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for t in scheduler.timesteps[:steps]:  # consistency samplers show one more
            x = _stepped(scheduler, v, t, x)
    return x


def _tried_factor(trial: SchedulerTrial, steps: int) -> float:
    """Return the factor of a class that makes Euler's steps, on its grid and on parts of it."""
    scheduler = trial.prepared(steps)
    timesteps, sigmas = scheduler.timesteps, getattr(scheduler, "sigmas", None)
    if not isinstance(sigmas, Tensor) or len(sigmas) != len(timesteps) + 1:
        raise _Refusal("it keeps no noise levels (sigmas, one more than its timesteps)")
    levels = noise_levels(sigmas.tolist())
    if not all(-TOLERANCE <= level <= 1 + TOLERANCE for level in levels):
        raise _Refusal(NO_FLOW)
    last = len(timesteps)
    try:
        factors = [_factor_at(scheduler, levels, n) for n in range(last)]
        factors += [_factor_from(scheduler, levels, n) for n in (last // 2, last - 1, 0)]
        anchors = [0, last // 2]
        scheduler.timesteps, scheduler.sigmas = timesteps[anchors], sigmas[[*anchors, last]]
        scheduler.num_inference_steps = len(anchors)
        shown = [levels[n] for n in (*anchors, last)]
        factors += [_factor_from(scheduler, shown, n) for n in (1, 0)]
    except Exception as error:
        if isinstance(error, _Refusal):
            raise
        raise _Refusal(f"it cannot step from anywhere but its first level ({error})") from error
    if max(factors) - min(factors) > 100 * TOLERANCE:
        raise _Refusal(NO_FLOW)
    whole = round(factors[0])
    return float(whole) if abs(factors[0] - whole) < 100 * TOLERANCE and whole else factors[0]


def _factor_at(scheduler: Any, levels: Sequence[float], n: int) -> float:
    """Return what multiplies (t_next - t) v in step n; refuse a step that is not Euler's."""
    x, v = _known_pair(n)
    change = _stepped(scheduler, v, scheduler.timesteps[n], x) - x
    length = float((change * v).sum() / (v * v).sum())
    span = levels[n + 1] - levels[n]
    if span == 0 or length == 0 or float((change - length * v).abs().max()) > TOLERANCE:
        raise _Refusal(NO_FLOW)
    return length / span


def _factor_from(scheduler: Any, levels: Sequence[float], n: int) -> float:
    """Return the same where a walk arrives at step n from anywhere."""
    scheduler._step_index = n
    return _factor_at(scheduler, levels, n)


def _stepped(scheduler: Any, v: Tensor, timestep: Tensor, x: Tensor) -> Tensor:
    if hasattr(scheduler, "scale_model_input"):
        scheduler.scale_model_input(x, timestep)  # some warn of a step without it
    result = scheduler.step(v, timestep, x)
    if isinstance(result, Tensor):
        raise _Refusal("its step returns a bare tensor, where pipelines expect an output or tuple")
    stepped: Tensor = result[0]
    return stepped


def _known_pair(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a state and a velocity that do not point the same way."""
    generator = torch.Generator().manual_seed(seed)
    x, v = torch.randn((2, *SHAPE), generator=generator)
    return x, v
