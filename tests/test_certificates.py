"""benchmarks/certificates.py: what plans promise, measured on prompts that no fit has seen."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from benchmarks import certificates as command
from benchmarks import plans
from tests.tiny import PIPELINES

from tacache import models
from tacache.fidelity import psnr
from tacache.plan import Certificate, Plan
from tacache.prompts import Sample

CALL = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": 8}
PROMPTS = ["a fox", "two birds", "a bridge", "a bowl"]
TIMES = (1.0, 0.8, 0.6, 0.3, 0.0)
OLD = {"held_out": 1, "drift": 0.5, "fit_drift": 0.1, "evaluations_spent": 9, "date": "2026-11-19"}


def plan_of(**certificate: object) -> Plan:
    return Plan(
        rule="fitted",
        times=TIMES,
        anchors=(0, 2),
        weights=((1.0,), (1.5, -0.5)),
        certificate={**OLD, **certificate},
    )


def row(psnr_: float, drift: float, **more: object) -> dict[str, object]:
    return {"psnr": psnr_, "drift": drift, **more}


def test_a_certificate_has_the_means_of_its_records_and_what_the_fit_spent():
    rows = [row(30.0, 0.3), row(40.0, 0.1), row(50.0, 0.2)]
    found = command.certified(plan_of(), rows, [])
    assert (found.held_out, found.psnr, found.worst_psnr) == (3, 40.0, 30.0)
    assert found.p5_psnr == pytest.approx(31.0)
    assert (found.drift, found.worst_drift) == (pytest.approx(0.2), 0.3)
    assert (found.fit_drift, found.evaluations_spent) == (0.1, 9)
    assert found.equivalent_steps is None


def test_nearness_to_the_flow_is_that_of_euler_runs_of_the_same_prompts():
    rows = [row(30.0, 0.3, flow_drift=0.1), row(40.0, 0.1, flow_drift=0.3)]
    references = [
        {"euler": {"4": 0.3, "8": 0.15}, "flow_floor": 0.01},
        {"euler": {"4": 0.4, "8": 0.2}, "flow_floor": 0.03},
    ]
    found = command.certified(plan_of(flow_drift=0.5), rows, references)
    assert found.flow_drift == pytest.approx(0.2)
    assert found.equivalent_steps == pytest.approx(8)  # by the means of logarithms
    rough = [{**one, "flow_floor": 0.3} for one in references]
    found = command.certified(plan_of(flow_drift=0.5), rows, rough)
    assert found.flow_drift == pytest.approx(0.3)  # no less is claimed than is known of the flow
    assert 4 < found.equivalent_steps < 5


def test_plans_that_do_the_same_on_another_grid_share_their_weights():
    plan = plan_of(flow_drift=0.5)
    moved = plans.on_grid(plan, (1.0, 0.5, 0.25, 0.0), {})
    assert command.weights_of(moved) == command.weights_of(plan)
    other = plan.model_copy(update={"weights": ((1.0,), (1.4, -0.4))})
    assert command.weights_of(other) != command.weights_of(plan)


@pytest.mark.parametrize("name", models.shipped())
def test_shipped_certificates_follow_from_the_committed_records(name):
    rows = [one for one in command.read(command.RECORDS) if one["model"] == name]
    for file, plan in command.shipped_plans(name).items():
        assert command.certified(plan, *command.records_of(plan, rows)) == plan.certificate, file


@pytest.mark.slow
def test_further_prompts_are_measured_once_and_as_the_pipeline_draws_them(tmp_path, monkeypatch):
    lines = [json.dumps({"prompt": prompt}) for prompt in PROMPTS]
    (tmp_path / "calibration.jsonl").write_text("\n".join(lines))
    shipped = replace(models.shipped()["tiny-flux"], folder=tmp_path, call=CALL, budgets=(4,))
    pipe = PIPELINES["flux"].build()
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    monkeypatch.setattr(models, "load", lambda name: pipe)
    monkeypatch.setattr(command, "COUNT", 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plans", "tiny-flux", "--fast", "--device", "cpu"])
    plans.main()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--target", "flow", "--steps", "6"])
    plans.main()
    records = tmp_path / "certificates.jsonl"
    command.measure("tiny-flux", 2, records, "cpu")
    before = records.read_text()
    rows = [json.loads(line) for line in before.splitlines()]
    assert [one["prompt"] for one in rows if "euler" in one] == PROMPTS[2:]
    assert sorted(rows[0]["euler"], key=int) == ["4", "6", "8", "16"]
    measured = {(one["steps"], one["target"]) for one in rows if "psnr" in one}
    assert measured == {(8, "run"), (8, "flow"), (6, "flow")}
    assert len(rows) == 2 * (1 + len(measured))
    monkeypatch.setattr(models, "load", lambda name: pytest.fail("everything is there"))
    command.measure("tiny-flux", 2, records, "cpu")
    assert records.read_text() == before
    command.write("tiny-flux", records)
    own = [one for one in rows if (one.get("steps"), one.get("target")) == (8, "run")]
    certificate = shipped.plan(4).certificate
    assert isinstance(certificate, Certificate)
    assert certificate.held_out == 2
    assert certificate.psnr == pytest.approx((own[0]["psnr"] + own[1]["psnr"]) / 2)
    host = plans.OwnSeeds(pipe, PROMPTS)
    full = host.draw(Sample(PROMPTS[2], 0), CALL)
    with host.follow(shipped.plan(4), CALL) as call:
        drawn = host.draw(Sample(PROMPTS[2], 0), call)
    pair = (torch.from_numpy(pixels)[None] for pixels in (full, drawn))
    assert own[0]["psnr"] == pytest.approx(float(psnr(*pair)), abs=0.01)
    moved = Plan.load(shipped.plan_file(4, "flow", 6))
    assert moved.certificate.psnr is not None
    assert (
        moved.certificate.equivalent_steps == shipped.plan(4, "flow").certificate.equivalent_steps
    )
