"""Following a plan: evaluate at anchors, reconstruct between them.

A fitted plan carries one memory from anchor to anchor in the place of past velocities. Into
interval i goes m_i = v_{i-1} + r_i m_{i-1}, and its average velocity is a_i v_i + b_i m_i. A row of
weights is (a, b, r) or the beginning of it: without r the memory is v_{i-1}, and without b it is
not used.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tacache.errors import HostError
from tacache.plan import Plan, check_one_latent, check_plan
from tacache.tasu import Arc, start_arc, working_dtype
from tacache.velocity import Condition, Velocity, batches, check_finite, check_velocity, euler

Rows = Sequence[Sequence[float]]  # the weights of a fitted plan, one row an interval


class Stepper:
    """A stepper follows a plan in a loop of your own: ask it for the velocity once a step.

    It is the only mutable object of the package's core. It holds the last evaluated velocities, or
    one memory of them, and where its reconstruction stands. Nothing in it waits for the device.
    """

    def __init__(self, plan: Plan) -> None:
        check_plan(plan)
        check_one_latent(plan)
        self.plan = plan
        self._anchors = frozenset(plan.anchors)
        self._breaks = frozenset(plan.break_steps)
        self._turns = plan.rule in ("tasu", "direction", "damped")
        self._longest = max(map(len, plan.weights)) if plan.weights else 1 + self._turns
        self._sums = memory_sums(plan.weights or ())
        self.reset()

    def reset(self) -> None:
        """Start a new run from step 0."""
        self.step = 0
        self.forget()

    def forget(self) -> None:
        """Drop the history, where another model takes over. The next step must be an anchor."""
        self._known = 0  # velocities evaluated since
        self._history: tuple[Tensor, ...] = ()  # newest first; a carried memory stands for all
        self._arc: Arc | None = None
        self._average: Tensor | None = None

    @property
    def evaluates(self) -> bool:
        """Return whether the step to come is an anchor."""
        return self.step in self._anchors

    @property
    def is_done(self) -> bool:
        """Return whether all steps of the plan are taken."""
        return self.step >= self.plan.steps

    def velocity(self, x: Tensor, evaluate: Callable[[], Tensor]) -> Tensor:
        """Return the velocity to take this step with; `evaluate` is called at anchors only."""
        v = self._current(x, evaluate)
        self._move_to(self.step + 1)
        return v.clone() if v is self._average else v

    def jump(self, x: Tensor, evaluate: Callable[[], Tensor]) -> Tensor:
        """Return the average velocity from this anchor to the next, and go there.

        This is for fitted plans on Euler: one step with it is all steps of the interval together.
        """
        if self.plan.weights is None or not self.evaluates:
            raise HostError("only a fitted plan jumps, and only from an anchor")
        v = self._current(x, evaluate)
        later = (n for n in self.plan.anchors if n > self.step)
        self._move_to(next(later, self.plan.steps))
        return v

    def _current(self, x: Tensor, evaluate: Callable[[], Tensor]) -> Tensor:
        """Return the velocity of the step where the stepper stands."""
        if self.is_done:
            raise HostError(
                f"all {self.plan.steps} steps of the plan are done: call reset() before a new run"
            )
        if self.step in self._breaks:
            self.forget()
        if self.evaluates:
            return self._anchor(check_velocity(evaluate(), x))
        if not self._known:
            raise HostError(
                f"step {self.step} is no anchor and no velocity was evaluated before it"
            )
        return self._skip(x)

    def _move_to(self, step: int) -> None:
        """Move to `step` and keep only what is used later, while the model or a decoder runs.

        Those are evaluated velocities, one fewer than a rule uses, or the memory that is carried;
        after the last step none.
        """
        self.step = step
        if self.is_done:
            self.forget()
        elif self.evaluates:
            self._arc = self._average = None
            self._history = self._history[: self._longest - 1]

    def _anchor(self, v: Tensor) -> Tensor:
        if self._history and self._history[0].shape != v.shape:
            raise HostError(
                f"the state has shape {tuple(v.shape)} at step {self.step}, and had "
                f"{tuple(self._history[0].shape)} before: call reset() before a new run; a run "
                "that changes its shape on the way cannot follow a plan"
            )
        self._known, basis = self._known + 1, (v, *self._history)
        self._history = self._kept(v)
        if self.plan.weights is None:
            return v
        row = self.plan.weights[self._number]
        if len(row) > self._known:  # the history was dropped: reuse until it is back
            row = (1.0,)
        used = row[:2]
        self._average = weighted_sum(basis[: len(used)], used).to(v.dtype)
        return self._average

    def _kept(self, v: Tensor) -> tuple[Tensor, ...]:
        """Return the history with a copy of v, as the caller or a CUDA graph may write into v."""
        if self.plan.weights is None:
            return (v.clone(), *self._history)
        following = self.plan.weights[self._number + 1 :]
        if not following:
            return ()
        rate = memory_rate(following[0])
        if self._known == 2:  # since the history was dropped, if it was: one stands for all before
            rate *= self._sums[self._number]
        return (carry(v, *self._history, rate=rate),)

    @property
    def _number(self) -> int:
        """Return the number of the anchor where the stepper stands."""
        return self.plan.anchors.index(self.step)

    def _skip(self, x: Tensor) -> Tensor:
        if self._average is not None:
            return check_velocity(self._average, x)
        latest = check_velocity(self._history[0], x)
        if self.plan.rule == "reuse":
            return latest.clone()
        growth, turn = self.plan.update(self.step - 1)
        self._arc = (self._arc or self._start_arc()).advance(growth, turn)
        return self._arc.velocity().to(latest.dtype)

    def _start_arc(self) -> Arc:
        previous = self._history[1] if len(self._history) > 1 else None
        return start_arc(self._history[0], previous)


@torch.no_grad()
def sample(
    velocity: Velocity, noise: Tensor, plan: Plan, *, condition: Condition | None = None
) -> Tensor:
    """Run the plan from `noise` (samples along dim 0), with one call of `velocity` an anchor.

    Args:
        velocity: The guided velocity, `velocity(x, t, **condition)`.
        noise: The states that the samples start from, along dim 0.
        plan: Which steps are evaluated, and how the others are rebuilt.
        condition: What belongs to each sample, by the names of `velocity`'s arguments.

    Returns:
        The states at the end of the run, in the dtype and on the device of `noise`.

    Raises:
        TACacheError: If a velocity is not of its state's shape.

    """
    (batch,) = batches(noise, condition)
    x, stepper = batch.noise, Stepper(plan)
    advance = stepper.velocity if plan.weights is None else stepper.jump
    while not stepper.is_done:
        t = plan.times[stepper.step]
        v = advance(x, partial(velocity, x, t, **batch.condition))
        x = euler(x, v, t, plan.times[stepper.step])
    return check_finite(x)


def weighted_sum(velocities: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the average velocity of a fitted interval, sum_i w_i v_i, newest anchor first."""
    total = weights[0] * velocities[0].to(working_dtype(velocities[0]))
    for v, weight in zip(velocities[1:], weights[1:], strict=True):
        total.add_(v, alpha=weight)
    return total


def carry(v: Tensor, memory: Tensor | None = None, *, rate: float) -> Tensor:
    """Return what is carried into the next interval, v + rate * memory, a new tensor like v."""
    if memory is None or rate == 0:
        return v.clone()
    return torch.add(v.to(working_dtype(v)), memory, alpha=rate).to(v.dtype)


def memory_rate(row: Sequence[float]) -> float:
    """Return the rate r in a row (a, b, r) of weights with a memory; shorter ones have none."""
    return row[2] if len(row) > 2 else 0.0


def memory_sums(rows: Rows) -> list[float]:
    """Return what each interval's memory adds up to of all velocities before it: m_i of equal ones.

    A memory that begins later lacks a part of this sum, which velocities, all nearly parallel,
    need to be right: the oldest one it holds is multiplied by what the memory there should hold.
    """
    sums: list[float] = []
    for row in rows:
        sums.append(1 + memory_rate(row) * sums[-1] if memory_rate(row) else 1.0)
    return sums


def average_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """Return the average velocity of interval i, from its anchor's and what is carried in."""
    row, v = weights[i][:2], velocities[i]
    basis = [v] if len(row) == 1 else [v, memory_of(velocities, weights, i)]
    return weighted_sum(basis, row).to(v.dtype)


def memory_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """Return what is carried into interval i, with two velocities known: v_{i-1} + r_i m_{i-1}."""
    first = i
    while memory_rate(weights[first]):  # the first rows of a part have no rate
        first -= 1
    memory = velocities[first - 1]
    for j in range(first + 1, i + 1):
        memory = carry(velocities[j - 1], memory, rate=memory_rate(weights[j]))
    return memory


def basis_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> list[Tensor]:
    """Return what an interval's average is a sum of: the last two velocities, and the memory."""
    memory = [memory_of(velocities, weights, i - 1)] if i > 1 else []
    return [*velocities[i::-1][:2], *memory]
