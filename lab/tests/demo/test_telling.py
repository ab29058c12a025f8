"""A demo in words: full sentences with the record's own numbers."""

from tests.demo_support import FULL, budget, demo_of

from tacache.fidelity import CAP
from tacache_lab.demo import telling
from tacache_lab.demo.measured import Measured


def made_of(*rows, **more):
    return demo_of(*rows).model_copy(update={"prompts": ("a cat", "a fox"), **more})


def test_the_first_sentence_is_of_the_smallest_budget_that_keeps_enough():
    made = made_of(
        budget("fitted", 13, 40.0),
        budget("fitted", 10, 36.25),
        budget("tasu", 10, 29.1),
        budget("fitted", 7, 20.0),
    )
    assert telling.first_sentences(made) == [
        "With 10 instead of 50 evaluations of the model (ours, fitted), a picture takes 1.00 s "
        "instead of 5.00 s: 5.0 times faster. Its PSNR to the full-step picture is 36.2 dB (mean "
        "over 2 prompts).",
        "This is the smallest of these budgets that keeps 35 dB on these prompts.",
        "The paper's rule has 29.1 dB with as many evaluations.",
    ]


def test_where_no_budget_keeps_enough_that_is_said_first():
    made = made_of(budget("fitted", 13, 30.0), budget("fitted", 7, 20.0), prompts=("a cat",))
    first, second, third = telling.first_sentences(made)
    assert first == "None of these plans keeps 35 dB to the pictures of all 50 steps."
    assert second.startswith("With 13 instead of 50")
    assert second.endswith("Its PSNR to the full-step picture is 30.0 dB (one prompt).")
    assert third == "No other of ours is nearer."


def test_an_equal_picture_is_called_the_same():
    made = made_of(budget("fitted", 13, CAP))
    assert telling.first_sentences(made)[0].endswith(" It is the same picture.")
    assert telling.cells(made, made.budgets[1])[4] == "identical"


def test_full_steps_alone_are_told_as_such():
    assert telling.first_sentences(demo_of()) == ["No plan of ours was run, only all 50 steps."]


def test_every_rule_that_was_run_is_named_and_explained():
    made = made_of(budget("fitted", 13, 40.0), budget("tasu", 13, 30.0))
    first, second = telling.meanings(made)
    assert "the rule fitted" in first
    assert "The paper's rule (tasu)" in second
    assert telling.name_of(None) == "full steps"
    assert telling.name_of("reuse") == "reuse"


def test_the_table_says_times_fidelity_and_its_tail():
    row = budget("fitted", 10, 36.25).model_copy(update={"lowest": 24.5, "lost": 1, "ssim": 0.9})
    made = made_of(row, machine="one core of a 2-core machine")
    lines = telling.markdown(made).splitlines()
    assert lines[0].split(" | ")[1:3] == ["evaluations", "time"]
    assert lines[2] == "| full steps | 50 | 5.00 s | 1.00x |  |  |  |  |"
    fast = "| ours, fitted | 10 | 1.00 s | 5.00x | 36.25 dB | 24.50 dB | 0.9000 | 1 of 2 |"
    assert lines[3] == fast
    assert "one core of a 2-core machine" in lines[-1]
    assert "changes" not in lines[-1]


def test_clips_also_have_their_changes():
    row = budget("fitted", 10, 36.0).model_copy(update={"change_psnr": 41.0, "change_ssim": 0.97})
    made = made_of(row, fps=12)
    assert telling.headings(made)[-2:] == telling.OF_CHANGES
    assert telling.cells(made, row)[-2:] == ["41.00 dB", "0.9700"]
    assert "whether it moves alike" in telling.how_to_read(made)
    assert telling.cells(made, FULL)[-2:] == ["", ""]


def test_a_demo_of_several_parts_has_a_table_for_each():
    made = made_of(budget("fitted", 10, 36.0))
    both = made.model_copy(update={"others": (made.model_copy(update={"steps": 28}),)})
    parts = telling.markdown(both).split("\n\n")
    assert [parts[0], parts[2]] == ["**m, 50 steps**", "**m, 28 steps**"]
    assert parts[1] == parts[3] == telling.markdown(made).split("\n\n")[0]


def test_figures_over_more_prompts_are_columns_where_they_are_known():
    known = Measured(rule="fitted", evaluations=10, prompts=24, psnr=35.36, p5=26.1)
    made = made_of(budget("fitted", 10, 36.0), budget("tasu", 10, 30.0), measured=(known,))
    assert telling.headings(made)[-2:] == telling.OF_MORE
    assert telling.cells(made, made.budgets[1])[-2:] == ["35.36 dB", "26.10 dB"]
    assert telling.cells(made, made.budgets[2])[-2:] == ["", ""]
    assert "24 prompts" in telling.how_to_read(made)


def test_plain_steps_stand_beside_the_first_sentence():
    made = made_of(budget("fitted", 13, 40.0), budget("plain", 13, 31.0))
    assert telling.first_sentences(made)[-1] == "As many plain steps have 31.0 dB."
    assert telling.take_home(made).startswith("Nearly the same pictures from 13 evaluations")
    assert (
        telling.take_home(made_of(budget("fitted", 13, 30.0)))
        == "m: 50 steps beside fewer evaluations"
    )
