import pytest
from tests.studio.test_choices import fitted

from tacache.errors import HostError
from tacache.studio import words
from tacache.studio.attempts import PictureOptions, attempt
from tacache.studio.turns import JobProgress, StoppedError, Waiting

MARKUP = "<img src=x onerror=alert(1)>\"'${alert(1)}{{alert(1)}}"


def test_no_word_from_outside_is_markup(studio, hearing):
    options = PictureOptions(MARKUP, 0, 4, "linear")
    made = attempt(studio.known(studio.session("me")), options, hearing())
    for html in (
        words.said(MARKUP),
        words.refused(HostError(MARKUP)),
        words.refused(RuntimeError(MARKUP)),
        words.progress(JobProgress(MARKUP, 1, 2)),
        words.progress(JobProgress(MARKUP, 1, None)),
        words.stage({"accelerated": made.fast}, MARKUP, 16),
        words.compared(made, 16),
        words.rival(MARKUP, 3, 4),
    ):
        assert "<img src=x" not in html
        assert "\"'" not in html


def test_errors_are_sentences():
    assert ">There is none: give one.<" in words.refused(HostError("there is none: give one"))
    assert ">That failed: out of memory.<" in words.refused(RuntimeError("out of memory\nmore"))


@pytest.mark.parametrize(
    ("latest", "sentence"),
    [
        (None, "Stopped before the first step."),
        (Waiting(1), "Stopped before the first step."),
        (JobProgress("full steps", 7, 50), "Stopped after 7 of 50 steps (full steps)."),
        (JobProgress("tuning", 7, None), "Stopped after 7 steps (tuning)."),
    ],
)
def test_a_stop_says_how_far_it_came(latest, sentence):
    assert sentence in words.outcome(StoppedError("stopped"), latest)


def test_who_waits_is_told_how_many_are_before(studio):
    assert "one other job" in words.progress(Waiting(1))
    assert "2 other jobs" in words.progress(Waiting(2))


def test_facts_of_a_certified_plan(studio, hearing, model, shelf):
    options = PictureOptions("a fox", 0, 4, "flow")
    shelf.put(fitted(studio.model, 4, flow=True))
    made = attempt(studio.known(studio.session("me")), options, hearing())
    assert made.equivalent_steps == 21
    assert "equivalent steps</th><td>21</td>" in words.facts(made)
    said = words.about(made.plan)
    assert "measured on 2 held-out samples: 30.0 dB to the full run in the mean" in said
    assert "The worst was not measured." in said
    assert "as near to the flow as 21 Euler steps." in said
    figures = {"p5_psnr": 27.5, "worst_psnr": 26.0}
    certificate = made.plan.certificate.model_copy(update=figures)
    said = words.about(made.plan.model_copy(update={"certificate": certificate}))
    assert "5th percentile 27.5 dB, worst 26.0 dB." in said
    assert said.count("pin hollow") == 4  # two marks, and both in the legend


def test_the_stage_has_room_for_both(studio):
    empty = words.stage({}, "", 1)
    assert empty.count("<figure") == 2
