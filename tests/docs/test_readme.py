"""README is short and answers what a visitor asks first; its tables are those of the records."""

import re
from pathlib import Path

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
        "The same picture: how fast? The same quality: how fast?",
        "| 28 steps |",  # how fast at my steps
        "at least 35 dB PSNR",  # at what loss
        "FLUX, Wan, Qwen-Image, SD3.5, BAGEL",  # on which models
        "$ pip install",  # what to type
        "accelerate(pipe, speedup=4)",
        "docs/figures/demo-tiny-flux.png",
    ],
)
def test_the_first_screen_says(words):
    assert words in FIRST


def test_it_says_what_was_not_measured():
    assert "Fidelity on the real weights of FLUX and Wan is not measured here" in TEXT


@pytest.mark.slow
@pytest.mark.parametrize("name", readme.TABLES)
def test_a_table_is_what_was_measured(name):
    page, table_of = readme.TABLES[name]
    written = readme.between(name).search(page.read_text(encoding="utf-8"))
    assert written
    assert written[0] == table_of() + "\n", "python -m tests.docs.readme renews it"


@pytest.mark.parametrize("workflow", ["tests", "docs"])
def test_a_badge_of_a_workflow_names_one_that_there_is(workflow):
    assert f"../../actions/workflows/{workflow}.yml/badge.svg" in TEXT
    assert (ROOT / f".github/workflows/{workflow}.yml").is_file()


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


def test_the_budgets_of_the_guide_are_what_was_measured():
    page = (ROOT / "docs/how-to/choose-a-budget.md").read_text(encoding="utf-8")
    flux, wan = readme.nearness("flow")[1], readme.nearness("wan-flow")[1]
    for budget in (25, 17, 13, 10):
        near = [f"{steps(budget):.0f} Euler steps" for steps in (flux, wan)]
        assert f"| {budget} | {' | '.join(near)} |" in page
    assert min(flux(17), wan(17)) > 50
    assert min(flux(13), wan(13)) > 28
