"""Numbers a step in records: drift from the full run, and the indicators of the full run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.tests.bench.test_runner import FLUX, STEPS, by_key, call, job

from tacache import diagnose
from tacache.diffusers import calibrate
from tacache.diffusers.pipeline import PipelineHost
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache_lab.bench import Record, read_records, run_bench
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.tuning_journal import TuningJournal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def traced(pipe, tmp_path_factory) -> tuple[list[Record], Path]:
    out = tmp_path_factory.mktemp("bench") / "r.jsonl"
    names = ["tasu", "fitted", "magcache", "easycache", "fewer", "full"]
    asked = job(methods=names, evaluations=[4], prompts=["a red fox"], trace=True)
    return run_bench(pipe, asked, out), out


def test_drift_is_what_diagnose_finds(pipe, traced):
    records, out = by_key(traced[0]), traced[1]
    caller = Calls(PipelineHost(pipe), call(), Sample("a red fox", 0))
    settings = [
        TuningJournal(path).prepared.settings
        for path in (out.parent / "r.jsonl.work").glob("tuning-*.jsonl")
    ]
    for rule, method in (("tasu", "tasu"), ("fitted", "fitted")):
        (found,) = [one for one in settings if one.get("rule") == rule]
        plan = Plan.model_validate_json(json.dumps(found))
        with caller.open(Sample("a red fox", 0)) as velocity:
            wanted = diagnose(velocity, velocity.run.noise, plan)
        traces = records[method, 4].traces
        assert traces["state_drift"] == pytest.approx(wanted.state_drift, rel=1e-5)
        # a fitted plan steps with averages; where the model is evaluated, its own velocity counts
        kept = range(STEPS) if rule == "tasu" else sorted({*range(STEPS)} - {*plan.anchors})
        for n in kept:
            assert traces["velocity_drift"][n] == pytest.approx(wanted.velocity_drift[n], rel=1e-5)
        assert traces["velocity_drift"][0] == 0
        assert [n for n, one in enumerate(traces["evaluated"]) if one] == list(plan.anchors)
        cosines = {n: c for n, c in enumerate(traces.get("cos_theta", ())) if c is not None}
        assert cosines == pytest.approx({b.step: b.cos_theta for b in wanted.bounds}, rel=1e-5)


def test_rules_that_skip_have_traces_and_those_with_grids_of_their_own_do_not(traced):
    records = by_key(traced[0])
    for method in ("magcache", "easycache"):
        record = records[method, 4]
        assert record.traces.keys() == {"state_drift", "velocity_drift", "evaluated"}
        assert record.traces["state_drift"][0] == 0
        assert record.traces["state_drift"][-1] == pytest.approx(record.to_full.drift, rel=1e-3)
        assert sum(record.traces["evaluated"]) == record.spent
    assert records["fewer", 4].traces is None


def test_indicators_are_those_of_a_calibration(pipe, traced):
    traces = by_key(traced[0])["full", STEPS].traces
    profile = calibrate(pipe, ["a red fox"], seeds=[0], **call())
    assert traces["times"] == pytest.approx(profile.times, rel=1e-5)
    for name in ("magnitude", "direction"):
        assert traces[name][:-1] == pytest.approx(getattr(profile, name)[:-1], rel=1e-4)
        assert traces[name][-1] is None


def test_traces_can_be_added_to_records_that_have_none(pipe, tmp_path):
    out, asked = tmp_path / "r.jsonl", job(methods=["tasu", "fewer"], evaluations=[4])
    plain = run_bench(pipe, asked, out)
    records = run_bench(pipe, replace(asked, trace=True), out)
    assert len(read_records(out)) == len(records) == len(plain)
    assert {r.method for r in records if r.traces} == {"full", "tasu"}
    before = out.read_bytes()
    run_bench(pipe, replace(asked, trace=True), out)
    assert out.read_bytes() == before
