"""A visitor's two questions, and which plan of ours is nearer: figures over more prompts."""

from tests.demo_support import budget, demo_of

from tacache_lab.demo.measured import Measured, equivalent_steps, measured_for
from tacache_lab.demo.questions import about_the_mean, instant_ahead, questions
from tacache_lab.demo.record import DemoPicture

TAIL = {"prompts": 24, "p5": 26.0}


def known(rule, evaluations, psnr, **facts):
    return Measured(rule=rule, evaluations=evaluations, psnr=psnr, **{**TAIL, **facts})


def picture(rule, psnr):
    facts = {"prompt": "a cat", "evaluations": 13, "file": "f", "seconds": 1.0}
    return DemoPicture(rule=rule, psnr=psnr, **facts)


def made_of(*measured, instant=34.0, fitted=32.0, **more):
    rows = [budget("linear", 13, instant), budget("fitted", 13, fitted)]
    pictures = (picture("linear", instant), picture("fitted", fitted))
    return demo_of(*rows).model_copy(update={"measured": measured, "pictures": pictures, **more})


MEANS = (known("fitted", 13, 40.0), known("linear", 13, 38.1, p5=30.4))


def test_the_same_picture_takes_the_fewest_evaluations_that_keep_enough_over_more_prompts():
    rows = (*MEANS, known("fitted", 10, 35.4), known("linear", 10, 31.0), known("plain", 10, 27.9))
    made = made_of(*rows, known("tasu", 7, 50.0))
    ((steps, answer),) = questions(made)[0].answers
    assert steps == "50 steps"
    assert answer.startswith("10 evaluations, 5.0 times fewer: 35.4 dB, 5th percentile 26.0 dB")
    assert answer.endswith("10 plain steps: 27.9 dB.")
    assert questions(made)[0].meaning.endswith("in the mean of 24 prompts.")
    assert questions(made_of())[0].answers == [("50 steps", "not measured.")]


def test_the_same_quality_takes_the_fewest_evaluations_as_near_to_the_flow():
    made = made_of(equivalent_steps={10: 27.0, 17: 77.2, 25: 187.0})
    assert questions(made)[1].answers[0][1].startswith("17 evaluations, 2.9 times fewer: as near")
    shorter = made.model_copy(update={"steps": 20, "model": "m"})
    both = made.model_copy(update={"others": (shorter,)})
    assert [steps for steps, _ in questions(both)[1].answers] == ["50 steps", "20 steps"]
    assert questions(both)[1].answers[1][1].startswith("10 evaluations, 2.0 times fewer")


def test_where_instant_is_ahead_the_mean_over_more_prompts_stands_beside_it():
    (remark,) = instant_ahead(made_of(*MEANS), "a cat").values()
    assert "34.0 to 32.0 dB" in remark
    assert "13 evaluations have 40.0 dB fitted and 38.1 dB instant" in remark
    assert "26.0 and 30.4 dB. The instant plan is nearer on the worst prompts." in remark
    assert instant_ahead(made_of(*MEANS, fitted=36.0), "a cat") == {}
    assert list(instant_ahead(made_of(), "a cat")) == [13]
    assert about_the_mean(made_of(), 13) is None


def test_a_certificate_stands_in_for_what_no_benchmark_measured():
    from tacache import models

    plan = models.embedded("tiny-flux-turbo").plan(4)
    (row,) = measured_for("another", 8, [plan])
    assert row.evaluations == 4
    assert (row.prompts, row.psnr) == (plan.certificate.held_out, plan.certificate.psnr)
    assert measured_for("another", 8, []) == ()
    assert equivalent_steps("another") == {}
