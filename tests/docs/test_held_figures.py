"""README and the pages say what the records say, and every figure has a record or a reason."""

import pytest
from tests.docs import held_figures
from tests.docs.held_figures import Held, Unrecorded

SENTENCES = [Held("has {:.1f} dB at {:.2f} s", (40.04, 1.5))]
SAID = "It has 40.0 dB\nat 1.50 s."


@pytest.fixture
def unrecorded(monkeypatch):
    """The list of figures without a record has one rule, for this test."""
    monkeypatch.setattr(held_figures, "UNRECORDED", (Unrecorded("above 35 dB", "a rule"),))


@pytest.mark.slow
def test_the_pages_say_what_the_records_say(capsys):
    assert held_figures.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It has 41.0 dB at 1.50 s", "'has 41.0 dB at 1.50 s', but the records say"),
        (f"{SAID} And 7 dB more.", "page.md:2: 7 follows from no record"),
        (f"{SAID} It is 3x faster.", "page.md:2: 3 follows from no record"),
        (f"{SAID} It took 1,200 evaluations.", "page.md:2: 1,200 follows from no record"),
        ("Nothing", "no page says 'has {:.1f} dB at {:.2f} s'"),
    ],
)
@pytest.mark.usefixtures("unrecorded")
def test_a_fault_is_told(text, fault):
    faults = held_figures.check({"page.md": f"{text}\nabove\n35 dB"}, SENTENCES)
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.usefixtures("unrecorded")
def test_a_page_without_a_fault_and_a_rule_that_nothing_needs():
    table = "<!-- tacache report: main -->\n| 39.0 dB |\n<!-- end -->"
    assert held_figures.check({"page.md": f"{SAID}\n{table}\nabove 35 dB"}, SENTENCES) == []
    assert held_figures.check({"page.md": SAID}, SENTENCES) == ["no page says 'above 35 dB'"]


def test_a_number_with_decimals_is_a_figure_on_pages_of_results_only():
    text = "Python 3.10 has 50.9 here, `0.5` and SD3.5 not"
    assert [of[0] for of in held_figures.figures("README.md", text)] == ["3.10", "50.9"]
    assert held_figures.figures("docs/tutorials/flux.md", text) == []


def test_every_other_page_and_page_of_results_is_there():
    assert all((held_figures.ROOT / name).exists() for name in held_figures.OTHER_PAGES)
    assert all((held_figures.ROOT / name).exists() for name in held_figures.PAGES_OF_RESULTS)
