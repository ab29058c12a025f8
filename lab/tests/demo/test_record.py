"""What a demo has measured: its figures over the prompts, and the plan that it puts first."""

import json
from pathlib import Path

import pytest
from tests.demo_support import FULL, budget, demo_of

from tacache_lab.demo.record import DemoPicture, ModelDemo, headline, nearest, summed_up

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("fitted", 13, 40.0), ("fitted", 10, 36.0), ("fitted", 7, 26.0)], ("fitted", 10)),
        ([("fitted", 13, 40.0), ("fitted", 10, 35.0)], ("fitted", 10)),  # 35 dB are enough
        ([("fitted", 13, 40.0), ("fitted", 10, 34.99)], ("fitted", 13)),
        ([("fitted", 13, 34.0), ("tasu", 10, 50.0)], None),  # the paper's is not ours
        ([("fitted", 13, 40.0), ("linear", 13, 36.0)], ("fitted", 13)),
        ([("fitted", 13, 36.0), ("linear", 13, 40.0)], ("linear", 13)),
        ([("fitted", 13, 40.0), ("linear", 10, 36.0)], ("linear", 10)),
        ([], None),
    ],
)
def test_the_headline_is_the_fewest_evaluations_of_ours_that_keep_enough(rows, expected):
    found = headline([FULL, *(budget(*row) for row in rows)])
    assert (found and (found.rule, found.evaluations)) == expected


def test_another_limit_gives_another_headline():
    rows = [FULL, budget("fitted", 13, 40.0), budget("fitted", 7, 26.0)]
    assert headline(rows, least=25.0) is rows[2]
    assert headline(rows, least=41.0) is None


def test_where_none_keeps_enough_the_nearest_of_ours_is_named():
    rows = [FULL, budget("fitted", 13, 30.0), budget("fitted", 7, 20.0), budget("tasu", 13, 33.0)]
    assert nearest(rows) is rows[1]
    assert nearest([FULL]) is None


def test_figures_are_medians_of_times_and_means_and_tails_of_fidelity():
    def row(rule, times, psnrs):
        facts = {"prompt": "p", "evaluations": 13, "file": "f", "rule": rule, "ssim": 0.5}
        return [DemoPicture(seconds=s, psnr=p, **facts) for s, p in zip(times, psnrs, strict=True)]

    full = row(None, [4.0, 4.0, 40.0], [None] * 3)  # the machine was busy once
    made = summed_up(row("fitted", [1.0, 1.0, 1.0], [40.0, 24.9, 25.1]), full, "x.plan.json")
    assert (made.seconds, made.speedup, made.plan) == (1.0, 4.0, "x.plan.json")
    assert (made.psnr, made.lowest, made.lost) == (pytest.approx(30.0), 24.9, 1)
    whole = summed_up(full, full, None)
    assert (whole.speedup, whole.psnr, whole.lowest, whole.lost) == (1.0, None, None, None)


def test_a_row_is_found_by_its_rule_and_evaluations():
    made = demo_of(budget("fitted", 13, 40.0), budget("tasu", 13, 30.0))
    assert made.reached("tasu", 13) is made.budgets[2]
    assert made.reached("tasu", 7) is None


@pytest.mark.parametrize("name", ["tiny-flux", "tiny-wan"])
def test_records_of_version_0_1_load(name):
    text = (ROOT / "tests" / "golden" / f"demo-{name}-0.1.json").read_text(encoding="utf-8")
    made = ModelDemo.model_validate_json(text)
    assert made.full.evaluations == 50
    assert made.equivalent_steps == {}
    assert json.loads(text)["budgets"][1]["psnr"] == made.budgets[1].psnr
