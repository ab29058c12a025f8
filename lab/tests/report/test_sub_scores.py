"""Sub-scores: a table of their own, a mean over kinds, and how many samples they are of."""

from __future__ import annotations

import csv
import io
import math
from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.tests.report.test_report_page import data
from tests.page_tags import PageTags
from tests.report_support import STEPS, judged, record

from tacache.prompts import Sample
from tacache_lab.following import TAGS, score
from tacache_lab.report import readme_table, study
from tacache_lab.report.confidence import student_t
from tacache_lab.report.quantities import in_order, quantity
from tacache_lab.report.report_page import page, section
from tacache_lab.report.shelves import Shelves, shelves
from tacache_lab.report.sub_scores import kind_notes, kind_tables, overall
from tacache_lab.report.tables import comma_separated, markdown

KINDS = ("position", "counting", "counting", "counting", None)  # of five prompts
NONE = "not run: no answers were given"
RIGHT = {"full": (1, 1, 1, 1), "fitted": (1, 1, 1, 0), "fewer": (0, 1, 1, 0)}


def scores(kind: str | None, right: float) -> dict[str, float | str]:
    return {"following": NONE} if kind is None else {"following": right, f"following/{kind}": right}


def benchmark():
    found = []
    for method, verdicts in RIGHT.items():
        for i, (kind, right) in enumerate(zip(KINDS, (*verdicts, 0), strict=True)):
            changes = {"prompt": f"prompt {i}", "scores": scores(kind, float(right))}
            if method == "full":
                found.append(record("full", STEPS, **changes))
            else:
                made = judged(method, 4, 0, 30.0)
                found.append(made.model_copy(update=changes))
    return found


@pytest.fixture(scope="module")
def made():
    return study("main", benchmark())


def test_kinds_have_a_table_of_their_own(made):
    text = markdown(made)
    columns = "| method | evaluations | all prompts | overall | counting | position |"
    assert f"## Prompt following\n\n{columns}\n" in text
    assert "| full | 8 | 1.000 | 1.000 | 1.000 | 1.000 |" in text
    assert "| fitted | 4 | **0.750 ± 0.796** | **0.833** | 0.667 | **1.000** |" in text
    assert (
        "| fewer | 4 | <ins>0.500 ± 0.919</ins> | <ins>0.333</ins> | 0.667 | <ins>0.000</ins> |"
        in text
    )
    budget = text.partition("## 4 evaluations")[2].partition("##")[0]
    assert "Prompt following" in budget
    assert "counting" not in budget


def test_notes_say_of_how_many_samples(made):
    assert kind_notes(made) == [
        "Prompt following: of 4 of 5 samples (3 counting, 1 position); overall is the mean over "
        "these kinds.",
        f"Prompt following, all other samples: {NONE}.",
    ]
    assert all(f"- {note}" in markdown(made) for note in kind_notes(made))


def test_csv_and_documents_have_all_of_them(made):
    lines = list(csv.DictReader(io.StringIO(comma_separated(made))))
    fitted = next(line for line in lines if line["method"] == "fitted")
    assert float(fitted["score.following"]) == 0.75
    assert float(fitted["score.following/overall"]) == pytest.approx(5 / 6)
    assert float(fitted["score.following/counting"]) == pytest.approx(2 / 3)
    assert "| Prompt following: overall | 4 |" in readme_table(made, ["score.following/overall"])


def test_the_page_has_the_table_and_plots_no_sub_score(made):
    text = page([section(made, Shelves([], 0, 0), {})])
    assert PageTags(text).open == []
    assert 'data-title="Prompt following"' in text
    titles = {one["title"] for one in data(text)["quantities"]}
    assert {"Prompt following", "Prompt following: overall"} <= titles
    assert "Prompt following: counting" not in titles


def test_a_picture_says_whether_it_follows_its_prompt(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    one = record("full", STEPS, picture="a.png", scores=scores("counting", 1.0))
    assert (
        shelves([one], tmp_path, 10**6)
        .shown[0]
        .pictures[0]
        .facts.endswith("Prompt following 1.000")
    )


def test_a_study_without_sub_scores_has_no_such_table():
    plain = study("main", [record("full", STEPS, scores={"geneval/counting": 1.0})])
    assert kind_tables(plain) == kind_notes(plain) == []
    assert "geneval/counting" in markdown(plain)  # of an export, as it always was


def test_sub_scores_stand_after_their_metric_in_the_order_of_kinds():
    names = [f"score.following/{kind}" for kind in (*reversed(TAGS), "overall")]
    found = [one.name for one in in_order([*names, "score.following", "score.other", "seconds"])]
    kinds = [f"score.following/{kind}" for kind in ("overall", *TAGS)]
    assert found == ["score.following", *kinds, "score.other", "seconds"]
    assert quantity("score.following/color_attr").title == "Prompt following: color attr"
    assert quantity("score.following/color_attr").better == "higher"


@given(st.lists(st.tuples(st.sampled_from(TAGS), st.booleans()), min_size=1, max_size=30))
def test_the_mean_over_kinds_is_the_models_own_score(results):
    samples: dict[str, dict[Sample, float]] = {"full.psnr": {Sample("x", 0): 30.0}}
    for i, (tag, right) in enumerate(results):
        samples.setdefault(f"score.following/{tag}", {})[Sample(str(i), 0)] = float(right)
    (found,) = overall(samples).values()
    assert found.mean == pytest.approx(score(results)["overall"])
    assert found.samples == len(results)


def test_its_margin_is_that_of_a_stratified_sample():
    values = {"counting": (1.0, 0.0, 1.0, 1.0), "position": (0.0, 1.0)}
    samples = {
        f"score.following/{kind}": {Sample(f"{kind} {i}", 0): x for i, x in enumerate(some)}
        for kind, some in values.items()
    }
    found = overall(samples)["score.following/overall"]
    error = math.sqrt(sum(variance(some) / len(some) for some in values.values())) / 2
    assert found.margin == pytest.approx(student_t(4) * error)
