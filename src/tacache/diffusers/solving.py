"""A pipeline's own solver outside of its loop, for one run and for the samples of a fit."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacache.errors import HostError
from tacache.fitting.integrators import EulerIntegrator

if TYPE_CHECKING:
    from tacache.diffusers.driven_loop import HeldStep, Loop


class Solver:
    """The pipeline's own solver on a driven run's grid: Euler, or a multistep one with history."""

    def __init__(self, origin: Any, first: "HeldStep", loop: "Loop") -> None:
        self._scheduler, self._first, self._loop = copy_run(origin), first, loop
        self.n = 0

    def step(self, v: Tensor, x: Tensor) -> Tensor:
        """Return the state at the next step, from velocity and state at this one, bit for bit."""
        if self.n >= self._loop.steps:
            raise HostError(f"the solver has made all {self._loop.steps} steps: take a new one")
        now = self._scheduler.timesteps[self._loop.start + self.n]
        options = {**self._first.options, "return_dict": False}
        tokens = options.get("per_token_timesteps")
        if tokens is not None:  # a token never lies above the level the walk has reached
            options["per_token_timesteps"] = torch.minimum(tokens, now.to(tokens))
        v = v if self._first.factor == 1 else v / self._first.factor
        x_next: Tensor = self._scheduler.plain_step(v, now, x, **options)[0]
        self.n += 1
        return x_next

    def tried(self, basis: Sequence[Tensor], x: Tensor, m: int) -> Tensor:
        """Return the states at step m by no velocity and by each of a basis; stay at this step.

        They lie along a new first dimension, in float32 or better.
        """
        other = Solver(self._scheduler, self._first, self._loop)
        other.n, dtype = self.n, torch.promote_types(x.dtype, torch.float32)
        for name, value in vars(other._scheduler).items():
            setattr(other._scheduler, name, _in_dtype(value, dtype, x.shape))
        v = torch.stack([torch.zeros_like(basis[0]), *basis]).to(dtype)
        states = x.to(dtype).expand_as(v)
        while other.n < m:
            states = other.step(v, states)
        return states


class DiffusersEuler(EulerIntegrator):
    """As diffusers' Euler scheduler steps: in float32, and then in the velocity's dtype."""

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Make one step across the interval, bit for bit: its length is a tensor there too."""
        start, end = torch.tensor([self.times[n], self.times[m]], dtype=torch.float32, device="cpu")
        moved: Tensor = x.float() + (end - start) * v
        return moved.to(v.dtype)


class SolverIntegrator:
    """A fit's samples, each with a solver of its own (`tacache.fitting.integrators.Integrator`)."""

    remembers = True

    def __init__(self, solvers: Sequence[Solver], times: Sequence[float]) -> None:
        self.solvers, self.times = solvers, times

    def move(self, x: Tensor, v: Tensor, n: int, m: int) -> Tensor:
        """Make every step on the way with the same velocity, as a plan's scheduler makes them."""
        states = list(x)
        for _ in range(n, m):
            states = [solver.step(v[s], states[s]) for s, solver in enumerate(self.solvers)]
        if not states:
            return x
        ends = torch.stack(states)
        if not bool(torch.isfinite(ends).all()):
            raise HostError(
                f"the scheduler's own steps from {n} to {m} end in states that are infinite or not "
                "a number: give it another solver_type or final_sigmas_type"
            )
        return ends

    def columns(
        self, x: Tensor, basis: Sequence[Tensor], wanted: Tensor, n: int, m: int
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Try each velocity alone: how far it leads from where no velocity at all leads."""
        if not self.solvers:
            return basis, x
        span = self.times[n] - self.times[m]
        tries = [
            solver.tried([v[s] for v in basis], x[s], m) for s, solver in enumerate(self.solvers)
        ]
        still, *moved = torch.stack(tries, dim=1)
        return [(still - state) / span for state in moved], (still - wanted) / span


def copy_run(scheduler: Any) -> Any:
    """Return a scheduler on the same grid and with the same history, to step with."""
    copied: Any = object.__new__(type(scheduler))
    own = {name: value for name, value in scheduler.__dict__.items() if name != "loop"}
    copied.__dict__.update(copy.deepcopy(own))
    return copied


def _in_dtype(value: Any, dtype: torch.dtype, shape: torch.Size) -> Any:
    """Return a solver's remembered states in another dtype; everything else as it is."""
    if isinstance(value, list):
        return [_in_dtype(part, dtype, shape) for part in value]
    return value.to(dtype) if isinstance(value, Tensor) and value.shape == shape else value
