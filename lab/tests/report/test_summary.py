"""From records to means, intervals and ranks."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report_support import (
    PROMPTS,
    REASON,
    STEPS,
    bench,
    fidelity,
    judged,
    record,
    save,
    traced,
)

from tacache.prompts import Sample
from tacache.storage.origin import Origin
from tacache_lab.bench.records import Machine, RecordError
from tacache_lab.report import Summary, read_study, study, summarise
from tacache_lab.report.confidence import difference, estimate, student_t
from tacache_lab.report.quantities import in_order, measured, quantity, unmeasured
from tacache_lab.report.summary import is_ours

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)


def samples(values: list[float]) -> dict[Sample, float]:
    return {Sample(f"prompt {n}", 0): value for n, value in enumerate(values)}


def row(made, method: str, evaluations: int | None):
    (found,) = [r for r in made.rows if (r.method, r.evaluations) == (method, evaluations)]
    return found


# --- estimates


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (23, 2.0687), (1000, 1.9623)],
)
def test_student_t_is_that_of_the_tables(freedom, expected):
    assert student_t(freedom) == pytest.approx(expected, abs=5e-5)


def test_an_interval_by_hand():
    found = estimate(samples([1.0, 2.0, 3.0]))
    assert found.mean == 2.0
    assert found.margin == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert (found.low, found.high) == (2.0 - found.margin, 2.0 + found.margin)
    assert found.samples == 3


def test_one_sample_has_no_interval():
    found = estimate(samples([5.0]))
    assert (found.mean, found.margin, found.low, found.high) == (5.0, None, None, None)


def test_seeds_of_a_prompt_are_one_observation():
    seeds = {Sample(p, s): float(10 * n + s) for n, p in enumerate("ab") for s in (-1, 0, 1)}
    found = estimate(seeds)
    assert found.samples == 6
    assert found.margin == pytest.approx(estimate(samples([0.0, 10.0])).margin)
    alone = estimate({Sample("a", s): float(s) for s in (1, 2, 3)})
    assert alone.margin == pytest.approx(estimate(samples([1.0, 2.0, 3.0])).margin)


@given(NUMBERS, st.floats(-10, 10), st.floats(0.1, 10))
def test_intervals_move_and_stretch_with_their_values(values, shift, factor):
    before = estimate(samples(values))
    after = estimate(samples([factor * value + shift for value in values]))
    assert after.mean == pytest.approx(factor * before.mean + shift, abs=1e-6)
    assert after.margin == pytest.approx(factor * before.margin, abs=1e-6)


@given(NUMBERS, NUMBERS)
def test_differences_are_paired_and_turn_around(values, others):
    one, other = samples(values), samples(others)
    there, back = difference(one, other), difference(other, one)
    assert there.samples == min(len(values), len(others))
    assert there.mean == pytest.approx(-back.mean, abs=1e-9)
    shifted = difference({key: value + 3 for key, value in one.items()}, one)
    assert (shifted.mean, shifted.margin) == (pytest.approx(3), pytest.approx(0, abs=1e-9))


# --- quantities


def test_a_record_in_numbers():
    one = judged("tasu", 4, 0, 30.0, flops=3 * 10**12, memory_bytes=2**31, scores={"new": 0.5})
    found = measured(one, record("full", STEPS))
    assert found["full.psnr"] == 30.0
    assert found["fine.psnr"] == 29.0
    assert found["full.drift"] == pytest.approx(10**-1.5)
    assert (found["evaluations"], found["seconds"], found["speedup"]) == (4, 1.0, 2.0)
    assert (found["prepare"], found["calibration"]) == (2.5, 4 * STEPS)
    assert (found["flops"], found["memory"], found["score.new"]) == (3.0, 2.0, 0.5)
    assert unmeasured(one) == {"full.lpips": "not run: no weights"}
    assert "drift-cached" not in found


def test_a_speedup_is_of_one_machine_in_one_state():
    one, full = record("tasu", 4), record("full", STEPS)
    other = Machine(device="cuda: another", versions={})
    assert "speedup" not in measured(one, None)
    assert "speedup" not in measured(one, full.model_copy(update={"machine": other}))
    assert "speedup" not in measured(one, full.model_copy(update={"processes_per_device": 4}))
    assert measured(one, full)["speedup"] == 2.0
    beside = one.model_copy(update={"full_seconds": 3.0})  # timed by the process that timed it
    assert measured(beside, full)["speedup"] == measured(beside, None)["speedup"] == 3.0


def test_equal_pictures_count_as_100_decibels():
    found = measured(record("tasu", 4, to_full=fidelity(999.0)), None)
    assert found["full.psnr"] == 100.0


def test_columns_stand_in_order_and_metrics_that_are_new_have_a_place():
    names = ["speedup", "evaluations", "score.new", "full.drift", "fine.psnr", "full.psnr"]
    ordered = [one.name for one in in_order(["full.mystery", *names])]
    assert ordered == ["full.psnr", "full.drift", "full.mystery", "fine.psnr", "score.new",
                       "evaluations", "speedup"]  # fmt: skip
    assert quantity("full.mystery").better is None
    assert (quantity("full.lpips").better, quantity("full.psnr").better) == ("lower", "higher")
    assert (quantity("full.motion-psnr").unit, quantity("full.lpips-vgg").digits) == ("dB", 4)


# --- studies


def test_tables_are_by_budget_with_own_budgets_last():
    made = study("main", bench())
    assert [table.evaluations for table in made.tables] == [4, 2, None]
    assert [r.method for r in made.tables[0].rows] == ["fitted", "tasu", "fewer", "teacache", "ab2"]
    assert [r.method for r in made.tables[2].rows] == ["magcache:flux"]
    assert {r.method for r in made.references} == {"full", "fine"}
    assert (made.prompts, made.seeds, made.samples, made.steps, made.fine) == (3, 1, 3, STEPS, 32)
    assert row(made, "magcache:flux", None).values["evaluations"].mean == 3


def test_ranks_are_as_they_are_and_only_complete_methods_have_one():
    made = study("main", bench())
    places = {r.method: r.ranks.get("full.psnr") for r in made.tables[0].rows}
    assert places == {"fitted": 1, "tasu": 2, "fewer": 3, "teacache": 4, "ab2": None}
    assert row(made, "fitted", 4).ranks["full.drift"] == 1
    assert (
        row(made, "ab2", 4).values["full.psnr"].mean
        > row(made, "fitted", 4).values["full.psnr"].mean
    )
    assert row(made, "magcache:flux", None).ranks == {}


def test_ours_may_be_last():
    records = [judged(method, 4, n, psnr) for n in range(3)
               for method, psnr in (("fewer", 40.0), ("fitted", 20.0))]  # fmt: skip
    table = study("x", records).tables[0]
    assert [(r.method, r.ranks["full.psnr"]) for r in table.rows] == [("fewer", 1), ("fitted", 2)]


def test_what_is_not_done_keeps_its_reason():
    made = study("main", bench())
    gone, torn = row(made, "teacache", 2), row(made, "ab2", 4)
    assert (gone.done, gone.unreachable, gone.reason, gone.values) == (0, 3, REASON, {})
    assert (torn.done, torn.failed, torn.reason) == (2, 1, "RuntimeError: no memory")
    assert made.tables[1].rows[-1] == gone


def test_leads_are_paired():
    lead = study("main", bench()).tables[0].leads[0]
    assert (lead.quantity, lead.first, lead.second) == ("full.psnr", "fitted", "tasu")
    assert lead.by.mean == pytest.approx(3.0)
    assert lead.by.margin == pytest.approx(0.0, abs=1e-9)


def test_ties_share_their_rank_and_nobody_leads():
    records = [judged(method, 4, n, 30.0) for n in range(3) for method in ("fewer", "tasu")]
    table = study("x", records).tables[0]
    assert {r.ranks["full.psnr"] for r in table.rows} == {1}
    assert table.leads == ()


def test_the_order_of_records_changes_nothing():
    records = bench()
    expected = study("main", records)
    Random(3).shuffle(records)
    made = study("main", records)
    assert [[(r.method, r.ranks) for r in t.rows] for t in made.tables] == [
        [(r.method, r.ranks) for r in t.rows] for t in expected.tables
    ]


def test_of_two_records_with_one_key_the_later_counts():
    made = study("x", [judged("tasu", 4, 0, 20.0), judged("tasu", 4, 0, 30.0)])
    assert row(made, "tasu", 4).values["full.psnr"].mean == 30.0
    assert made.samples == 1


def test_steps_are_averaged_and_told_apart():
    made = study("drift", traced())
    tasu = row(made, "tasu", 4)
    assert tasu.traces["state_drift"].mean[2] == pytest.approx(0.02)
    assert tasu.traces["state_drift"].deviation[2] == pytest.approx(0.0, abs=1e-12)
    assert tasu.traces["cos_theta"].mean[:4] == (None, None, None, 0.5)
    assert tasu.values["drift-evaluated"].mean == pytest.approx(0.02)
    assert tasu.values["state-drift-evaluated"].mean == pytest.approx(0.03)  # at 0, 2, 4, 6
    assert tasu.values["state-drift-cached"].mean == pytest.approx(0.04)
    assert tasu.traces["velocity_drift_cached"].mean[:2] == (None, pytest.approx(0.1))
    assert tasu.traces["velocity_drift_evaluated"].mean[:2] == (pytest.approx(0.02), None)
    assert tasu.values["drift-cached"].mean == pytest.approx(0.1)
    assert tasu.alignment is not None
    assert (tasu.alignment.records, tasu.alignment.median) == (3 * len(PROMPTS), 0.5)
    assert row(made, "reuse", 4).alignment is None


def test_models_are_not_mixed():
    other = record("full", STEPS, origin=Origin(kind="diffusers", model="another"))
    with pytest.raises(RecordError, match="mixes models"):
        study("x", [record("full", STEPS), other.model_copy(update={"seed": 1})])


def test_files_that_say_nothing_are_errors(tmp_path):
    with pytest.raises(RecordError, match="no results file"):
        read_study(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(RecordError, match="has no records"):
        read_study(tmp_path / "empty.jsonl")
    with pytest.raises(RecordError, match="has no records"):
        study("x", [])


def test_studies_have_names_of_their_own(tmp_path):
    files = [save(bench(), tmp_path / folder / "main.jsonl") for folder in "ab"]
    with pytest.raises(RecordError, match="two results files are named 'main'"):
        summarise(read_study(file) for file in files)


def test_a_summary_reads_as_it_was_written(tmp_path):
    made = summarise([study("main", bench()), study("drift", traced())])
    assert Summary.load(made.save(tmp_path / "summary.json")) == made


@pytest.mark.parametrize(
    ("method", "ours"),
    [("tasu", True), ("tasu-10", True), ("tasu:0.06/0.6", True), ("fitted@mine.txt:8", True),
     ("reuse-10", False), ("magcache:flux", False), ("taylorseer-1", False)],
)  # fmt: skip
def test_ours_are_known_in_every_variant(method, ours):
    assert is_ours(method) is ours
