"""Figures in the documentation come from committed results files."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEPS = ("skip", "first skip", "skip, as in eq. 12-13", "skip, compiled")


def records(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("device", "torch"), [("x86_64", "2.13.0+cpu"), ("NVIDIA H200", "2.11.0+cu130")]
)
def test_the_cost_of_a_skip_is_what_was_measured(device, torch):
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert torch in text
    measured = [
        one for one in records("benchmarks/results/skip_cost.jsonl") if one["device"] == device
    ]
    assert {one["torch"] for one in measured} == {torch}
    by_row = {(one["latent"], one["dtype"], one["step"]): one for one in measured}
    rows = {(latent, dtype) for latent, dtype, _ in by_row}
    assert len(rows) == 4
    for latent, dtype in rows:
        found = [by_row[latent, dtype, step] for step in STEPS]
        cells = [f"{one['passes']:.1f} ({one['microseconds'] / 1000:.2f} ms)" for one in found]
        assert f"| {latent} | {dtype} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("path", ["README.md", *(p.as_posix() for p in ROOT.glob("docs/*.md"))])
def test_links_to_files_lead_somewhere(path):
    file = ROOT / path
    for target in re.findall(r"\]\(([^)#\s]+)", file.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{path}: {target}"
