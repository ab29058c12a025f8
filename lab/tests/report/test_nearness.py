"""Nearness to the flow in Euler steps, from records alone."""

import pytest
from matplotlib.figure import Figure
from tests.report_support import PROMPTS, fidelity, record

from tacache_lab.bench.records import Fidelity, RecordError
from tacache_lab.report import readme_table, study
from tacache_lab.report.figures import FIGURES
from tacache_lab.report.nearness import EQUIVALENT
from tacache_lab.report.report_page import section
from tacache_lab.report.shelves import Shelves
from tacache_lab.report.tables import comma_separated, markdown

STEPS = 50
# an Euler run of n steps ends 1 / n from the flow
DISTANCES = {
    ("full", STEPS): 1 / STEPS, ("fewer", 13): 1 / 13, ("euler:100", None): 0.01,
    ("euler:400", None): 0.0025, ("fitted-flow", 13): 1 / 62, ("ab2", 13): 1 / 30,
}  # fmt: skip


def flow_record(method, evaluations, prompt, distance, **changes):
    found = Fidelity(drift=distance, metrics={"psnr": 30 - 10 * distance})
    return record(
        method, evaluations, prompt, to_fine=found, to_full=fidelity(99.0 * distance),
        steps=STEPS, fine=200, reference="flow", **changes,
    )  # fmt: skip


def flow_records(distances=DISTANCES):
    return [
        flow_record(method, evaluations, prompt, distance)
        for (method, evaluations), distance in distances.items()
        for prompt in PROMPTS
    ]


@pytest.fixture(scope="module")
def made():
    return study("flow", flow_records())


def steps_of(found, method):
    (row,) = [row for row in (*found.references, *found.rows) if row.method == method]
    return row.values[EQUIVALENT].mean


def test_a_distance_is_told_in_euler_steps(made):
    assert steps_of(made, "fitted-flow") == pytest.approx(62)
    assert steps_of(made, "ab2") == pytest.approx(30)
    for method, steps in (("full", 50), ("fewer", 13), ("euler:100", 100), ("euler:400", 400)):
        assert steps_of(made, method) == pytest.approx(steps)


@pytest.mark.parametrize(("left_out", "steps"), [(("full", STEPS), 50), (("euler:100", None), 100)])
def test_a_count_that_was_not_measured_comes_out_all_the_same(left_out, steps):
    """An Euler run that is asked about is not among those that tell."""
    distances = {key: d for key, d in DISTANCES.items() if key != left_out}
    renamed = {**distances, ("some", 13): DISTANCES[left_out]}
    assert steps_of(study("flow", flow_records(renamed)), "some") == pytest.approx(steps, abs=3)


def test_methods_are_ranked_by_the_flow(made):
    (table,) = [table for table in made.tables if table.evaluations == 13]
    assert [row.method for row in table.rows] == ["fitted-flow", "ab2", "fewer"]
    assert table.rows[0].ranks["fine.psnr"] == 1
    assert made.judged_by == "fine"


def test_tables_say_it_in_a_column_and_a_sentence(made):
    text = markdown(made)
    assert "fitted-flow: 13 evaluations, as near to the flow as 62 Euler steps" in text
    assert "| PSNR to the flow (dB) |" in text
    assert "| equivalent Euler steps |" in text
    assert "Euler's order is continued" in text
    assert "fine.equivalent-steps" in comma_separated(made).splitlines()[0]
    table = readme_table(made, ["fine.equivalent-steps"])
    assert table.startswith("| equivalent Euler steps | 13 |")
    assert "| fitted-flow | **62** |" in table
    assert readme_table(made).startswith("| PSNR to the flow (dB) | 13 |")


def test_the_page_and_figures_are_of_the_flow(made):
    shown = section(made, Shelves([], 0, 0), {})
    grid = shown.grids[0]
    assert [title for title, _ in grid.groups] == ["to the flow", "to 50 steps", "cost"]
    assert "as near to the flow as 62 Euler steps" in grid.leads[0]
    titles = [panel.get_title() for panel in FIGURES["pareto"](made, Figure).axes]
    assert any(title.startswith("equivalent Euler steps") for title in titles)
    assert any(title.startswith("PSNR to the flow") for title in titles)
    assert FIGURES["bars-psnr"](made, Figure) is not None
    assert FIGURES["bars-psnr-fine"](made, Figure) is None


def test_a_reference_spends_what_it_needs():
    """The end of the flow's grid is graded, which takes more evaluations than it has steps."""
    fine = record("fine", 200, steps=STEPS, fine=200, reference="flow", spent=240)
    found = study("flow", [*flow_records(), fine])
    assert not any(row.over for row in found.references)


def test_only_euler_runs_of_all_samples_tell():
    distances = {key: d for key, d in DISTANCES.items() if key[0] in ("full", "ab2")}
    some = flow_record("euler:400", None, PROMPTS[0], 0.5)  # of one sample only
    found = study("flow", [*flow_records(distances), some])
    assert steps_of(found, "ab2") == pytest.approx(30)


def test_without_the_flow_nothing_is_said():
    found = study("main", [record("ab2", 4, to_full=fidelity(30.0), to_fine=fidelity(28.0))])
    assert not found.has(EQUIVALENT)
    assert found.judged_by == "full"
    mixed = [*flow_records(), record("ab2", 4, steps=STEPS, fine=200)]
    with pytest.raises(RecordError, match="mixes models, calls or references"):
        study("flow", mixed)
