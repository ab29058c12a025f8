"""The worst pictures of a method, from records of any age."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report_support import PROMPTS, fidelity, record

from tacache.prompts import Sample
from tacache_lab.report import study
from tacache_lab.report.confidence import LOST, lost, percentile, tail
from tacache_lab.report.quantities import quantity
from tacache_lab.report.tables import comma_separated, markdown, notes


def made(*values, seeds=1):
    """A study of one method whose pictures have these PSNR, prompt by prompt."""
    found = [
        record("tasu", 4, PROMPTS[n // seeds], seed=n % seeds, to_full=fidelity(value))
        for n, value in enumerate(values)
    ]
    return study("x", found)


def test_a_percentile_and_a_share_by_hand():
    values = [20.0 + n for n in range(21)]  # 20 to 40: five below 25
    assert percentile(values) == 21.0
    assert lost(values) == pytest.approx(500 / 21)
    assert percentile([30.0]) == 30.0
    assert lost([LOST]) == 0  # at 25 dB a picture is not lost


@given(st.lists(st.floats(5, 60), min_size=1, max_size=40))
def test_one_in_twenty_is_below(values):
    found = percentile(values)
    assert min(values) <= found <= max(values)
    assert sum(value < found - 1e-9 for value in values) <= 0.05 * (len(values) - 1) + 1
    assert found == pytest.approx(float(np.quantile(values, 0.05)))


def test_every_table_has_them_for_each_reference():
    found = made(20.0, 30.0, 40.0)
    (row,) = found.rows
    assert row.values["full.psnr-5th"].mean == pytest.approx(21.0)
    assert row.values["full.psnr-lost"].mean == pytest.approx(100 / 3)
    assert "fine.psnr-5th" not in row.values
    assert row.ranks["full.psnr-5th"] == 1
    assert "full.psnr-lost" not in row.ranks  # all without any would be first
    text = markdown(found)
    assert "| PSNR (dB) | PSNR, 5th percentile (dB) | below 25 dB (%) |" in text
    assert "| **21.00** | 33 |" in text
    assert any("one picture in twenty" in note for note in notes(found))
    head, line = comma_separated(found).splitlines()
    cells = dict(zip(head.split(","), line.split(","), strict=True))
    assert float(cells["full.psnr-5th"]) == pytest.approx(21.0)
    assert float(cells["full.psnr-lost"]) == pytest.approx(100 / 3)


def test_pictures_are_counted_and_not_prompts():
    (row,) = made(20.0, 40.0, 40.0, 40.0, 40.0, 40.0, seeds=2).rows
    assert row.values["full.psnr-lost"].mean == pytest.approx(100 / 6)
    assert row.values["full.psnr-lost"].samples == 6


def test_without_psnr_there_is_none():
    assert tail({"full.ssim": {Sample("a", 0): 0.9}}) == {}
    assert quantity("fine.psnr-5th").title == "PSNR, 5th percentile"
    assert quantity("fine.psnr-5th").group == "fine"
