"""Whom short tables and figures name, and what methods cost beside what they were asked for."""

from __future__ import annotations

import pytest
from tests.report_support import PROMPTS, judged, record

from tacache.errors import TACacheError
from tacache_lab.report import fill, study, tables
from tacache_lab.report.figures import FIGURES
from tacache_lab.report.quantities import quantity
from tacache_lab.report.ranking import leading, named, standing, study_styles
from tacache_lab.report.report_page import section
from tacache_lab.report.shelves import Shelves

RIVALS = [f"rival-{n:02d}" for n in range(14)]


@pytest.fixture(scope="module")
def crowd():
    """Ours, last, and fourteen rivals, each a little worse than the one before it."""
    found = [record("full", 8, prompt) for prompt in PROMPTS]
    for number in range(len(PROMPTS)):
        for budget in (4, 2):
            found.append(judged("tasu", budget, number, 10.0 + budget))
            found += [
                judged(name, budget, number, 40.0 - n + budget) for n, name in enumerate(RIVALS)
            ]
    return study("main", found)


@pytest.fixture(scope="module")
def costly():
    """A cache inside the model, which is worth more than it evaluates, and one that overspends."""
    found = []
    for number in range(len(PROMPTS)):
        found.append(judged("inside", 4, number, 30.0, equivalent_evaluations=6.5))
        found.append(judged("thrifty", 4, number, 29.0, equivalent_evaluations=4.0))
        found.append(judged("spender", 4, number, 28.0, spent=4 + (number == 0)))
        found.append(judged("fitted", 4, number, 27.0))
        found.append(judged("inside:flux", None, number, 26.0, spent=3, equivalent_evaluations=7.5))
        found.append(judged("plain:flux", None, number, 26.0, spent=5))
    return study("main", found)


def row(made, method):
    return next(one for one in made.rows if one.method == method)


def test_methods_stand_by_the_mean_of_their_ranks(crowd):
    assert standing(crowd, "full.psnr") == [*RIVALS, "tasu"]
    assert leading(crowd, "full.psnr", 2) == ["rival-00", "rival-01", "tasu"]


def test_figures_name_ours_and_the_best_and_draw_the_others_in_grey(crowd):
    from matplotlib.figure import Figure

    assert named(crowd) == ["tasu", *RIVALS[:10]]
    colours = {study_styles(crowd)[name].colour for name in named(crowd)}
    assert len(colours) == 11
    panel = FIGURES["pareto"](crowd, Figure).axes[0]
    labels = panel.get_legend_handles_labels()[1]
    assert sorted(labels) == sorted([*named(crowd), "4 others"])
    lines = [line for line in panel.get_lines() if line.get_color() == "#d5d8dc"]
    assert len(lines) == 4


def test_the_page_begins_with_those_that_are_named(crowd):
    shown = section(crowd, Shelves([], 0, 0), {}).data["methods"]
    assert [one["name"] for one in shown if one["shown"]] == named(crowd)
    assert [one["name"] for one in shown if not one["shown"]] == RIVALS[10:]


def test_a_short_table_says_what_it_leaves_out(crowd):
    text = filled(crowd, "main full.psnr top=2")
    first = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert first[2:5] == first[7:] == ["| rival-00", "| rival-01", "| tasu"]
    assert "The best 2 of 14 other methods by mean rank, and ours." in text
    assert "methods by mean rank" not in filled(crowd, "main full.psnr top=14")
    chosen = filled(crowd, "main full.psnr methods=tasu,rival-03")
    assert chosen.index("| rival-03 |") < chosen.index("| tasu |")
    assert "rival-00" not in chosen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("top=0", "'top=0': give one of top=NUMBER"),
        ("tpo=3", "'tpo=3'"),
        ("top=3 methods=tasu", "'top=3 methods=tasu'"),
        ("methods=", "'methods='"),
        ("methods=nobody", "no method 'nobody' with a budget: there are rival-00"),
    ],
)
def test_a_marker_that_is_not_understood_is_an_error(crowd, words, message):
    with pytest.raises(TACacheError, match=message):
        filled(crowd, f"main full.psnr {words}")


def filled(made, asked):
    return fill(f"<!-- tacache report: {asked} -->\n<!-- end -->\n", {"main": made})


def test_a_method_that_costs_more_than_the_budget_is_marked(costly):
    over = {one.method: one.over for one in costly.rows}
    assert over == {
        "inside": True,
        "thrifty": False,
        "spender": True,
        "fitted": False,
        "inside:flux": False,
        "plain:flux": False,
    }
    text = tables.markdown(costly)
    assert "| inside † | **31.00 ± 2.48** |" in text
    assert "| spender † |" in text
    assert "| thrifty | <ins>" in text
    assert "| evaluations | equivalent |" in text
    assert "† cost more than the budget" in text
    short = filled(costly, "main full.psnr")
    assert "| inside | **31.00 ± 2.48** † |" in short
    assert "† where a method cost more than the budget" in short
    assert "†" not in filled(costly, "main full.psnr methods=thrifty,fitted")


def test_caches_inside_the_model_stand_at_what_they_are_worth(costly):
    from matplotlib.figure import Figure

    panel = FIGURES["pareto"](costly, Figure).axes[0]
    places = {one.get_label(): one.lines[0].get_xdata().tolist() for one in panel.containers}
    assert places["inside"] == [6.5]
    assert places["fitted"] == [4.0]
    assert panel.get_xlabel() == "evaluations of the model, or equivalent ones"
    own = next(table for table in costly.tables if table.evaluations is None)
    assert [one.method for one in own.rows] == ["inside:flux", "plain:flux"]
    data = section(costly, Shelves([], 0, 0), {}).data
    assert (
        next(p for p in data["points"] if p["method"] == "inside")["values"][
            "equivalent-evaluations"
        ][0]
        == 6.5
    )


def test_what_is_not_worth_more_has_no_such_column(crowd):
    assert not crowd.has("equivalent-evaluations")
    assert "equivalent" not in tables.markdown(crowd)
    assert row(crowd, "tasu").cost == row(crowd, "tasu").values["evaluations"]


def test_plans_of_exports_are_ours_and_scores_of_evaluators_are_ranked():
    scores = {"plan:flux-13": 0.6, "magcache": 0.5}
    found = [
        record(method, 4, prompt, scores={"geneval": score})
        for method, score in scores.items()
        for prompt in PROMPTS
    ]
    made = study("geneval", found)
    assert row(made, "plan:flux-13").ours
    assert not row(made, "magcache").ours
    assert row(made, "plan:flux-13").ranks["score.geneval"] == 1
    assert row(made, "magcache").ranks["score.geneval"] == 2
    assert quantity("score.vbench/scene").better == "higher"
    assert quantity("score.something").better is None
