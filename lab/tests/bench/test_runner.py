"""The benchmark's walk on a tiny pipeline: fair, resumable, shared out, and true to the user."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.diffusers_support import counted
from tests.forked import ForkedScript, run_two_ranks
from tests.tiny import PIPELINES

from tacache import HostError, TACacheError
from tacache.diffusers import applied
from tacache.diffusers.pipeline import PipelineHost
from tacache.errors import StorageError
from tacache.plan import Plan
from tacache.prompts import Sample, read_prompts
from tacache_lab.bench import (
    BenchJob,
    Record,
    RecordError,
    host_calls,
    judging,
    read_records,
    run_bench,
)
from tacache_lab.bench.calibration_sets import FIRST_SEED, CalibrationSet
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.judging import work_folder
from tacache_lab.bench.named_methods import METHODS, resolve
from tacache_lab.bench.plan_methods import Planned, sample_by_plan
from tacache_lab.bench.recorded_runs import record_full_run
from tacache_lab.bench.rivals import Rival
from tacache_lab.bench.runner import Bench, drop_failed
from tacache_lab.bench.tuning_journal import TuningJournal
from tacache_lab.methods import BASELINES
from tacache_lab.methods.budcache import BudCache
from tacache_lab.methods.inside import CACHES
from tacache_lab.methods.online import OnlineRule

pytestmark = pytest.mark.slow

FLUX = PIPELINES["flux"]
STEPS = 8
# those inside the model are counted at its blocks: test_bench_methods.py
OUTSIDE = [name for name in METHODS if name not in CACHES]
QUICK = [name for name in OUTSIDE if name not in ("budcache", "fitted")]


def call() -> dict[str, Any]:
    options = FLUX.call() | {"num_inference_steps": STEPS}
    options.pop("prompt")
    return options


def job(**changes: Any) -> BenchJob:
    asked = BenchJob(
        methods=["tasu", "fewer", "vde"],
        evaluations=[4, 2],
        prompts=["a red fox", "two boats"],
        calibration=["a lamp", "an old stone bridge", "a bowl of soup"],
        call=call(),
    )
    return replace(asked, **changes)


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def all_methods(pipe, tmp_path_factory) -> tuple[list[Record], Path]:
    """Every quick method at two budgets on one prompt, with a fine reference and pictures."""
    out = tmp_path_factory.mktemp("bench") / "r.jsonl"
    names = [*QUICK, "fitted", "magcache:flux", "tasu:0.5/5", "tasu-10@2"]
    asked = job(methods=names, prompts=["a red fox"], fine=24, keep=out.parent / "pictures")
    return run_bench(pipe, asked, out), out


def timeless(records: list[Record]) -> list[dict[str, Any]]:
    """Records without what a clock says."""
    clocks = {
        "seconds", "timings", "full_seconds", "prepare_seconds", "processes",
        "processes_per_device",
    }  # fmt: skip
    lines = [record.model_dump(exclude=clocks) for record in records]
    for line in lines:
        (line["tuned_on"] or {}).pop("seconds", None)
    return lines


def assert_same_but_tuned_with_stops(records: list[Record], whole: list[Record]) -> None:
    """A tuning that goes on evaluates again what its tries had shared; else all is equal."""
    counts = [[one.prepare_evaluations or 0 for one in made] for made in (records, whole)]
    assert all(a >= b for a, b in zip(*counts, strict=True))
    uncounted = {"prepare_evaluations": None}
    made, wanted = ([one.model_copy(update=uncounted) for one in rs] for rs in (records, whole))
    assert timeless(made) == timeless(wanted)


def by_key(records: list[Record]) -> dict[tuple[str, int | None], Record]:
    return {(record.method, record.evaluations): record for record in records}


# --- fair by construction ---------------------------------------------------------------------


def test_every_method_ran_and_none_spent_more_than_its_budget(all_methods):
    records, _ = all_methods
    assert {(r.method, r.status) for r in records if r.status != "done"} <= {
        (name, "unreachable") for name in QUICK
    }
    assert len(records) == 2 + 2 * (len(QUICK) + 1) + 2 + 2
    for record in (r for r in records if r.status == "done"):
        if not (record.method in BASELINES and isinstance(BASELINES[record.method], OnlineRule)):
            assert record.spent <= (record.evaluations or STEPS)


def test_every_method_got_the_same_noise_and_grid(all_methods):
    done = [record for record in all_methods[0] if record.status == "done"]
    assert len({record.noise_sha256 for record in done}) == 1
    full = set(by_key(done)["full", STEPS].evaluated)
    own_grid = {"fewer", "a2s", "dpm++2m", "unipc", "heun", "ab2", "fine", "fitted-flow"}
    for record in done:
        assert record.method in own_grid or set(record.evaluated) <= full, record.method
        assert all(0 < t <= 1 for t in record.evaluated)


def test_evaluations_are_those_of_the_model(pipe, tmp_path, monkeypatch):
    """The transformer's own calls in each judged run of every method, against its record."""
    monkeypatch.setitem(METHODS, "budcache", Rival(BudCache(tries=2)))
    run, counts = judging.Judge.run, []

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        with counted(pipe, FLUX.denoisers) as calls:
            made = run(self, *args, **kwargs)
        counts.append(len(calls))
        return made

    monkeypatch.setattr(judging.Judge, "run", watched)
    asked = job(methods=OUTSIDE, evaluations=[4], prompts=["a red fox"])
    records = run_bench(pipe, asked, tmp_path / "r.jsonl")
    done = [record for record in records if record.status == "done"]
    assert counts == [judging.WARM_UP, *(record.spent for record in done)]
    assert {record.method for record in done} == {"full", *OUTSIDE}


def test_what_tuning_evaluates_is_counted_at_the_model(pipe, tmp_path, monkeypatch):
    """Of each method, beyond the full runs it learns from; those are counted by its prompts."""
    prepare, counts = Bench.prepare, {}

    def watched(self: Any, task: Any) -> None:
        with counted(pipe, FLUX.denoisers) as calls:
            prepare(self, task)
        counts[task.chosen.name] = len(calls)

    monkeypatch.setattr(Bench, "prepare", watched)
    methods = ["fitted", "teacache", "tasu-10", "fewer"]
    asked = job(methods=methods, evaluations=[4], prompts=["a red fox"])
    records = run_bench(pipe, asked, tmp_path / "r.jsonl")
    told = {record.method: record.prepare_evaluations for record in records}
    for name in methods:  # a held call evaluates its first step, which is known from the full run
        assert told[name] <= counts[name] <= told[name] + len(asked.calibration), name
    assert told["fitted"] > told["teacache"] > len(asked.calibration)
    assert told["tasu-10"] == told["fewer"] == 0
    assert told["full"] is None


def test_a_method_that_starts_elsewhere_is_recorded_as_failed(pipe, tmp_path, monkeypatch):
    run = judging.Judge.sampled

    def other_noise(self: Any, subject: Sample, sample: Any) -> Any:
        return run(self, Sample(subject.prompt, subject.seed + 1), sample)

    monkeypatch.setattr(judging.Judge, "sampled", other_noise)
    asked = job(methods=["fewer"], evaluations=[4], prompts=["a red fox"])
    (_, record) = run_bench(pipe, asked, tmp_path / "r.jsonl")
    assert record.status == "failed"
    assert "reference's noise" in record.reason


def test_calibration_never_sees_the_noise_that_is_judged():
    assert min(FIRST_SEED + i for i in range(60)) > 10_000


# --- what a user gets -------------------------------------------------------------------------


def user_picture(pipe: Any, seed: int = 0, **changes: Any) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    made = pipe(prompt="a red fox", generator=generator, output_type="np", **(call() | changes))
    return (made.images[0] * 255).round().astype(np.uint8)


def test_pictures_are_those_the_pipeline_itself_makes(pipe, all_methods):
    from PIL import Image

    records, out = by_key(all_methods[0]), all_methods[1]

    def kept(method: str, evaluations: int) -> np.ndarray:
        return np.asarray(Image.open(out.parent / records[method, evaluations].picture))

    np.testing.assert_allclose(kept("full", STEPS), user_picture(pipe), atol=1)
    np.testing.assert_allclose(kept("fewer", 4), user_picture(pipe, num_inference_steps=4), atol=1)
    np.testing.assert_allclose(kept("fine", 24), user_picture(pipe, num_inference_steps=24), atol=1)
    files = (out.parent / "r.jsonl.work").glob("tuning-*.jsonl")
    plans = [TuningJournal(path).prepared.settings or {} for path in files]
    fits = [plan for plan in plans if plan.get("rule") == "fitted" and len(plan["anchors"]) == 4]
    to_run = [plan for plan in fits if plan["certificate"]["flow_drift"] is None]
    assert len(to_run) == 2  # `fitted`, and `fitted-fast`, which spends less
    settings = max(to_run, key=lambda plan: plan["certificate"]["evaluations_spent"])
    with applied(pipe, Plan.model_validate_json(json.dumps(settings))):
        np.testing.assert_allclose(kept("fitted", 4), user_picture(pipe), atol=1)


def test_numbers_are_to_both_references(all_methods):
    records = by_key(all_methods[0])
    full, fine = records["full", STEPS], records["fine", 24]
    assert full.to_full is None
    assert fine.to_fine is None
    assert full.to_fine.metrics["psnr"] == pytest.approx(fine.to_full.metrics["psnr"])
    assert 0 < full.to_fine.drift < 0.2
    tasu = records["tasu", 4]
    assert tasu.to_full.drift < tasu.to_fine.drift
    assert tasu.to_full.metrics.keys() == {"psnr", "ssim"}
    assert records["tasu", 2].to_full.drift > tasu.to_full.drift


def test_records_say_what_was_run(all_methods):
    record = by_key(all_methods[0])["tasu", 4]
    assert record.settings["rule"] == "tasu"
    assert len(record.settings["anchors"]) == 4
    assert record.origin.pipeline == "FluxPipeline"
    assert record.origin.call["num_inference_steps"] == STEPS
    assert record.machine.versions.keys() == {
        "python", "tacache", "torch", "diffusers", "transformers",
    }  # fmt: skip
    assert record.tuned_on.samples == 3
    assert by_key(all_methods[0])["fewer", 4].tuned_on is None
    assert by_key(all_methods[0])["tasu-10@2", 4].tuned_on.samples == 2
    assert all_methods[1].read_text().count("\n") == len(all_methods[0])


def test_the_best_ratio_is_no_worse_than_the_papers_on_calibration(pipe, tmp_path):
    caller = Calls(PipelineHost(pipe), call(), Sample("a lamp", 0))
    calibration_set = CalibrationSet(caller, tmp_path, "given", ("a lamp", "a bowl of soup"))
    for subject in calibration_set.subjects:
        record_full_run(caller, tmp_path, subject)
    best, paper = (Planned("tasu", ratio).prepare(calibration_set, 4) for ratio in (None, 10.0))
    with calibration_set.recording() as recording:
        errors = [recording.error(sample_by_plan(recording, plan)) for plan in (best, paper)]
    assert errors[0] <= errors[1]


# --- failures ---------------------------------------------------------------------------------


class _Broken(Rival):
    def sample(self, problem: Any, settings: Any) -> Any:
        problem.velocity(problem.noise, problem.times[0])
        raise RuntimeError("out of memory")


class _Untunable(Rival):
    def prepare(self, calibration_set: Any, evaluations: Any) -> Any:
        raise RuntimeError("no such kernel")


class _Diverging(Rival):
    def sample(self, problem: Any, settings: Any) -> Any:
        return super().sample(problem, settings) * float("nan")


def test_a_failing_method_is_recorded_and_does_not_stop_the_rest(pipe, tmp_path, monkeypatch):
    fewer = BASELINES["fewer"]
    for name, kind in (("broken", _Broken), ("untunable", _Untunable), ("nan", _Diverging)):
        monkeypatch.setitem(METHODS, name, kind(fewer))
    asked = job(methods=["broken", "untunable", "nan", "fewer"], evaluations=[4])
    out = tmp_path / "r.jsonl"
    records = run_bench(pipe, asked, out)
    reasons = {r.method: r.reason for r in records if r.status == "failed"}
    assert reasons == {
        "broken": "RuntimeError: out of memory",
        "untunable": "RuntimeError: no such kernel",
        "nan": "HostError: its result has values that are not finite",
    }
    assert sum(r.status == "done" for r in records) == 2 + 2
    before = out.read_bytes()
    run_bench(pipe, asked, out)
    assert out.read_bytes() == before  # not again, unless that is asked for
    monkeypatch.setitem(METHODS, "untunable", Rival(fewer))
    assert drop_failed(out) == 6
    again = run_bench(pipe, asked, out)
    assert {r.method for r in again if r.status == "failed"} == {"broken", "nan"}
    assert len(again) == len(records)


def test_a_budget_that_cannot_be_reached_is_recorded_as_such(pipe, tmp_path):
    asked = job(methods=["easycache", "tasu"], evaluations=[2, 1], prompts=["a red fox"])
    records = by_key(run_bench(pipe, asked, tmp_path / "r.jsonl"))
    for key in (("easycache", 2), ("easycache", 1), ("tasu", 1)):
        assert records[key].status == "unreachable"
        assert records[key].spent == 0
    assert "its first two steps and the last" in records["easycache", 2].reason
    assert records["tasu", 2].status == "done"


def test_a_pipeline_that_fails_stops_with_its_reason(tmp_path):
    with pytest.raises(HostError, match="has no argument 'heigth'"):
        run_bench(FLUX.build(), job(call=call() | {"heigth": 3}), tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": []}, "no methods"),
        ({"methods": ["tasv"]}, "unknown method 'tasv': choose from tasu"),
        ({"methods": ["magcache:bagel"]}, "there are flux, wan-slow, wan-fast"),
        ({"methods": ["tasu:0.06"]}, "TAU_K/TAU_D"),
        ({"methods": ["tasu@many"]}, "a number of prompts"),
        ({"methods": ["tasu@9"]}, "asks for 9 calibration prompts of 3"),
        ({"evaluations": [9]}, "has no 9 evaluations"),
        ({"prompts": ["a lamp"]}, "'a lamp' is a calibration prompt too"),
        (
            {"methods": ["tasu@test:4"], "prompts": read_prompts("test")[:1]},
            "tasu@test:4 would calibrate on",
        ),
        ({"prompts": ["a", "a"]}, "stands twice"),
        ({"metrics": ["psrn"]}, "no metric 'psrn'"),
    ],
)
def test_wrong_jobs_are_errors(pipe, tmp_path, changes, message):
    with pytest.raises(TACacheError) as raised:
        run_bench(pipe, job(**changes), tmp_path / "r.jsonl")
    assert message in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_names_say_where_a_method_is_made_ready():
    assert resolve("tasu@30")[2:] == (None, 30)
    assert resolve("tasu:0.06/0.6@mine.txt:30")[2:] == ("mine.txt", 30)
    assert not resolve("oss:flux-10").method.budgeted


# --- killed and resumed -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(pipe, tmp_path_factory) -> list[Record]:
    return run_bench(pipe, job(fine=12), tmp_path_factory.mktemp("bench") / "r.jsonl")


KILLING = """
import sys
from pathlib import Path
from tests.killing import main
main(Path(sys.argv[1]))
"""


def test_killed_ten_times_at_random_moments(undisturbed, tmp_path):
    killing = ForkedScript(KILLING, tmp_path)
    assert killing.wait(120) == 0, killing.output()
    assert (tmp_path / "0.jsonl").exists()
    for out in tmp_path.glob("[0-9]*.jsonl"):
        assert_same_but_tuned_with_stops(read_records(out), undisturbed)


def test_interrupted_at_random_evaluations(pipe, undisturbed, tmp_path, monkeypatch):
    """Each time the run gets a little further; nothing is lost and no record comes twice."""
    evaluate, left = host_calls.Counted.__call__, [0]

    def dying(self: Any, x: Any, t: float) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return evaluate(self, x, t)

    monkeypatch.setattr(host_calls.Counted, "__call__", dying)
    out, draw, interruptions = tmp_path / "r.jsonl", random.Random(1), 0
    for _ in range(200):
        left[0] = draw.randrange(12, 30)
        try:
            records = run_bench(pipe, job(fine=12), out)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions >= 5
    assert_same_but_tuned_with_stops(records, undisturbed)


def test_a_finished_benchmark_runs_nothing(pipe, tmp_path):
    out, asked = tmp_path / "r.jsonl", job(methods=["fewer"], evaluations=[4])
    run_bench(pipe, asked, out)
    before = out.read_bytes()
    with counted(pipe, FLUX.denoisers) as made:
        run_bench(pipe, asked, out)
    assert len(made) == 1  # the call that tells what the pipeline is
    assert out.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut short", "another file"])
def test_damaged_runs_and_references_are_made_again(pipe, tmp_path, damage):
    out = tmp_path / "r.jsonl"
    asked = job(methods=["tasu"], evaluations=[4], prompts=["a red fox"], trace=True)
    run_bench(pipe, asked, out)
    before = {file: file.read_bytes() for file in work_folder(out).glob("*.pt")}
    assert {file.name.partition("-")[0] for file in before} == {"full", "reference"}
    for file, content in before.items():
        file.write_bytes(content[:-100] if damage == "cut short" else b"not tensors")
    records = run_bench(pipe, replace(asked, prompts=["a red fox", "two boats"]), out)
    assert [record.status for record in records] == ["done"] * 4
    again = run_bench(pipe, replace(asked, evaluations=[4, 2]), out)  # asks for references
    assert [record.status for record in again] == ["done"] * 5
    for file, content in before.items():
        if file.name.startswith("reference"):
            assert file.read_bytes() == content


@pytest.mark.parametrize("writes", [1, 4, 8, 9])
def test_a_full_disk_leaves_no_drafts_and_what_was_finished(pipe, tmp_path, monkeypatch, writes):
    """The disk fills up at the n-th file; with room again the benchmark goes on from there."""
    out, left, fsync = tmp_path / "r.jsonl", [writes], os.fsync
    asked = job(methods=["tasu", "fewer"], evaluations=[4], keep=tmp_path / "pictures")

    def full(number: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        fsync(number)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match=r"cannot write .* \(No space left on device\)"):
            run_bench(pipe, asked, out)
    assert not list(tmp_path.rglob(".*"))
    finished = read_records(out)
    assert all(record.status == "done" for record in finished)
    records = run_bench(pipe, asked, out)
    assert records[: len(finished)] == finished
    assert [record.status for record in records] == ["done"] * 6


def test_methods_budgets_and_prompts_can_be_added(pipe, undisturbed, tmp_path):
    out = tmp_path / "r.jsonl"
    run_bench(pipe, job(fine=12, methods=["vde"], evaluations=[2], prompts=["two boats"]), out)
    run_bench(pipe, job(fine=12, methods=["vde", "tasu"], prompts=["two boats"]), out)
    records = run_bench(pipe, job(fine=12), out)
    order = {record.key: i for i, record in enumerate(undisturbed)}
    assert timeless(sorted(records, key=lambda r: order[r.key])) == timeless(undisturbed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call": call() | {"num_inference_steps": 6}}, "another model, call or reference"),
        ({"fine": 20}, "another model, call or reference"),
        ({"calibration": ["a lamp", "a kite"]}, "records of vde calibrated on other prompts"),
    ],
)
def test_another_setup_does_not_mix_in(pipe, tmp_path, changes, message):
    out = tmp_path / "r.jsonl"
    run_bench(pipe, job(methods=["vde"], evaluations=[4]), out)
    before = out.read_bytes()
    with pytest.raises(RecordError, match=message):
        run_bench(pipe, job(methods=["vde"], evaluations=[4], **changes), out)
    assert out.read_bytes() == before


# --- several processes ------------------------------------------------------------------------

SCRIPT = """
import sys
from lab.tests.bench.test_runner import FLUX, job
from tests.diffusers_support import torch
from tacache_lab.bench import run_bench

run_bench(FLUX.build(), job(fine=12), sys.argv[1])
"""


def test_two_processes_make_the_records_of_one(undisturbed, tmp_path):
    out = tmp_path / "r.jsonl"
    code, error = run_two_ranks(SCRIPT, out)
    assert code == 0, error
    order = {record.key: i for i, record in enumerate(undisturbed)}
    records = sorted(read_records(out), key=lambda record: order[record.key])
    assert timeless(records) == timeless(undisturbed)
    assert {(record.processes, record.processes_per_device) for record in records} == {(2, 2)}
    assert not list(tmp_path.glob("*.part-*"))
