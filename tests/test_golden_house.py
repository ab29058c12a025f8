"""Moving rooms changes no number: fits and a benchmark of tiny-flux come out as they did."""

import json

from tests.golden_house import GOLDEN, differences, measured


def test_fits_and_records_of_tiny_flux_are_the_golden_ones(tmp_path):
    assert not differences(measured(tmp_path), json.loads(GOLDEN.read_text()))


def test_a_changed_number_is_found():
    golden = json.loads(GOLDEN.read_text())
    changed = json.loads(GOLDEN.read_text())
    plan = next(iter(changed["plans"].values()))
    plan["weights"][1][0] += 1e-3
    plan["anchors"][1] += 1
    assert len(differences(changed, golden)) == 2
