"""benchmarks/plans.py: the fitted plans of an embedded model, each made once."""

import logging
import sys
from dataclasses import replace

import pytest
import torch
from benchmarks import plans as command
from tests.support import mixture, noise_of
from tests.tiny import PIPELINES

from tacache import fit_plan, models, sample, time_grid
from tacache.diffusers import applied
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.storage.signature import target_of

CALL = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": 8}
PROMPTS = ["a fox", "two birds", "a bridge", "a bowl"]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A tiny random pipeline in the place of tiny-flux, with prompts of its own."""
    (tmp_path / "calibration.jsonl").write_text(
        "".join(f'{{"prompt": "{prompt}"}}\n' for prompt in PROMPTS)
    )
    made = replace(models.shipped()["tiny-flux"], folder=tmp_path, call=CALL, budgets=(4, 5))
    monkeypatch.setitem(models.shipped(), "tiny-flux", made)
    monkeypatch.setattr(models, "load", lambda name: PIPELINES["flux"].build())
    monkeypatch.chdir(tmp_path)
    return made


def run(monkeypatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["plans", "tiny-flux", "--device", "cpu", *options])
    command.main()


@pytest.mark.slow
def test_every_plan_is_made_once_and_followed_without_a_word(shipped, monkeypatch, capsys, caplog):
    run(monkeypatch, "--evaluations", "4,5", "--fast")
    out = capsys.readouterr().out
    assert sorted(path.name for path in (shipped.folder / "plans").iterdir()) == [
        "4-flow.plan.json",
        "4.plan.json",
        "5-flow.plan.json",
        "5.plan.json",
    ]
    assert "tiny-flux, to the flow, 5 evaluations of 8 steps: " in out
    assert "Euler steps" in out
    assert not list((shipped.folder / "build" / "plans").iterdir())  # nothing to go on from
    assert shipped.plan(4, "flow").certificate.equivalent_steps is not None
    pipe, plan = models.load("tiny-flux"), shipped.plan(5)
    with caplog.at_level(logging.WARNING), applied(pipe, plan):
        pipe("a cat", **CALL, output_type="latent")
        assert pipe.scheduler.run_plan.evaluations == 5
    assert not [one for one in caplog.records if one.name == "tacache.diffusers"]
    before = shipped.plan_file(4).read_bytes()
    monkeypatch.setattr(models, "load", None)
    run(monkeypatch, "--evaluations", "4,5")
    assert "tiny-flux has its plans of 8 steps for the run already" in capsys.readouterr().out
    assert shipped.plan_file(4).read_bytes() == before


def test_a_plan_for_the_flow_leads_to_the_same_end_on_another_grid():
    flow, noise = mixture(), noise_of(3)
    fitted = fit_plan(
        flow, noise_of(4, seed=1), time_grid(8, shift=2.0), evaluations=4, target="flow",
        condition={},
    )  # fmt: skip
    times = tuple(time_grid(6, shift=2.0))
    moved = command.on_grid(fitted, times, {"num_inference_steps": 6})
    assert (moved.full_times, moved.evaluations, moved.rule) == (times, 4, "fitted")
    assert moved.origin.call == {"num_inference_steps": 6}
    assert target_of(moved) == "flow"
    assert moved.certificate.psnr is None  # that was to a run of eight steps
    assert sample(flow, noise, moved).equal(sample(flow, noise, fitted))


def test_anchors_on_the_steps_of_a_run_become_nodes_of_their_own(shipped):
    times = (1.0, 0.8, 0.6, 0.3, 0.0)
    known = {
        "held_out": 1, "drift": 0.1, "fit_drift": 0.1, "flow_drift": 0.2,
        "evaluations_spent": 9, "date": "2026-11-19",
    }  # fmt: skip
    plan = Plan(
        rule="fitted", times=times, anchors=(0, 2), weights=((1.0,), (1.5, -0.5)), certificate=known
    )
    moved = command.on_grid(plan, (1.0, 0.5, 0.25, 0.0), {})
    assert (moved.times, moved.anchors) == ((1.0, 0.6, 0.0), (0, 1))
    flow, noise = mixture(), noise_of(3)
    torch.testing.assert_close(sample(flow, noise, moved), sample(flow, noise, plan))


def test_only_missing_budgets_are_fitted(shipped):
    full = Plan.full([1.0, 0.5, 0.0])
    full.save(shipped.plan_file(5, "flow"))
    assert command.missing(shipped, [4, 5], "flow") == [4]
    assert command.missing(shipped, [4, 5], "run") == [4, 5]
    full.save(shipped.plan_file(4, "run", 6))
    assert command.missing(shipped, [4, 5, 6], "run", 6) == [5]
    assert command.missing(shipped, [4, 5], "run", 8) == [4, 5]
    assert shipped.plan_file(4, "run", 6).name == "4of6.plan.json"


def test_every_prompt_has_noise_of_its_own():
    host = command.OwnSeeds(PIPELINES["flux"].build(), PROMPTS)
    with host.open(Sample("a fox", 0), CALL) as one, host.open(Sample("a bowl", 0), CALL) as two:
        assert not one.noise.equal(two.noise)
    assert host.seeded(Sample("a bridge", 0)) == Sample("a bridge", command.FIRST_SEED + 2)
