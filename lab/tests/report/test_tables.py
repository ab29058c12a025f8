"""Tables as Markdown and CSV, and tables inside other documents."""

from __future__ import annotations

import csv
import io

import pytest
from tests.report_support import PROMPTS, REASON, bench, fidelity, judged, record, traced, undone

from tacache.errors import TACacheError
from tacache_lab.bench.records import Fidelity
from tacache_lab.report import fill, readme_table, study
from tacache_lab.report.confidence import Estimate
from tacache_lab.report.quantities import quantity
from tacache_lab.report.readme import marked
from tacache_lab.report.summary import Study
from tacache_lab.report.tables import cell, comma_separated, markdown, notes, number

START, END = "<!-- tacache report: main -->", "<!-- end -->"


@pytest.fixture(scope="module")
def main():
    return study("main", bench())


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {start} |")]


@pytest.mark.parametrize(
    ("name", "mean", "margin", "text"),
    [
        ("full.psnr", 31.257, 1.5, "31.26 ± 1.50"),
        ("full.ssim", 0.98765, 0.00011, "0.9877 ± 0.0001"),
        ("full.psnr", 100.0, 0.0, "identical"),
        ("evaluations", 13.0, 0.0, "13"),
        ("evaluations", 13.25, 0.5, "13.2 ± 0.5"),
        ("seconds", 2.0, None, "2.00"),
    ],
)
def test_numbers_are_written_as_exact_as_they_are(name, mean, margin, text):
    assert number(Estimate(mean=mean, margin=margin, samples=3), quantity(name)) == text


def test_the_best_is_bold_and_the_second_underlined(main):
    text = markdown(main)
    first, second = lines(text, "fitted")[0], lines(text, "tasu")[0]
    assert "| **39.10 ± 2.73** |" in first
    assert "| <ins>36.10 ± 2.73</ins> |" in second
    assert "**" not in lines(text, "fewer")[0].split("|")[2]


def test_what_went_wrong_stands_beside(main):
    text = markdown(main)
    assert f"| unreachable: {REASON} |" in lines(text, "teacache")[1]
    assert "failed for 1 of 3 samples: RuntimeError: no memory" in lines(text, "ab2")[0]
    assert "- LPIPS (AlexNet): not run: no weights." in text


def test_markdown_says_what_was_run_and_who_leads(main):
    text = markdown(main)
    assert text.startswith("# main\n\nsome-flux, 8 steps, height 32; 3 prompts; cpu: x86_64;")
    assert "- PSNR: fitted before tasu by 3.00" in text
    assert "PSNR to 32 steps (dB)" in text
    assert "## Methods with a budget of their own" in text
    assert "Student's t" in text


def test_a_lead_that_may_be_chance_says_so():
    values = {"fewer": (30.0, 36.0, 32.0), "tasu": (31.0, 32.0, 34.0)}
    records = [
        judged(m, 4, n, psnr - n) for m, some in values.items() for n, psnr in enumerate(some)
    ]
    assert "which may be chance" in markdown(study("x", records))


def test_notes_are_of_what_is_there(main):
    assert not [note for note in notes(main) if "100 dB" in note or "shared the machine" in note]
    same = [record("tasu", 4, to_full=fidelity(999.0), processes=2)]
    found = notes(study("x", same))
    assert [note for note in found if "100 dB" in note]
    assert "2 processes shared the work while times were taken." in found


def test_times_of_a_shared_device_are_marked_and_not_ranked():
    def of(**more: int) -> Study:
        named = (("tasu", 30.0), ("fewer", 28.0))
        return study("x", [judged(m, 4, n, psnr, **more) for m, psnr in named for n in range(3)])

    alone, apart = of(), of(processes=8, processes_per_device=1)
    for one in (alone, apart):
        assert "| time (s) |" in markdown(one)
        assert one.rows[0].ranks["seconds"] == 1
        assert not [note for note in notes(one) if "not comparable" in note]
    assert "8 processes shared the work while times were taken." in notes(apart)
    shared = of(processes=8, processes_per_device=4)
    assert "| time (s) \N{DOUBLE DAGGER} |" in markdown(shared)
    assert "seconds" not in shared.rows[0].ranks
    assert shared.rows[0].ranks["full.psnr"] == 1
    assert [note for note in notes(shared) if "not comparable, and not ranked" in note]


def test_every_row_of_a_table_has_all_cells(main):
    for part in markdown(main).split("\n\n"):
        if part.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in part.splitlines()}) == 1


def test_a_bar_in_a_reason_breaks_no_table():
    text = markdown(study("x", [undone("vde", 4, "a", "failed", "either | or\nmore")]))
    assert "either \\| or more |" in text


def test_the_alignment_of_cached_steps_has_a_table():
    text = markdown(study("drift", traced()))
    assert "| tasu | 4 | 9 | 0.500 | 100.0 % | 0.500 | 0.500 | 0.500 |" in text
    assert "velocity drift, cached" in text


def test_csv_has_a_line_a_method_and_budget(main):
    found = list(csv.DictReader(io.StringIO(comma_separated(main))))
    assert len(found) == 2 + 5 + 5 + 1
    fitted = next(one for one in found if (one["method"], one["asked"]) == ("fitted", "4"))
    assert float(fitted["full.psnr"]) == pytest.approx(39.1)
    assert float(fitted["full.psnr.low"]) < 39.1 < float(fitted["full.psnr.high"])
    assert (fitted["full.psnr.rank"], fitted["done"]) == ("1", "3")
    gone = next(one for one in found if (one["method"], one["asked"]) == ("teacache", "2"))
    assert (gone["reason"], gone["full.psnr"], gone["unreachable"]) == (REASON, "", "3")


def test_no_cell_of_csv_is_a_formula():
    records = [record("=1+1", 4, to_full=fidelity(30.0)), record("@SUM(A1)", 4), record("a\x1b", 4)]
    found = csv.DictReader(io.StringIO(comma_separated(study("-x", records))))
    cells = [cell for row in found for cell in (row["study"], row["method"])]
    assert {"'-x", "'=1+1", "'@SUM(A1)", "a\\x1b"} == set(cells)


def test_a_methods_name_stays_in_its_cell_of_a_table():
    text = markdown(study("x", [record("a\n| b \x1b[31m", 4)]))
    assert "| a\\n\\| b \\x1b[31m |" in text


# --- inside other documents


def test_a_readme_table_has_methods_against_budgets(main):
    text = readme_table(main)
    assert text.startswith("| PSNR (dB) | 4 | 2 |\n| --- | ---: | ---: |\n| fitted | **39.10")
    assert lines(text, "teacache")[0].endswith("| - |")
    assert "magcache:flux" not in text
    assert "Means over 3 prompts" in text
    assert "- where a method has no such budget" in text


def test_below_psnr_stand_the_worst_pictures(main):
    text = readme_table(main)
    assert "| PSNR: 5th percentile (dB), share below 25 dB | 4 | 2 |" in text
    assert lines(text, "fitted")[1] == "| fitted | 38.11, 0 % | 36.11, 0 % |"
    assert lines(text, "teacache")[1].endswith("| - |")
    fine = readme_table(main, ["fine.psnr", "full.ssim"])
    assert "| PSNR to 32 steps: 5th percentile (dB), share below 25 dB | 4 | 2 |" in fine
    assert "SSIM: 5th" not in fine


def test_a_method_that_failed_throughout_says_so_in_the_readme():
    records = [judged("tasu", 4, 0, 30.0), undone("vde", 4, "a red fox", "failed", "no memory")]
    text = readme_table(study("x", [*records, judged("fewer", 2, 0, 20.0)]))
    assert lines(text, "vde") == ["| vde | failed |  |"] * 2  # below it are the worst pictures


def test_only_the_marked_part_is_replaced(main):
    text = f"# Title\n\n{START}\nstale\n{END}\n\n<!-- tacache report: other -->\nkept\n{END}\n"
    made = fill(text, {"main": main})
    assert made.startswith(f"# Title\n\n{START}\n\n| PSNR (dB) |")
    assert made.endswith(f"<!-- tacache report: other -->\nkept\n{END}\n")
    assert "stale" not in made
    assert fill(made, {"main": main}) == made
    assert marked(made) == ["main", "other"]


def test_other_numbers_make_another_document(main):
    made = fill(f"{START}\n{END}", {"main": main})
    other = study("main", [*bench(), judged("fitted", 4, 0, 10.0)])
    assert fill(made, {"main": other}) != made


def test_quantities_may_be_named(main):
    text = fill(f"<!-- tacache report: main fine.psnr speedup -->\n{END}", {"main": main})
    assert "| PSNR to 32 steps (dB) | 4 | 2 |" in text
    assert "| speedup (x) | 4 | 2 |" in text


def test_a_quantity_that_is_not_there_lists_those_that_are(main):
    with pytest.raises(TACacheError, match=r"no 'full.psrn': there are full.psnr, .*full.ssim"):
        readme_table(main, ["full.psrn"])
    with pytest.raises(TACacheError, match=r"no 'full\.psnr'"):
        readme_table(study("x", [record("full", 8)]))


def numbered(method, *values):
    return [
        record(method, 4, prompt, to_full=Fidelity(drift=0.1, metrics={"psnr": value}))
        for prompt, value in zip(PROMPTS, values, strict=True)
    ]


def test_only_those_with_the_same_samples_are_ranked():
    failed = "failed: it is not a number"
    table = study("x", [*numbered("a", 60.0, failed, failed), *numbered("b", 45.0, 20.0, 20.0)])
    ranks = {row.method: row.ranks for row in table.tables[0].rows}
    assert ranks["b"]["full.psnr"] == 1
    assert "full.psnr" not in ranks["a"]
    cells = {row.method: cell(row, quantity("full.psnr")) for row in table.tables[0].rows}
    assert cells["a"].text.endswith("(1 of 3)")
    assert "of" not in cells["b"].text
    assert not [lead for lead in table.tables[0].leads if lead.quantity == "full.psnr"]


def test_nothing_ranks_above_what_is_equal():
    found = study("x", [*numbered("a", 130.0, 130.0, 130.0), *numbered("b", 999.0, 999.0, 999.0)])
    assert {row.ranks["full.psnr"] for row in found.tables[0].rows} == {1}
    assert not found.tables[0].leads


def test_a_marker_without_an_end_takes_nothing_with_it(main):
    text = (
        "<!-- tacache report: main -->\n\nPROSE\n\n"
        "<!-- tacache report: main full.ssim -->\n<!-- end -->\n"
    )
    with pytest.raises(TACacheError, match="1 of 2 markers have no <!-- end -->"):
        fill(text, {"main": main})
