"""Plans at free times: what they reach on flows that are known exactly, and what that costs."""

import logging

import pytest
import torch
from tests.flows import GaussianFlow
from tests.support import (
    Counted,
    KilledError,
    euler_steps,
    mean_distance,
    mixture,
    noise_of,
    rotating,
)

from tacache import HostError, Plan, PlanError, fit_plan, instant_plan, sample, time_grid
from tacache.fitting import fit_budget, forget
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.portfolio import best_nodes, candidates, free_problem
from tacache.fitting.reference import record
from tacache.fitting.samples import FunctionSamples
from tacache.grid import divided
from tacache.instant import Spread, flow_nodes
from tacache.moving import with_breaks
from tacache.tasu import relative_distance

TIMES = tuple(time_grid(24, shift=2.0))
FLOW = FitOptions(target="flow")


def gaussian() -> GaussianFlow:
    return GaussianFlow(mean=noise_of(1, seed=9)[0], std=0.4)


def fitted(flow, evaluations, condition={}, **options) -> Plan:  # noqa: B006
    options = {"max_evaluations": 1400, **options}
    return fit_plan(
        flow, noise_of(8), TIMES,
        evaluations=evaluations, target="flow", condition=condition, **options,
    )  # fmt: skip


def to_flow(flow, x, plan) -> float:
    return mean_distance(sample(flow, x, plan), flow.solution(x, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [4, 7])
def test_unseen_samples_end_nearer_to_the_exact_flow_than_by_more_euler_steps(evaluations):
    flow, unseen = gaussian(), noise_of(16, seed=5)
    plan = fitted(flow, evaluations)
    steps = euler_steps(flow, unseen, time_grid(4 * evaluations, shift=2.0))[0][-1]
    instant = instant_plan(TIMES, evaluations, target="flow")
    found = to_flow(flow, unseen, plan)
    assert found < mean_distance(steps, flow.solution(unseen, 0.0))
    assert found < to_flow(flow, unseen, instant) / 2
    assert plan.certificate.equivalent_steps > 4 * evaluations


@pytest.mark.slow
def test_where_velocities_span_a_plane_the_last_interval_meets_the_flow_exactly():
    """All samples move alike there, so that two velocities make up for every error before."""
    flow, unseen = rotating(), noise_of(5, seed=3)
    plan = fitted(flow, 4)
    end = sample(flow, unseen, plan)
    truth = euler_steps(flow, unseen, divided(TIMES, 200))[0][-1]
    assert mean_distance(end, truth) < 5e-4 < mean_distance(unseen, truth) / 100
    assert plan.certificate.flow_drift < 1e-3


@pytest.mark.slow
def test_a_plan_has_times_of_its_own_between_those_of_the_run(tmp_path):
    plan = fitted(mixture(), 6)
    assert (plan.grid, plan.evaluations, plan.steps) == (TIMES, 6, 6)
    assert (plan.times[0], plan.times[-1]) == (TIMES[0], TIMES[-1])
    assert plan.has_own_times
    assert not plan.is_full
    assert plan.speedup == 4
    assert not set(plan.times[1:-1]) <= set(TIMES)
    plan.save(tmp_path / "flow.plan.json")
    assert Plan.load(tmp_path / "flow.plan.json") == plan


def problem_of(noise=None, condition=None):
    runs = FunctionSamples(mixture(), noise_of(8) if noise is None else noise, TIMES, condition)
    return runs, record(runs, FLOW)


def test_candidates_are_programs_on_the_flows_own_levels_and_families_between():
    runs, reference = problem_of(condition={})
    nodes = candidates(runs, reference, 7)
    assert len(nodes) == len(set(nodes)) > 24
    assert {len(one) for one in nodes} == {8}
    dense = [round(t, 6) for t in divided(TIMES, 2)]
    assert all(min(abs(t - level) for level in dense) < 2e-6 for t in nodes[0])
    family = flow_nodes(TIMES, 7, (), Spread(0.7, 0.6))
    assert nodes[1] == pytest.approx(family, abs=1e-6)
    assert all(one[0] == TIMES[0] and one[-1] == TIMES[-1] for one in nodes)


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [1, 2, 24])
def test_every_budget_of_a_run_has_a_plan(evaluations):
    plan = fitted(gaussian(), evaluations)
    assert plan.evaluations == evaluations
    assert plan.certificate.held_out == 2


@pytest.mark.slow
def test_the_winner_is_nearest_on_the_samples_it_was_fitted_to():
    runs, reference = problem_of(condition={})
    nodes = candidates(runs, reference, 5)[:8]
    with free_problem(runs, reference, nodes, 3) as problem:
        best, spent = best_nodes(problem, nodes, 10_000)
        each = [best_nodes(problem, [one], 10_000)[0] for one in nodes]
    assert spent == 8 * 6 * 5
    assert set(best.drift) == set(range(2, 8))  # not on those that judge the result
    assert best.drift == min(each, key=lambda fit: _mean_log(fit.drift)).drift


def _mean_log(drift) -> float:
    return float(torch.tensor([*drift.values()]).log().mean())


@pytest.mark.slow
@pytest.mark.parametrize("condition", [None, {}])
@pytest.mark.parametrize("most", [768, 1050, 1500, 3000])  # the first has room for one fit
def test_no_more_is_spent_than_allowed_and_all_of_it_is_counted(condition, most):
    flow = Counted(mixture())
    plan = fitted(flow, 9, condition, max_evaluations=most)
    assert flow.evaluations == plan.certificate.evaluations_spent <= most


def test_with_nothing_left_to_choose_the_likeliest_nodes_are_fitted():
    runs, reference = problem_of(condition={})
    nodes = candidates(runs, reference, 5)
    with free_problem(runs, reference, nodes, 3) as problem:
        fit, spent = best_nodes(problem, nodes, 0)
        assert tuple(problem.runs.times[n] for n in fit.anchors) == nodes[0][:-1]
    assert spent == 6 * 5


@pytest.mark.slow
def test_a_killed_fit_goes_on_to_the_same_plan(tmp_path):
    path, flow = tmp_path / "runs", Counted(mixture())
    whole = fitted(flow, 9)
    dying = Counted(mixture(), most=flow.evaluations - 100)
    with pytest.raises(KilledError):
        fitted(dying, 9, resume=path)
    again = Counted(mixture())
    assert fitted(again, 9, resume=path) == whole
    assert again.evaluations < 250
    assert len(list(tmp_path.iterdir())) == 4  # full runs, the finer one, and two rounds
    forget(path, [9])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_where_another_expert_takes_over_a_node_lies_and_history_begins_anew():
    class TwoExperts:
        def __call__(self, x, t):
            return torch.ones_like(x) * (1.0 if t > 0.56 else 5 - 2 * t)

    runs = FunctionSamples(TwoExperts(), noise_of(6), TIMES, {})
    runs.breaks = (0.56,)
    plan = fit_budget(runs, record(runs, FLOW), 6, FLOW)
    (part,) = plan.break_steps
    assert plan.times[part - 1] > 0.56 > plan.times[part] > 0.5
    assert len(plan.weights[part]) == 1
    truth = noise_of(6) - 0.44 - (5 * 0.56 - 0.56**2)
    assert mean_distance(sample(TwoExperts(), noise_of(6), plan), truth) < 0.02


def test_what_starts_elsewhere_on_free_levels_is_refused():
    runs, reference = problem_of(condition={})
    other = FunctionSamples(mixture(), noise_of(8, seed=1), TIMES, {})
    with (
        pytest.raises(PlanError, match="starts from other noise"),
        free_problem(_Elsewhere(runs, other), reference, [TIMES], 3),
    ):
        pass


class _Elsewhere:
    """Samples that are others on any levels but the run's own."""

    def __init__(self, runs, other) -> None:
        self.on_levels, self.noise, self.total = other.on_levels, runs.noise, runs.total
        self.times = runs.times


@pytest.mark.parametrize("condition", [None, {}])
def test_the_instant_plan_is_kept_where_held_out_samples_end_nearer_by_it(
    condition, monkeypatch, caplog
):
    flow = Counted(mixture())
    runs = FunctionSamples(flow, noise_of(8), TIMES, condition)
    reference = record(runs, FLOW)
    options = FitOptions(target="flow", keep_better=True, max_evaluations=1100)
    monkeypatch.setattr("tacache.fitting.lockstep.choose_row", lambda products: (1.0,))
    with caplog.at_level(logging.WARNING):
        kept = fit_budget(runs, reference, 7, options)
    assert "an instant plan does better" in caplog.text
    instant = instant_plan(TIMES, 7, target="flow")
    assert kept.times == pytest.approx(instant.times, abs=1e-6)
    assert kept.weights[1] == pytest.approx(instant.weights[1], rel=1e-3)
    assert kept.certificate.evaluations_spent == flow.evaluations <= 1100
    drift = relative_distance(sample(mixture(), noise_of(8), kept), reference.states[-1]).flatten()
    assert kept.certificate.flow_drift == pytest.approx(float(drift[:2].mean()), rel=1e-3)
    assert kept.certificate.fit_drift == pytest.approx(float(drift[2:].mean()), rel=1e-3)


def test_a_plan_without_its_run_is_no_plan_for_another():
    plan = fitted(gaussian(), 4)
    with pytest.raises(HostError, match="fit one for such runs"):
        with_breaks(plan, (0.5,))
