"""Frontiers: their file, their order and the choice from them."""

from pathlib import Path

import pytest
from rich.console import Console
from tests.support import fitted, tasu

from tacache import PlanError
from tacache.cli.render import frontier_view, plan_view
from tacache.plan import Certificate
from tacache.storage.frontier import Frontier, Point, point_of

GOLDEN = Path(__file__).parents[1] / "golden" / "v1.frontier.json"
PINNED = Frontier(
    points=(
        Point(evaluations=2, speedup=2.0, drift=0.25, psnr=31.5, plan="2.plan.json"),
        Point(evaluations=4, speedup=1.0, drift=0.0, psnr=None, plan="4.plan.json"),
    )
)
CERTIFICATE = Certificate(
    held_out=4, drift=0.125, fit_drift=0.0625, psnr=35.5, evaluations_spent=1234, date="2026-02-01"
)


def point(evaluations, psnr):
    return Point(evaluations=evaluations, speedup=50 / evaluations, drift=0.1, psnr=psnr, plan="p")


def shown(view):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    return console.export_text()


def test_the_golden_file_is_written_byte_for_byte(tmp_path):
    assert PINNED.to_json().encode() == GOLDEN.read_bytes()
    assert Frontier.load(GOLDEN) == PINNED
    assert PINNED.save(tmp_path / "f.json").read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize("budgets", [(), (3, 2), (2, 2)])
def test_points_rise_and_are_one_a_budget(budgets):
    with pytest.raises(PlanError, match="one point a budget, rising"):
        Frontier(points=tuple(point(k, 30.0) for k in budgets))


def test_a_frontier_of_nothing_is_an_error_in_a_file(tmp_path):
    path = tmp_path / "frontier.json"
    path.write_text(GOLDEN.read_text().replace('"drift"', '"drfit"', 1))
    with pytest.raises(PlanError, match=r"unknown field .*drfit"):
        Frontier.load(path)
    path.write_text(GOLDEN.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(PlanError, match="version 2"):
        Frontier.load(path)


def test_a_point_has_its_plans_figures():
    plan = fitted(certificate=CERTIFICATE)
    found = point_of(plan, "2.plan.json")
    expected = (plan.evaluations, plan.speedup, 0.125, 35.5, "2.plan.json")
    assert (found.evaluations, found.speedup, found.drift, found.psnr, found.plan) == expected
    with pytest.raises(PlanError, match="only a fitted plan with a certificate"):
        point_of(tasu(), "x")


def test_views_show_the_figures():
    text = shown(frontier_view(PINNED))
    assert ["2", "2.00x", "31.50", "0.2500", "2.plan.json"] in [s.split() for s in text.split("\n")]
    assert ["4", "1.00x", "-", "0.0000", "4.plan.json"] in [s.split() for s in text.split("\n")]
    text = shown(plan_view(fitted(certificate=CERTIFICATE)))
    for part in (
        "PSNR 35.50 dB, drift 0.1250 on 4 held-out samples",
        "drift 0.0625",
        "1234 evaluations, 2026-02-01",
    ):
        assert part in text
    without = shown(plan_view(fitted(certificate=CERTIFICATE.model_copy(update={"psnr": None}))))
    assert "PSNR" not in without
