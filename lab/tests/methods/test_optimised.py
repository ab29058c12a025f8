"""Weights optimised through the model, on a flow that can be differentiated."""

import pytest
import torch
from benchmarks import optimised
from benchmarks.instant import Model
from tests.support import mixture, noise_of

from tacache import fit_plan, sample, time_grid
from tacache.plan import Plan

SHAPE = (6,)
TIMES = tuple(time_grid(optimised.STEPS, 3.0))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return fit_plan(mixture(SHAPE), noise_of(8, SHAPE, seed=3), TIMES, evaluations=7, search=False)


def test_the_walk_is_that_of_the_plan(plan):
    flow, noise = mixture(SHAPE), noise_of(4, SHAPE)
    walked = optimised.walked(flow, noise, plan, optimised.start_of(plan, "fitted"))
    torch.testing.assert_close(walked, sample(flow, noise, plan), rtol=1e-4, atol=1e-5)


def test_straight_lines_have_a_weight_for_each_of_the_plans(plan):
    rows = optimised.start_of(plan, "lines")
    assert [len(row) for row in rows] == [len(row) for row in plan.weights]
    assert rows[0].tolist()[:1] == [1.0]
    assert all(float(row[:2].sum()) == pytest.approx(1) for row in rows[1:])


@pytest.mark.parametrize("start", optimised.STARTS)
def test_adam_comes_nearer_to_the_full_run(plan, start):
    flow, noise = mixture(SHAPE), noise_of(20, SHAPE)
    wanted = sample(flow, noise, Plan.full(TIMES))
    first = optimised.start_of(plan, start)
    best = optimised.optimise(lambda rows: flow, noise, wanted, plan, first, rounds=40)
    assert len(best.losses) == 40
    assert best.losses[-1] < best.losses[0] - (0.2 if start == "lines" else 0.02)
    end = optimised.walked(flow, noise, plan, best.weights)
    assert float(optimised.log_drift(end, wanted).mean()) < best.losses[0]


@pytest.mark.slow
def test_a_record_compares_the_test_pictures_and_is_not_made_twice(plan, monkeypatch):
    flow = mixture(SHAPE)
    monkeypatch.setattr(optimised, "ROUNDS", 3)
    monkeypatch.setattr(optimised, "SAMPLES", 10)
    facts = type("Facts", (), {"plan": staticmethod(lambda evaluations: plan)})
    monkeypatch.setattr(optimised.models, "embedded", lambda name: facts)
    model = Model(
        "tiny-flux", lambda x, t, rows: flow(x, t), lambda x: x, noise_of(14, SHAPE), {50: TIMES}
    )
    records = list(optimised.measured(model, (7,), set()))
    assert [record["start"] for record in records] == list(optimised.STARTS)
    assert records[0]["before"]["psnr"]["mean"] > records[1]["before"]["psnr"]["mean"]
    assert [len(row) for row in records[0]["weights"]] == [len(row) for row in plan.weights]
    left = optimised.measured(model, (7,), {("tiny-flux", 7, "fitted")})
    assert [record["start"] for record in left] == ["lines"]
    assert optimised.table(records).count("\n") == 3
