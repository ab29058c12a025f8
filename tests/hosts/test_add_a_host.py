"""The host of docs/how-to/add-a-host.md works as the page says."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacache.hosts import Request, generate
from tacache.prompts import Sample

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-host.md"


@pytest.mark.slow
def test_the_host_of_the_page_calibrates_fits_and_draws(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks[0].splitlines()) < 110
    page: dict[str, Any] = {}
    for block in blocks:
        exec(block, page)
    plan, host, call = page["plan"], page["ToyHost"](), page["call"]
    assert page["profile"].samples == 4
    assert (plan.evaluations, plan.steps, plan.origin.kind) == (4, 12, "toy")
    output = generate(host, Sample("abc", 9), Request(plan, call, compare=True), tmp_path / "a")
    assert output.evaluations == 4
    assert 25 < output.psnr < 100
    with host.full():
        full = host.draw(Sample("abc", 9), call)
    assert full.shape == (8, 8, 3)
    assert np.isfinite(full).all()
    with pytest.raises(page["tacache"].HostError):
        host.check({"steps": 3})
