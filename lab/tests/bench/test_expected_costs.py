"""What a benchmark says before it begins, held to what it then spends."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from lab.tests.bench.test_runner import FLUX, STEPS, job

from tacache.fitting.fit_options import MAX_QUICK_EVALUATIONS
from tacache_lab.bench import run_bench
from tacache_lab.bench.expected_costs import duration, run_cost, tuning_cost
from tacache_lab.bench.named_methods import resolve
from tacache_lab.bench.tasks import Task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


def test_what_is_told_before_is_about_what_is_spent(pipe, tmp_path):
    """The evaluations that follow are counted; only a search may stop early."""
    lines: list[str] = []
    asked = replace(job(methods=["fewer", "tasu", "teacache", "fitted-fast"]), tries=3)
    records = run_bench(pipe, asked, tmp_path / "r.jsonl", tell=lines.append)
    told = int(re.findall(r"about ([\d,]+) evaluations", lines[0])[0].replace(",", ""))
    tuning = {(r.method, r.evaluations): r.prepare_evaluations or 0 for r in records}
    full_runs = len(asked.calibration) * STEPS
    spent = full_runs + sum(tuning.values()) + sum(record.spent for record in records)
    limit = MAX_QUICK_EVALUATIONS * len(asked.evaluations)  # which this small fit is far below
    assert spent <= told
    assert told - limit < 1.5 * spent
    run_bench(pipe, asked, tmp_path / "r.jsonl", tell=lines.append)
    assert len(lines) == 2  # nothing is left


def test_tuning_without_a_limit_is_named_and_not_counted(pipe, tmp_path):
    lines: list[str] = []
    asked = job(methods=["taylorseer-1", "fewer"], prompts=["a red fox"])
    run_bench(pipe, asked, tmp_path / "r.jsonl", tell=lines.append)
    assert lines[1].endswith(": tuning taylorseer-1")


def test_a_cache_of_diffusers_costs_more_than_its_budget():
    """A step that its attention skips is half an evaluation; one that all skip is next to none."""
    costs = {}
    for name in ("diffusers-taylorseer", "diffusers-taylorseer-lite", "fewer"):
        task = Task(resolve(name), 4, SimpleNamespace(prompts=("a", "b", "c")))  # type: ignore[arg-type]
        costs[name] = run_cost(task, 8), tuning_cost(task, job(methods=[name], tries=2), 8)
    assert costs["fewer"] == (4, 0)
    assert costs["diffusers-taylorseer-lite"] == (4, 2 * 3 * 4)
    assert costs["diffusers-taylorseer"] == (6, 2 * 3 * 6)


def test_times_have_the_unit_that_suits_them():
    assert [duration(s) for s in (3.2, 90.0, 5400.0)] == ["3 seconds", "1.5 minutes", "1.5 hours"]
