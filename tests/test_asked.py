"""benchmarks/asked.py: what a quality that is asked for becomes on prompts no fit has seen."""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from benchmarks import asked as command
from tests.tiny import PIPELINES

from tacache import models
from tacache.diffusers.pipeline import PipelineHost
from tacache.fidelity import CAP, psnr
from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import LIKE_STEPS
from tacache.prompts import Sample

CALL = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": 10}
STEPS = CALL["num_inference_steps"]
PROMPTS = {"calibration": ["a fox", "two birds", "a bridge"], "test": ["a bowl", "a kite"]}


def test_a_summary_has_the_mean_the_5th_percentile_and_the_worst():
    reference = torch.zeros(3, 1, 2, 2)
    drawn = torch.stack([torch.full((1, 2, 2), e) for e in (0.1, 0.01, 0.0)])
    found = command.summary(reference, drawn)
    assert found["each"] == pytest.approx([20.0, 40.0, CAP])
    assert (found["mean"], found["worst"]) == (pytest.approx((60 + CAP) / 3), 20.0)
    assert found["p5"] == pytest.approx(22.0)


def test_only_nearness_to_the_flow_is_asked_of_the_table():
    found = {(one.question, one.way) for one in command.questions("tiny-flux", 50)}
    near = {("like_steps=50", way) for way in ("fitted", "instant", "certificates")}
    assert found == near | {("min_psnr=35", "fitted"), ("min_psnr=35", "certificates")}


@pytest.mark.parametrize("goal", [QualityGoal(like_steps=50), QualityGoal(min_psnr=35.0)])
def test_certificates_answer_with_the_fewest_evaluations_that_promise_it(goal):
    question = command.Asked("tiny-flux", 50, goal, "certificates")
    chosen = command.Study.certified(SimpleNamespace(name="tiny-flux"), question).plan
    assert chosen.full_steps == 50
    assert goal.promised_by(chosen.certificate)
    fewer = [
        plan
        for plan in command.shipped_plans("tiny-flux").values()
        if plan.full_steps == 50 and plan.evaluations < chosen.evaluations
    ]
    assert fewer
    assert not any(goal.promised_by(plan.certificate) for plan in fewer)


def test_passes_are_counted_within_the_block_alone():
    class Network:
        def forward(self, x):
            return x + 1

    network = Network()
    plain = Network.forward
    with command.counted_passes(SimpleNamespace(transformer=network)) as passes:
        assert [network.forward(x) for x in (1, 2)] == [2, 3]
    assert passes() == 2
    assert Network.forward is plain


@pytest.mark.slow
def test_each_answer_is_judged_as_the_pipeline_draws_and_recorded_once(
    tmp_path, monkeypatch, capsys
):
    for name, prompts in PROMPTS.items():
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    shipped = replace(models.shipped()["tiny-flux"], folder=tmp_path, call=CALL)
    pipe = PIPELINES["flux"].build()
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    monkeypatch.setattr(models, "load", lambda name: pipe)
    monkeypatch.setattr(command, "MIN_PSNR", 1.0)  # which any plan has
    records = tmp_path / "asked.jsonl"
    options = ["--count", "2", "--samples", "3", "--flow-steps", "40", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["asked", "tiny-flux", "-o", str(records), *options])
    command.main()
    before = records.read_text()
    rows = {(one["question"], one["way"]): one for one in map(json.loads, before.splitlines())}
    near, alike = f"like_steps={STEPS}", "min_psnr=1"
    assert len(rows) == len(command.questions("tiny-flux", STEPS))

    instant = rows[near, "instant"]
    assert instant["evaluations"] == LIKE_STEPS[STEPS]
    assert (instant["spent"], instant["samples"], instant["reason"]) == (0, 0, None)
    fitted = rows[alike, "fitted"]
    assert fitted["evaluations"] == min(map(int, fitted["tried"])) == 1
    assert fitted["promised"] == fitted["tried"]["1"] >= 1
    full_runs = 3 * STEPS
    assert fitted["spent"] > full_runs
    assert math.isfinite(fitted["to_run"]["mean"])
    assert rows[near, "fitted"]["to_flow"]["mean"] > 0
    without = rows[alike, "certificates"]  # no plan ships in this folder
    assert (without["evaluations"], without["plan"]) == (STEPS, None)
    assert without["reason"]
    assert without["to_run"]["each"] == [CAP, CAP]
    assert without["to_flow"] == without["euler_to_flow"]
    assert {one["noise_sha256"][0] for one in rows.values()} == set(fitted["noise_sha256"])

    monkeypatch.setattr(models, "load", lambda name: pytest.fail("everything is there"))
    command.main()
    assert records.read_text() == before
    monkeypatch.setattr(sys, "argv", ["asked", "--table", "-o", str(records)])
    capsys.readouterr()
    command.main()
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)

    host, sample = PipelineHost(pipe), Sample(PROMPTS["test"][0], 0)
    finer = host.draw(sample, {**CALL, "num_inference_steps": 400})  # nearly the flow, by Euler
    pair = (torch.from_numpy(pixels)[None] for pixels in (finer, host.draw(sample, CALL)))
    assert without["euler_to_flow"]["each"][0] == pytest.approx(float(psnr(*pair)), abs=0.5)
