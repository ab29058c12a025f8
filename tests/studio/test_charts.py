from xml.etree import ElementTree

import pytest
from tests.studio.test_choices import fitted

from tacache.instant import instant_plan
from tacache.plan import make_plan
from tacache.studio.charts import drift_chart, frontier_chart, profile_charts, strip, ticks
from tacache.studio.shelf import Shelved


def parsed(html):
    return ElementTree.fromstring(f"<body>{html}</body>")


def test_curves_show_every_step_with_its_spread(tiny_profile):
    figures = parsed(profile_charts(tiny_profile)).findall("figure")
    assert len(figures) == 3
    for figure in figures[:2]:
        points = figure.find("svg/polyline").get("points").split()
        assert len(points) == tiny_profile.steps - 1
        assert len(figure.find("svg/polygon").get("points").split()) == 2 * len(points)
    label = figures[0].find("svg/g").get("aria-label")
    assert label.startswith(f"step 0: {tiny_profile.direction[0]:.3g}")


def test_the_strip_has_a_box_for_each_step(tiny_profile):
    plan = make_plan(tiny_profile, evaluations=4)
    boxes = parsed(strip(plan)).findall("div/i")
    assert [n for n, box in enumerate(boxes) if box.get("class") == "on"] == list(plan.anchors)


def test_the_frontier_can_be_read_by_pointer_and_keyboard(model):
    plans = [Shelved("<b>", fitted(model, 4)), Shelved("f", fitted(model, 5, flow=True))]
    points = parsed(frontier_chart(plans)).findall("figure/svg/g")
    assert [point.get("tabindex") for point in points] == ["0", "0"]
    assert "30.0 dB" in points[0].get("aria-label")
    assert "as near to the flow as 21 Euler steps" in points[1].get("aria-label")


def test_without_anything_there_is_a_sentence(model, tiny_profile):
    assert "learn one under Make" in frontier_chart([])
    assert "learn one" in frontier_chart([Shelved("a", make_plan(tiny_profile, evaluations=4))])
    assert "appears here" in drift_chart([])


def test_every_chart_has_a_legend(model, tiny_profile):
    plans = [Shelved("a", fitted(model, 4)), Shelved("f", fitted(model, 5, flow=True))]
    charts = profile_charts(tiny_profile), frontier_chart(plans), drift_chart([(1, 0.1)])
    figures = [figure for chart in charts for figure in parsed(chart).findall("figure")]
    assert len(figures) == 5
    for figure in figures:
        svg = figure.find("svg")
        drawn = {name for part in svg.iter() for name in part.get("class", "").split()}
        kinds = [swatch.get("class").split()[-1] for swatch in figure.findall("p/span/i")]
        assert kinds
        assert set(kinds) <= drawn
    assert len(figures[3].findall("p/span")) == 2
    assert len(parsed(strip(instant_plan(model.times, 4))).findall("p/span")) == 2


def test_a_plan_with_times_of_its_own_fills_the_steps_they_lie_in(model):
    plan = instant_plan(model.times, 4, target="flow")
    boxes = parsed(strip(plan)).findall("div/i")
    assert len(boxes) == model.steps
    assert sum(box.get("class") == "on" for box in boxes) == 4


def test_drift_is_drawn_at_its_steps():
    svg = parsed(drift_chart([(1, 0.01), (10, 0.2)])).find("figure/svg")
    assert len(svg.findall("g")) == 2
    assert svg.findall("g")[1].get("aria-label") == "after step 10: 0.2000"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (0, 50, [0, 20, 40]), (-12, 13, [-10, 0, 10])],
)
def test_ticks_are_round_numbers_within(low, high, expected):
    assert ticks(low, high) == expected
