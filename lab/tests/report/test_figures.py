"""Figures: what is drawn from which study, the same every time."""

from __future__ import annotations

import sys

import pytest
from tests.report_support import bench, fidelity, record, traced

from tacache.errors import TACacheError
from tacache_lab.bench.records import Fidelity
from tacache_lab.report import figures, study

MAIN = {"pareto", "pareto-speedup", "bars-psnr", "bars-ssim", "bars-drift", "bars-psnr-fine"}


def names(made, name: str) -> set[str]:
    return {path.stem.removeprefix(f"{name}-") for path in made}


@pytest.fixture
def figure():
    """The class of figures."""
    from matplotlib.figure import Figure

    return Figure


@pytest.mark.slow
def test_figures_are_of_what_was_measured_in_both_formats(tmp_path):
    made = figures.draw(study("main", bench()), tmp_path)
    assert names(made, "main") == MAIN
    assert {path.suffix for path in made} == {".svg", ".png"}
    svg = (tmp_path / "main-pareto.svg").read_text()
    for text in ("fitted", "magcache:flux", "evaluations of the model", "PSNR (dB)"):
        assert text in svg
    assert (tmp_path / "main-pareto.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_steps_have_figures_of_their_own(tmp_path, monkeypatch):
    own = {name: figures.FIGURES[name] for name in ("drift", "alignment", "indicators")}
    monkeypatch.setattr(figures, "FIGURES", own)
    made = figures.draw(study("steps", traced()), tmp_path)
    assert names(made, "steps") == set(own)
    again = figures.draw(study("steps", traced()), tmp_path / "..")
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in again]
    text = (tmp_path / "steps-drift.svg").read_text()
    assert "velocity, evaluated: 4 evaluations" in text
    assert "velocity, cached (mean of 3 steps): 4 evaluations" in text


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_study_of_references_only_has_nothing_to_draw(name, figure):
    assert figures.FIGURES[name](study("x", [record("full", 8)]), figure) is None


def test_a_pareto_line_goes_through_the_means(figure):
    made = study("main", bench())
    panel = figures.FIGURES["pareto"](made, figure).axes[0]
    lines = {one.get_label(): one for one in panel.containers}
    drawn = lines["fitted"].lines[0].get_xydata().tolist()
    rows = [row for row in made.rows if row.method == "fitted"]
    assert drawn == [[row.evaluations, row.values["full.psnr"].mean] for row in rows[::-1]]


def test_the_best_bar_is_on_top_whichever_way_is_better(figure):
    made = study("main", bench())
    for name in ("bars-psnr", "bars-drift"):
        panel = figures.FIGURES[name](made, figure).axes[1]
        labels = [label.get_text() for label in panel.get_yticklabels()]
        assert labels[::-1] == ["ab2", "fitted", "tasu", "fewer"]


def test_results_equal_to_the_reference_lie_off_the_scale(figure):
    records = [record("tasu", k, to_full=fidelity(psnr)) for k, psnr in ((8, 999.0), (4, 30.0))]
    panel = figures.FIGURES["pareto"](study("x", records), figure).axes[0]
    assert panel.containers[0].lines[0].get_xydata().tolist() == [[4.0, 30.0]]


def test_figures_name_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TACacheError, match=r"tacache\[report\]"):
        figures.check()


@pytest.mark.slow
def test_nothing_but_zeros_and_dollars_are_drawn(tmp_path):
    """All steps evaluated: no drift at all, which has no place on a logarithmic axis."""
    same = Fidelity(drift=0.0, metrics={"psnr": 999.0, "lpips": 0.0})
    methods = ("tasu", "tasu@my$^_$x.txt:3")
    records = [record(method, 8, to_full=same) for method in methods]
    assert figures.draw(study("equal", records), tmp_path)
