import pytest

from tacache.errors import HostError
from tacache.studio import words
from tacache.studio.jobs import Progress, StoppedError, Waiting
from tacache.studio.trying import Wish, attempt
from tests.studio.test_choices import fitted

MARKUP = "<img src=x onerror=alert(1)>\"'${alert(1)}{{alert(1)}}"


def test_no_word_from_outside_is_markup(studio, hearing):
    wish = Wish(MARKUP, 0, 4, "linear")
    made = attempt(studio.known(studio.session("me")), studio.rivals, wish, hearing())
    for html in (
        words.said(MARKUP),
        words.refused(HostError(MARKUP)),
        words.refused(RuntimeError(MARKUP)),
        words.progress(Progress(MARKUP, 1, 2)),
        words.progress(Progress(MARKUP, 1, None)),
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
        (Progress("full steps", 7, 50), "Stopped after 7 of 50 steps (full steps)."),
        (Progress("tuning", 7, None), "Stopped after 7 steps (tuning)."),
    ],
)
def test_a_stop_says_how_far_it_came(latest, sentence):
    assert sentence in words.outcome(StoppedError("stopped"), latest)


def test_who_waits_is_told_how_many_are_before(studio):
    assert "one other job" in words.progress(Waiting(1))
    assert "2 other jobs" in words.progress(Waiting(2))


def test_facts_of_a_certified_plan(studio, hearing, model):
    wish = Wish("a fox", 0, 4, "flow")
    studio.shelf.put(fitted(studio.model, 4, flow=True))
    made = attempt(studio.known(studio.session("me")), studio.rivals, wish, hearing())
    assert made.equivalent_steps == 21
    assert "equivalent steps</th><td>21</td>" in words.facts(made)
    said = words.certified(made.plan)
    assert "On 2 held-out samples it drifts by 0.100, and reaches 30.0 dB." in said
    assert "4 evaluations, as near to the flow as 21 Euler steps." in said


def test_the_stage_has_room_for_both(studio):
    empty = words.stage({}, "", 1)
    assert empty.count("<figure") == 2
