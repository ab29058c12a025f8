"""What a benchmark says a run costs, and what is timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from lab.tests.bench.test_runner import FLUX, STEPS, by_key, call, job

from tacache import TACacheError
from tacache.prompts import Sample
from tacache_lab.bench import judging, run_bench
from tacache_lab.bench.host_calls import Calls, host_of
from tacache_lab.bench.machines import same_device
from tacache_lab.bench.records import Key
from tacache_lab.flops import count_flops

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


def test_flops_are_those_of_the_pipelines_own_call(pipe, tmp_path):
    asked = job(methods=["tasu"], prompts=["a red fox"])
    records = by_key(run_bench(pipe, asked, tmp_path / "r.jsonl"))

    def of_call(steps: int) -> int:
        options = call() | {"num_inference_steps": steps}
        return count_flops(lambda: pipe(prompt="a red fox", output_type="np", **options))

    assert records["full", STEPS].flops == of_call(STEPS)
    assert records["tasu", 4].flops == of_call(4)
    assert 0 < records["tasu", 2].flops < records["tasu", 4].flops


def test_only_timings_are_repeated(pipe, tmp_path, monkeypatch):
    compare, compared = judging.compare, []
    monkeypatch.setattr(judging, "compare", lambda *given: compared.append(1) or compare(*given))
    asked = job(methods=["fewer"], evaluations=[4], prompts=["a red fox"], repeats=3)
    run, runs = judging.Judge.run, []

    def noted(self: Any, *given: Any, **grid: Any) -> Any:
        runs.append(run(self, *given, **grid))
        return runs[-1]

    monkeypatch.setattr(judging.Judge, "run", noted)
    full, fewer = run_bench(pipe, asked, tmp_path / "r.jsonl")
    seconds = [made.seconds for made in runs]
    # the short call, then one run that warms up and three that count, of each
    assert full.timings == tuple(seconds[2:5])
    assert fewer.timings == tuple(seconds[6:9])
    assert len(seconds) == 9
    for record in (full, fewer):
        assert record.seconds == sorted(record.timings)[1]
    assert fewer.full_seconds == full.seconds
    assert full.full_seconds is None
    assert fewer.spent == 4
    assert len(compared) == 1
    with pytest.raises(TACacheError, match="timed at least once"):
        run_bench(pipe, replace(asked, repeats=0), tmp_path / "r.jsonl")


def test_the_first_record_is_not_cold(pipe, tmp_path, monkeypatch):
    order: list[str] = []
    for name in ("warm_up", "reference"):
        plain = getattr(judging.Judge, name)

        def noted(self: Any, *given: Any, name: str = name, plain: Any = plain) -> Any:
            order.append(name)
            return plain(self, *given)

        monkeypatch.setattr(judging.Judge, name, noted)
    run_bench(pipe, job(methods=["fewer"], evaluations=[4]), tmp_path / "r.jsonl")
    assert order == ["warm_up", "reference", "reference"]


def test_what_is_added_later_is_timed_beside_full_steps_again(pipe, tmp_path):
    """Where times were asked for; with one run a sample the record of full steps must do."""
    out = tmp_path / "r.jsonl"
    few = {"evaluations": [4], "prompts": ["a red fox"]}
    run_bench(pipe, job(methods=["fewer"], **few), out)
    plain = by_key(run_bench(pipe, job(methods=["fewer", "ab2"], **few), out))
    full = plain["full", STEPS]
    assert plain["fewer", 4].full_seconds == full.seconds
    assert plain["ab2", 4].full_seconds is None
    later = by_key(run_bench(pipe, job(methods=["fewer", "unipc"], repeats=2, **few), out))
    assert later["full", STEPS] == full
    assert later["unipc", 4].full_seconds not in (None, full.seconds)


def test_processes_on_one_device_have_one_name_for_it(monkeypatch):
    assert same_device(torch.device("cpu")) == same_device(torch.device("cpu"))
    told = {0: "GPU-a", 1: "GPU-b"}

    class Properties:
        def __init__(self, device: torch.device) -> None:
            self.uuid = told[device.index or 0]

    monkeypatch.setattr(torch.cuda, "get_device_properties", Properties)
    names = [same_device(torch.device("cuda", i)) for i in (0, 1, 0)]
    assert names[0] == names[2] != names[1]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: object())
    assert same_device(torch.device("cuda")) == same_device(torch.device("cuda", 0))


def test_a_process_with_a_device_of_its_own_says_so(pipe, tmp_path):
    caller = Calls(host_of(pipe), call(), Sample("a red fox", 0))
    alone, eight = (
        judging.Judge(caller, job(), tmp_path / "r.jsonl", {}, count, 1).record(
            Key("fewer", 4, "a red fox", 0), status="failed", reason="no memory"
        )
        for count in (1, 8)
    )
    assert (alone.processes, alone.processes_per_device) == (1, 1)
    assert (eight.processes, eight.processes_per_device) == (8, 1)
