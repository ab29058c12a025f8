"""The figure of calibration prompts: what methods named with @ were made ready on."""

from __future__ import annotations

import pytest
from tests.report_support import judged

from tacache_lab.report import study
from tacache_lab.report.calibration_figure import calibration

matplotlib = pytest.importorskip("matplotlib.figure")
QUALITY = {"tasu@6": 30.0, "tasu@30": 32.0, "tasu@general:30": 31.0, "fewer": 28.0}


def drawn(quality: dict[str, float]):
    made = [judged(m, 4, n, psnr) for m, psnr in quality.items() for n in range(3)]
    return calibration(study("x", made), matplotlib.Figure)


def test_a_method_is_a_line_over_its_prompts_and_other_sources_are_marks():
    (panel,) = drawn(QUALITY).axes
    shown = {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
    assert shown["tasu, general prompts"] == [[30, pytest.approx(32.0)]]
    (own,) = (one for one in panel.containers if one.get_label() == "tasu")
    assert own.lines[0].get_xydata().tolist() == [[6, pytest.approx(31)], [30, pytest.approx(33)]]
    assert panel.get_title() == "PSNR (dB), 4 evaluations"
    assert panel.get_xlabel() == "calibration prompts"


@pytest.mark.parametrize("quality", [{"tasu": 30.0}, {"tasu@6": 30.0, "fitted@6": 31.0}])
def test_there_is_none_where_the_number_of_prompts_does_not_vary(quality):
    assert drawn(quality) is None
