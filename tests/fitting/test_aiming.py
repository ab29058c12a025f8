"""What stands for the flow, what it costs, and how it goes on where it was stopped."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from support import Counted, euler_steps, mean_distance, mixture, noise_of

from tacache import time_grid
from tacache.fitting.aiming import flow_cost
from tacache.fitting.reference import probe_cost, record
from tacache.fitting.samples import FunctionRuns
from tacache.fitting.walking import AdamsBashforthWalk
from tacache.grid import divided


class StiffEnd:
    """x = a sqrt(t) + b: the velocity grows without bound, and Euler's error falls as N^-1/2."""

    def __call__(self, x, t):
        """The same for all states."""
        return 0.5 * torch.ones_like(x) / math.sqrt(t)


def test_where_errors_fall_slower_the_order_is_measured():
    times, noise = time_grid(40), noise_of(8)
    truth = noise - 1.0  # sqrt(1) - sqrt(0)
    run = euler_steps(StiffEnd(), noise, times)[0][-1]
    runs = FunctionRuns(StiffEnd(), noise, times, {})
    aim = record(runs, target="flow").states[-1]
    by_euler = 2 * euler_steps(StiffEnd(), noise, divided(times, 2))[0][-1] - run
    assert (
        mean_distance(aim, truth)
        < mean_distance(by_euler, truth) / 4
        < mean_distance(run, truth) / 4
    )


def test_killed_fits_to_the_flow_go_on(tmp_path, monkeypatch):
    flow, times, calls = mixture(), time_grid(12, shift=2.0), []

    def dying(x, t):
        calls.append(t)
        if len(calls) == 12 + 6 + 24 + 20:  # on the way of the finer run
            raise KeyboardInterrupt
        return flow(x, t)

    monkeypatch.setattr("tacache.fitting.full_runs.KEEP_EVERY", 2)
    whole = record(FunctionRuns(flow, noise_of(4), times, {}), target="flow")
    with pytest.raises(KeyboardInterrupt):
        record(FunctionRuns(dying, noise_of(4), times, {}), target="flow", resume=tmp_path / "kept")
    after = len(calls)
    again = record(
        FunctionRuns(dying, noise_of(4), times, {}), target="flow", resume=tmp_path / "kept"
    )
    assert torch.equal(again.states, whole.states)
    assert again.euler == whole.euler
    assert len(calls) - after == 6 + 24 + (24 - 18) + sum(12 - n for n in (1, 4, 7, 10))


class TwoExperts:
    """The velocity is 1 down to a level, and falls from 5 with the level from there on."""

    level = 0.56

    def __call__(self, x, t):
        """The same for all states."""
        return torch.ones_like(x) * (1.0 if t > self.level else 5 - 2 * t)

    def end(self, x):
        """Where the flow leads."""
        return x - (1 - self.level) - (5 * self.level - self.level**2)


def test_nothing_of_one_expert_reaches_into_the_part_of_the_other():
    """Up to one step in which the other takes over, which what may be claimed says."""
    flow, times, noise = TwoExperts(), time_grid(20), noise_of(4)
    runs = FunctionRuns(flow, noise, times, {})
    runs.breaks = (flow.level,)
    found = record(runs, target="flow")
    assert found.spent == 4 * 20 + probe_cost(runs) + flow_cost(runs, "flow", None)
    truth = [
        noise - (1 - t) if t >= flow.level else flow.end(noise) + (5 * t - t**2) for t in times
    ]
    off = [mean_distance(x, y) for x, y in zip(found.states, torch.stack(truth), strict=True)]
    before = sum(t > flow.level for t in times)
    assert max(off[:before]) < 1e-6
    moved = (found.states - torch.stack(truth))[before + 1 :]  # all by the one step alike
    assert float((moved - moved[0]).abs().max()) < 2e-3
    assert off[-1] <= found.flow_floor < 4 * off[-1]


def test_half_precision_rounds_what_the_model_sees_alone():
    flow, times, noise = mixture(), time_grid(50, shift=3.0), noise_of(8).bfloat16()

    def rounded(x, t):
        assert x.dtype == torch.bfloat16
        return flow(x.double(), t).to(x.dtype)

    truth = euler_steps(flow, noise.double(), time_grid(2000, shift=3.0))[0][-1]
    found = record(FunctionRuns(rounded, noise, times, {}), target="flow")
    assert mean_distance(found.states[-1].double(), truth) < 0.004
    assert mean_distance(found.run_ends.double(), truth) > 0.02  # each of its steps is rounded
    assert found.euler[25] > 1.8 * found.euler[50] > 3 * found.euler[100]
    assert found.run_ends.dtype == torch.bfloat16


class Multistep(FunctionRuns):
    """Samples whose own solver is not Euler's."""

    def walk(self, chosen):
        """Steps of second order."""
        return AdamsBashforthWalk(self.times)

    @contextmanager
    def on_steps(self, steps):
        """With the same solver."""
        yield Multistep(self.velocity, self.noise, self.divided_into(steps), self.condition)


@pytest.mark.parametrize(
    ("kind", "condition"), [(FunctionRuns, None), (FunctionRuns, {}), (Multistep, {})]
)
@pytest.mark.parametrize("flow", [mixture(), StiffEnd()], ids=["smooth", "stiff"])
def test_the_flow_is_the_same_for_every_solver_and_costs_what_is_said(kind, condition, flow):
    times, noise, counted = time_grid(40, shift=2.0), noise_of(8), Counted(flow)
    if isinstance(flow, StiffEnd):
        truth = noise - 1.0
    else:
        truth = euler_steps(flow, noise, divided(times, 40))[0][-1]
    runs = kind(counted, noise, times, condition)
    said = 8 * 40 + probe_cost(runs) + flow_cost(runs, "flow", None)
    found = record(runs, target="flow")
    assert counted.evaluations == found.spent <= said
    assert found.spent == said or kind is Multistep  # which needs Euler runs of all only if slow
    assert (
        mean_distance(found.states[-1], truth)
        < mean_distance(euler_steps(flow, noise, times)[0][-1], truth) / 6
    )


class Shared(FunctionRuns):
    """The part of eight samples that one of four processes has."""

    def __init__(self, rank, exchange):
        noise = noise_of(8)
        super().__init__(mixture(), noise[rank::4], time_grid(12, shift=2.0), {})
        self.numbers, self.total, self._exchange = range(rank, 8, 4), 8, exchange

    def gathered(self, mine):
        """Everyone's values."""
        return self._exchange(mine)

    @contextmanager
    def on_steps(self, steps):
        """With the same part."""
        with super().on_steps(steps) as runs:
            runs.numbers, runs.total, runs.gathered = self.numbers, self.total, self.gathered
            yield runs


def test_processes_without_a_held_out_sample_aim_at_the_same_flow():
    barrier, given = threading.Barrier(4, timeout=60), {}

    def exchange(mine):
        given[threading.get_ident()] = mine
        barrier.wait()
        everyone = {i: value for part in given.values() for i, value in part.items()}
        barrier.wait()
        return dict(sorted(everyone.items()))

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda rank: record(Shared(rank, exchange), target="flow"), range(4)))
    whole = record(
        FunctionRuns(mixture(), noise_of(8), time_grid(12, shift=2.0), {}), target="flow"
    )
    for rank, part in enumerate(parts):
        torch.testing.assert_close(part.states, whole.states[:, rank::4])
        assert part.euler == pytest.approx(whole.euler)
        assert part.spent == whole.spent
