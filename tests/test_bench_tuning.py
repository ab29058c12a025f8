"""Settings of methods: kept by the code they come from, found without evaluating twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tacache.baselines import BASELINES
from tacache.bench import run_bench, runner
from tacache.bench.lessons import Remembered
from tacache.bench.methods import METHODS
from tests.test_bench import FLUX, job


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


def test_the_code_of_a_method_is_its_modules_and_the_core(monkeypatch):
    runner._files_sha256.cache_clear()
    codes = [runner.code_sha256(METHODS[name]) for name in ("magcache", "vde", "tasu", "tasu-10")]
    assert len(set(codes)) == 3  # tasu and tasu-10 are one code
    runner._files_sha256.cache_clear()
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: read(self) + b"#" * (self.name == "magcache.py")
    )
    changed = [runner.code_sha256(METHODS[name]) for name in ("magcache", "vde", "tasu")]
    runner._files_sha256.cache_clear()
    assert changed[0] != codes[0]
    assert changed[1:] == codes[1:3]


def test_tuning_evaluates_no_state_twice():
    ticks: list[int] = []
    asked: list[tuple[float, int]] = []

    def velocity(x: Any, t: float, sample: Any) -> Any:
        asked.append((t, sample[0]))
        return x * t

    remembered = Remembered(velocity, lambda: ticks.append(1), limit=3 * 16)
    x = torch.arange(8.0).reshape(2, 4)
    for _ in range(2):
        assert remembered(x, 0.5, [0, 1]).equal(x * 0.5)
    assert asked == [(0.5, 0), (0.5, 1)]
    remembered(x[:1], 0.5, [1])  # the same state of another sample
    assert len(asked) == len(ticks) == 3
    remembered(x, 0.25, [0, 1])  # the oldest two are forgotten
    remembered(x[:1], 0.5, [1])
    assert len(asked) == 5
    remembered(x[:1], 0.5, [0])
    assert len(asked) == 6
