"""Settings of methods: kept by the code they come from, found without evaluating twice."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from lab.tests.bench.test_runner import FLUX, STEPS, job
from tests.diffusers_support import counted
from tests.report_support import record as described

from tacache import time_grid
from tacache.prompts import Sample
from tacache_lab.bench import RecordError, host_calls, read_records, run_bench, runner
from tacache_lab.bench.calibration_sets import CalibrationSet, CalibrationVelocity
from tacache_lab.bench.runner import held
from tacache_lab.bench.tuning_journal import Prepared, TuningJournal
from tacache_lab.methods import BASELINES, RecordedProblem, record
from tacache_lab.report.studies import read_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


def test_a_method_that_has_changed_is_made_ready_again(pipe, tmp_path, monkeypatch):
    out, prepared = tmp_path / "r.jsonl", []
    fit = type(BASELINES["vde"]).fit

    def noted(self: Any, *given: Any) -> Any:
        prepared.append(self.name)
        return fit(self, *given)

    monkeypatch.setattr(type(BASELINES["vde"]), "fit", noted)
    asked = job(methods=["vde"], evaluations=[4], prompts=["a red fox"])
    run_bench(pipe, asked, out)
    out.unlink()
    run_bench(pipe, asked, out)
    assert prepared == ["vde"]  # as long as the code is the same
    out.unlink()
    code = runner.code_sha256
    monkeypatch.setattr(runner, "code_sha256", lambda method: code(method) + "changed")
    run_bench(pipe, asked, out)
    assert prepared == ["vde", "vde"]


def test_tuning_evaluates_no_state_twice():
    asked: list[tuple[float, int]] = []

    class OpenCalls:
        any_time, times = True, (1.0, 0.0)

        def open(self, subject: Sample, times: Any) -> Any:
            return nullcontext(lambda x, t: asked.append((t, subject.seed)) or x * t)

    caller, subjects = OpenCalls(), [Sample("a fox", 0), Sample("a boat", 1)]
    remembered = CalibrationVelocity(caller, subjects, ExitStack(), limit=3 * 16)
    x = torch.arange(8.0).reshape(2, 4)
    for _ in range(2):
        assert remembered(x, 0.5, [0, 1]).equal(x * 0.5)
    assert asked == [(0.5, 0), (0.5, 1)]
    remembered(x[:1], 0.5, [1])  # the same state of another sample
    assert len(asked) == 3
    remembered(x, 0.25, [0, 1])  # the oldest two are forgotten
    remembered(x[:1], 0.5, [1])
    assert len(asked) == 5
    remembered(x[:1], 0.5, [0])
    assert len(asked) == 6


UNTAUGHT = ["fewer", "dpm++2m", "unipc", "heun", "ab2", "magcache:flux", "dicache:flux"]


def test_methods_that_need_no_calibration_run_none(pipe, tmp_path, monkeypatch):
    walked: list[str] = []
    recorded = CalibrationSet.record

    def noted(self: CalibrationSet, subject: Any) -> None:
        walked.append(subject.text)
        recorded(self, subject)

    monkeypatch.setattr(CalibrationSet, "record", noted)
    out, few = tmp_path / "r.jsonl", {"evaluations": [4], "prompts": ["a red fox"]}
    with counted(pipe, FLUX.denoisers) as calls:
        records = run_bench(pipe, job(methods=UNTAUGHT, **few), out)
    assert walked == []
    assert {record.status for record in records} <= {"done", "failed"}
    done = {record.method: record for record in records if record.status == "done"}
    assert done.keys() >= {"full", *UNTAUGHT[:-1]}
    assert {record.tuned_on for record in records} == {None}
    judged = sum(record.spent for record in done.values() if record.equivalent_evaluations is None)
    # set-up, grids, the warm-up and FLOPs take a few more; calibration would take 3 times STEPS
    assert len(calls) < judged + 3 * STEPS
    run_bench(pipe, job(methods=["fewer", "vde"], **few), out)
    assert sorted(walked) == sorted(job().calibration)


@pytest.mark.parametrize("name", [name for name, one in BASELINES.items() if not one.tuned])
def test_what_is_not_tuned_follows_from_the_grid_alone(name):
    baseline, times = BASELINES[name], tuple(time_grid(8, shift=3.0))
    bare = RecordedProblem(_refused, torch.zeros(1, 1), times)
    whole = record(lambda x, t: x * t, torch.ones(2, 3), times)
    for evaluations in (8, 5, 1):
        found = baseline.candidates(bare, evaluations)
        assert len(found) <= 1
        assert found == baseline.candidates(whole, evaluations)


def test_only_solvers_and_full_steps_are_not_tuned():
    untuned = {name for name, one in BASELINES.items() if not one.tuned}
    assert untuned == {"full", "fewer", "dpm++2m", "unipc", "heun", "ab2"}


def _refused(x: Any, t: float) -> Any:
    raise AssertionError("there is nothing to evaluate")


# --- one at a time ------------------------------------------------------------------------------


def test_two_benchmarks_do_not_append_to_one_file(pipe, tmp_path):
    out, asked = tmp_path / "r.jsonl", job(methods=["fewer"], evaluations=[4])
    with (
        held(runner.lock_file(out), out),
        pytest.raises(RecordError, match=r"another benchmark is appending to .*r\.jsonl"),
    ):
        run_bench(pipe, asked, out)
    assert not out.exists()
    records = run_bench(pipe, asked, out)  # nobody holds it any more
    assert len(records) == 4


def test_failed_records_are_dropped_from_parts_too(tmp_path):
    out = tmp_path / "r.jsonl"
    failed = {"status": "failed", "reason": "no memory", "evaluated": (), "seconds": None}
    made = [described("fewer", 4), described("ab2", 4, **failed)]
    out.with_name("r.jsonl.part-1").write_text("".join(one.to_line() for one in made))
    assert runner.drop_failed(out) == 1
    assert read_records(out) == made[:1]
    path = runner.work_folder(out) / "tuning-1.jsonl"  # of a run that was killed after it
    TuningJournal(path).finish(Prepared(status="failed", reason="no memory", seconds=1))
    assert runner.drop_failed(out) == 0
    assert TuningJournal(path).prepared is None


def test_a_tuning_that_failed_goes_on_when_it_is_retried(pipe, tmp_path, monkeypatch):
    asked = job(methods=["magcache"], evaluations=[4], prompts=["a red fox"])
    evaluate, left = host_calls.Counted.__call__, [60]

    def failing(self: Any, x: Any, t: float) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("no memory")
        return evaluate(self, x, t)

    whole = run_bench(pipe, asked, tmp_path / "whole.jsonl")[-1]
    out, folder = tmp_path / "r.jsonl", runner.work_folder(tmp_path / "r.jsonl")
    monkeypatch.setattr(host_calls.Counted, "__call__", failing)
    assert run_bench(pipe, asked, out)[-1].reason == "RuntimeError: no memory"
    (kept,) = folder.glob("tuning-*.jsonl")
    assert len(kept.read_text().splitlines()) > 3
    assert runner.drop_failed(out) == 1
    again = run_bench(pipe, asked, out)[-1]
    assert (again.status, again.settings) == ("done", whole.settings)
    assert TuningJournal(kept).prepared.status == "done"


def test_files_of_one_setup_are_put_together_by_cat(pipe, tmp_path):
    first, second, both = (tmp_path / f"{name}.jsonl" for name in ("a", "b", "c"))
    few = {"evaluations": [4], "prompts": ["a red fox"]}
    run_bench(pipe, job(methods=["fewer"], **few), first)
    run_bench(pipe, job(methods=["ab2"], **few), second)
    both.write_bytes(first.read_bytes() + second.read_bytes())
    assert sorted(row.method for row in read_study(both).rows) == ["ab2", "fewer"]
    records = run_bench(pipe, job(methods=["fewer", "ab2"], **few), both)
    assert [record.method for record in records] == ["full", "fewer", "ab2"]
    assert len(read_records(both)) == 3  # one of the two full runs is gone
