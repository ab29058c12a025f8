"""What a benchmark says a run costs, and what is timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tacache import TACacheError
from tacache.bench import judging, run_bench
from tacache.cost import count_flops
from tests.test_bench import FLUX, STEPS, by_key, call, job


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
    full, fewer = run_bench(pipe, asked, tmp_path / "r.jsonl")
    for record in (full, fewer):
        assert len(record.timings) == 3
        assert record.seconds == sorted(record.timings)[1]
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
