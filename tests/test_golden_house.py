"""Moving rooms changes no number: what the golden files hold comes out as it did."""

import pytest
from tests.golden_house import PARTS, differences, golden

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", PARTS)
def test_a_part_comes_out_as_its_golden_file_says(part, tmp_path):
    assert not differences(PARTS[part](tmp_path), golden(part))


def test_a_changed_number_is_found():
    changed = golden("house")
    plan = next(iter(changed["plans"].values()))
    plan["weights"][1][0] += 1e-3
    plan["anchors"][1] += 1
    assert len(differences(changed, golden("house"))) == 2


def test_a_changed_bit_is_found_where_the_machine_is_the_same():
    changed = golden("pictures")
    latents = changed["fitted: latents"]
    (machine,) = latents["bits"]
    latents["bits"][machine] = "0"
    assert len(differences(changed, golden("pictures"))) == 1
    latents["bits"] = {"another machine": "0"}
    assert not differences(changed, golden("pictures"))
    latents["some"][1] += 1e-3
    assert len(differences(changed, golden("pictures"))) == 1
