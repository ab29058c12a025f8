"""What stands for the flow, what it costs, and how it goes on where it was stopped."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from tests.support import Counted, euler_steps, mean_distance, mixture, noise_of

from tacache import time_grid
from tacache.fitting import fit_budget
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import AdamsBashforthIntegrator
from tacache.fitting.reference import record, reference_cost
from tacache.fitting.samples import FunctionSamples
from tacache.grid import divided


class StiffEnd:
    """x = a sqrt(t) + b: the velocity grows without bound, and Euler's error falls as N^-1/2."""

    def __call__(self, x, t):
        """The same for all states."""
        return 0.5 * torch.ones_like(x) / math.sqrt(t)


def to_flow(resume=None):
    return FitOptions(target="flow", resume=resume)


def test_where_errors_fall_slower_the_order_is_measured():
    times, noise = time_grid(40), noise_of(8)
    truth = noise - 1.0  # sqrt(1) - sqrt(0)
    run = euler_steps(StiffEnd(), noise, times)[0][-1]
    runs = FunctionSamples(StiffEnd(), noise, times, {})
    aim = record(runs, FitOptions(target="flow")).states[-1]
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
    whole = record(FunctionSamples(flow, noise_of(4), times, {}), FitOptions(target="flow"))
    with pytest.raises(KeyboardInterrupt):
        record(
            FunctionSamples(dying, noise_of(4), times, {}),
            to_flow(tmp_path / "kept"),
        )
    after = len(calls)
    again = record(
        FunctionSamples(dying, noise_of(4), times, {}),
        to_flow(tmp_path / "kept"),
    )
    assert torch.equal(again.states, whole.states)
    assert again.aim.euler == whole.aim.euler
    assert len(calls) - after == 6 + 24 + (24 - 18)


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
    runs = FunctionSamples(flow, noise, times, {})
    runs.breaks = (flow.level,)
    found = record(runs, FitOptions(target="flow"))
    assert found.spent == reference_cost(runs, to_flow())
    truth = [
        noise - (1 - t) if t >= flow.level else flow.end(noise) + (5 * t - t**2) for t in times
    ]
    off = [mean_distance(x, y) for x, y in zip(found.states, torch.stack(truth), strict=True)]
    before = sum(t > flow.level for t in times)
    assert max(off[:before]) < 1e-6
    moved = (found.states - torch.stack(truth))[before + 1 :]  # all by the one step alike
    assert float((moved - moved[0]).abs().max()) < 2e-3
    assert off[-1] <= found.aim.floor < 4 * off[-1]


def test_half_precision_rounds_what_the_model_sees_alone():
    flow, times, noise = mixture(), time_grid(50, shift=3.0), noise_of(8).bfloat16()

    def rounded(x, t):
        assert x.dtype == torch.bfloat16
        return flow(x.double(), t).to(x.dtype)

    truth = euler_steps(flow, noise.double(), time_grid(2000, shift=3.0))[0][-1]
    found = record(FunctionSamples(rounded, noise, times, {}), FitOptions(target="flow"))
    assert mean_distance(found.states[-1].double(), truth) < 0.004
    assert mean_distance(found.run_ends.double(), truth) > 0.02  # each of its steps is rounded
    assert found.aim.euler[25] > 1.8 * found.aim.euler[50] > 3 * found.aim.euler[100]
    assert found.run_ends.dtype == torch.bfloat16


class Multistep(FunctionSamples):
    """Samples whose own solver is not Euler's."""

    def integrator(self, chosen):
        """Steps of second order."""
        return AdamsBashforthIntegrator(self.times)

    @contextmanager
    def on_steps(self, steps):
        """With the same solver."""
        yield Multistep(self.velocity, self.noise, self.divided_into(steps), self.condition)


@pytest.mark.parametrize(
    ("kind", "condition"), [(FunctionSamples, None), (FunctionSamples, {}), (Multistep, {})]
)
@pytest.mark.parametrize("flow", [mixture(), StiffEnd()], ids=["smooth", "stiff"])
def test_the_flow_is_the_same_for_every_solver_and_costs_what_is_said(kind, condition, flow):
    times, noise, counted = time_grid(40, shift=2.0), noise_of(8), Counted(flow)
    if isinstance(flow, StiffEnd):
        truth = noise - 1.0
    else:
        truth = euler_steps(flow, noise, divided(times, 40))[0][-1]
    runs = kind(counted, noise, times, condition)
    said = reference_cost(runs, to_flow())
    found = record(runs, FitOptions(target="flow"))
    assert counted.evaluations == found.spent <= said
    assert found.spent == said or kind is Multistep  # which needs Euler runs of all only if slow
    assert (
        mean_distance(found.states[-1], truth)
        < mean_distance(euler_steps(flow, noise, times)[0][-1], truth) / 6
    )


class Shared(FunctionSamples):
    """The part of eight samples that one of four processes has."""

    def __init__(self, rank, exchange):
        noise = noise_of(8)
        super().__init__(mixture(), noise[rank::4], time_grid(12, shift=2.0), {})
        self.numbers, self.total, self._exchange = range(rank, 8, 4), 8, exchange

    def gathered(self, mine):
        """Everyone's values."""
        return self._exchange(mine)

    @contextmanager
    def on_levels(self, times):
        """With the same part."""
        with super().on_levels(times) as runs:
            runs.numbers, runs.total, runs.gathered = self.numbers, self.total, self.gathered
            yield runs


def in_four_processes(work):
    """What four processes make of their parts of the samples, and one process of all of them."""
    barrier, sent = threading.Barrier(4, timeout=60), {}

    def exchange(mine):
        sent[threading.get_ident()] = mine
        barrier.wait()
        everyone = {i: value for part in sent.values() for i, value in part.items()}
        barrier.wait()
        return dict(sorted(everyone.items()))

    def shared(rank):
        try:
            return work(Shared(rank, exchange))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(shared, range(4)))
    return parts, work(FunctionSamples(mixture(), noise_of(8), time_grid(12, shift=2.0), {}))


def test_processes_without_a_held_out_sample_aim_at_the_same_flow():
    parts, whole = in_four_processes(lambda runs: record(runs, to_flow()))
    for rank, part in enumerate(parts):
        torch.testing.assert_close(part.states, whole.states[:, rank::4])
        assert part.aim.euler == pytest.approx(whole.aim.euler)
        assert part.spent == whole.spent


@pytest.mark.slow
@pytest.mark.parametrize("target", ["run", "flow"])
@pytest.mark.parametrize("most", [450, 3000])  # the first has too few for all candidates
def test_processes_without_a_held_out_sample_fit_the_same_plan(target, most):
    options = FitOptions(target=target, keep_better=True, max_evaluations=most)
    parts, whole = in_four_processes(
        lambda runs: fit_budget(runs, record(runs, options), 5, options)
    )
    figures = [
        plan.certificate.model_dump(exclude={"date"}, exclude_none=True) for plan in (*parts, whole)
    ]
    for plan, known in zip(parts, figures[:-1], strict=True):
        assert (plan.times, plan.anchors) == (whole.times, whole.anchors)
        assert known == pytest.approx(figures[-1], rel=1e-3)
