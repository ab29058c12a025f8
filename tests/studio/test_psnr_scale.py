from xml.etree import ElementTree

import pytest

from tacache.studio.psnr_scale import ZONES, Mark, in_words, psnr_scale


@pytest.mark.parametrize(
    ("psnr", "words"),
    [
        (999.0, "no difference to see"),
        (40.0, "no difference to see"),
        (39.9, "hardly anybody sees a difference"),
        (30.0, "details differ"),
        (29.9, "parts of it differ"),
        (24.9, "another picture"),
        (-3.0, "another picture"),
    ],
)
def test_a_psnr_is_said_in_words(psnr, words):
    assert in_words(psnr) == words


def test_the_scale_has_marks_and_says_what_its_parts_mean():
    marks = [Mark("mean", 32.5), Mark("5th percentile", 12.0, hollow=True)]
    figure = ElementTree.fromstring(psnr_scale(marks))
    arrows = figure.findall("div/b")
    assert [arrow.get("class") for arrow in arrows] == ["pin", "pin hollow"]
    assert [arrow.get("style") for arrow in arrows] == ["left:50.0%", "left:0.0%"]
    assert len(figure.findall("div/i")) == len(ZONES)
    entries = ["".join(span.itertext()) for span in figure.findall("p/span")]
    assert entries[:2] == ["mean 32.5 dB", "5th percentile 12.0 dB"]
    assert entries[2:] == [f"{zone.name}: {zone.words}" for zone in ZONES]
    assert len(ElementTree.fromstring(psnr_scale(marks, explained=False)).findall("p/span")) == 2
    assert "mean 32.5 dB: details differ" in figure.find("div").get("aria-label")
