"""README is short, answers what a visitor asks first, and its figures are those of the records."""

import gzip
import json
import re
from pathlib import Path
from statistics import mean

import pytest

from tests.docs import readme

ROOT = Path(__file__).parents[2]
TEXT = readme.README.read_text(encoding="utf-8")
FIRST = " ".join(" ".join(TEXT.splitlines()[:40]).split())


def test_readme_is_short():
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize(
    "words",
    [
        "image and video generators several times faster",  # what it is
        "How fast:",
        "At what loss:",
        "FLUX, Wan, Qwen-Image, SD3.5, BAGEL",  # on which models
        "$ pip install",  # what to type
        "accelerate(pipe, speedup=4)",
        "docs/figures/demo-tiny-flux.png",
        "Fidelity on the real weights of FLUX and Wan is **not** measured",
    ],
)
def test_the_first_screen_says(words):
    assert words in FIRST


def test_the_table_is_what_was_measured():
    found = readme.TABLE.search(TEXT)
    assert found
    assert found[0] == readme.table() + "\n", "python -m tests.docs.readme renews it"
    near = readme.FLOW_TABLE.search(TEXT)
    assert near
    assert near[0] == readme.flow_table() + "\n", "python -m tests.docs.readme renews it"


def test_the_loss_on_the_first_screen_is_what_was_measured():
    psnr = readme.means()
    with gzip.open(ROOT / "benchmarks/results/flow.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file if '"instant"' in line]
    at_once = [one["to_full"]["metrics"]["psnr"] for one in found if one["evaluations"] == 13]
    assert len(at_once) == 24
    assert f"{mean(at_once):.1f} dB PSNR to the 50-step picture by an instant plan" in FIRST
    assert f"{psnr['fitted', 13]:.1f} dB by a plan that is fitted to the model" in FIRST
    assert f"{psnr['tasu', 13]:.1f} dB by the paper's rule" in FIRST


@pytest.mark.parametrize(("model", "digits"), [("flux", 2), ("wan", 1)])
def test_the_speed_on_the_first_screen_is_what_was_measured(model, digits):
    lines = (readme.RESULTS / "fullsize.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [one for one in map(json.loads, lines) if one["what"] == "run" and "error" not in one]
    here = [one for one in runs if (one["model"], one["mode"]) == (model, "eager")]
    full = next(one for one in here if one["method"] == "full")["loop_seconds"]["median"]
    ours = next(one for one in here if (one["method"], one["budget"]) == ("fitted", 13))
    ours = ours["loop_seconds"]["median"]
    assert f"{full:.{digits}f} s to {ours:.{digits}f} s" in FIRST
    assert f"{full / ours:.1f} times" in FIRST


@pytest.mark.parametrize(
    ("badge", "field", "words"),
    [("python", "requires-python", "{} or newer"), ("licence", "license", "{}")],
)
def test_a_badge_says_what_the_package_says(badge, field, words):
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    value = re.search(rf'^{field} = "(?:>=)?(.*)"$', package, flags=re.MULTILINE)
    assert value
    shown = (ROOT / f"docs/figures/badge-{badge}.svg").read_text(encoding="utf-8")
    assert words.format(value[1]) in shown
