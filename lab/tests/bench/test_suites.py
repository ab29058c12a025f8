"""Every suite end to end on a tiny pipeline with two prompts: its records are all there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.tiny import PIPELINES
from typer.testing import CliRunner

from tacache.cli.command_line import app
from tacache.errors import TACacheError
from tacache.prompts import read_prompts
from tacache_lab.bench import BenchJob, Record, read_records
from tacache_lab.bench.named_methods import METHODS, resolve
from tacache_lab.bench.rivals import Rival
from tacache_lab.bench.suites import (
    BUDGETS,
    FAST,
    INSIDE,
    OWN,
    SUITES,
    check_names,
    expanded,
    within_steps,
    without_doubles,
)
from tacache_lab.commands.bench_command import _without_doubles
from tacache_lab.methods.budcache import BudCache
from tacache_lab.methods.tuning import SLACK

pytestmark = pytest.mark.slow

STEPS = 8
SIZE = ["--height", 32, "--width", 32, "--call", "max_sequence_length=32", "--steps", STEPS]


@pytest.fixture(scope="module")
def flux(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "flux"
    PIPELINES["flux"].build().save_pretrained(folder)
    (folder / "test.txt").write_text("a fox\na boat\n")
    (folder / "lessons.txt").write_text("\n".join(f"thing {i}" for i in range(60)) + "\n")
    return folder


def run_suite(flux: Path, out: Path, suite: str, *more: Any) -> list[Record]:
    prompts = ["--prompts", flux / "test.txt", "--calibration", flux / "lessons.txt"]
    asked = ["bench", flux, *SIZE, *prompts, "--suite", suite, "-o", out, "--json", *more]
    made = CliRunner().invoke(app, [str(one) for one in asked])
    assert made.exit_code == 0, made.output
    return read_records(out)


# why a rival inside the model may fail here: its package is not installed, two blocks are few
EXCUSES = ("tacache[peers]", "has none to skip", "this call has none")


def check_complete(records: list[Record], budgets: list[int], methods: set[str]) -> None:
    """A record for every method, budget and prompt; none has failed."""
    keys = {record.key for record in records}
    assert len(keys) == len(records)
    assert {record.method for record in records} == methods
    assert {record.prompt for record in records} == {"a fox", "a boat"}
    for method in methods - {"full", "fine"}:
        for prompt in ("a fox", "a boat"):
            found = [key for key in keys if (key.method, key.prompt) == (method, prompt)]
            asked = {key.evaluations for key in found}
            assert asked == set(budgets) or asked == {None}, method
    failed = {record.method: record.reason for record in records if record.status == "failed"}
    assert not {m: r for m, r in failed.items() if not any(e in r for e in EXCUSES)}


def names(suite: str, pipeline: str = "FluxPipeline") -> set[str]:
    return {"full", *expanded(SUITES[suite].methods, pipeline)}


@pytest.mark.parametrize("suite", ["ablation", "thresholds"])
def test_suites_of_the_papers_own_methods(flux, tmp_path, suite):
    records = run_suite(flux, tmp_path / "r.jsonl", suite, "--calibration-count", 2)
    check_complete(records, within_steps(SUITES[suite].evaluations, STEPS), names(suite))
    assert all(record.status == "done" for record in records)


def test_calibration(flux, tmp_path):
    few = ["--steps", 4, "--evaluations", 3]
    records = run_suite(flux, tmp_path / "r.jsonl", "calibration", *few)
    check_complete(records, [3], names("calibration"))
    tuned_on = {r.method: (r.tuned_on.source, r.tuned_on.samples) for r in records if r.tuned_on}
    assert tuned_on["tasu-10@6"] == (str(flux / "lessons.txt"), 6)
    assert tuned_on["tasu-10@general:60"] == ("general", 60)
    assert tuned_on["fitted@30"] == (str(flux / "lessons.txt"), 30)


def test_the_general_prompts_are_no_other_source_where_they_are_the_own():
    asked, general = ["tasu@6", "tasu@general:60", "fitted@general:8"], read_prompts("calibration")
    assert without_doubles(asked, general[:8]) == (["tasu@6"], asked[1:])
    assert without_doubles(asked, ["a kite", *general]) == (asked, [])


def test_a_suite_says_what_it_leaves_out(capsys):
    own = BenchJob(["tasu@general:6"], [3], ["a fox"], read_prompts("calibration"), {})
    assert _without_doubles(own, tell=True).methods == []
    assert "left out: tasu@general:6; the general prompts" in capsys.readouterr().err
    others = replace(own, calibration=["a kite"])
    assert _without_doubles(others, tell=True) == others
    assert not capsys.readouterr().err


def test_main(flux, tmp_path, monkeypatch):
    """Everything there is; searches with few tries."""
    monkeypatch.setitem(METHODS, "budcache", Rival(BudCache(tries=2)))
    few = ["--calibration-count", 2, "--fine", 12, "--evaluations", 5, "--tries", 2]
    records = run_suite(flux, tmp_path / "r.jsonl", "main", *few)
    check_complete(records, [5], {"fine", *names("main")})
    done = [record for record in records if record.status == "done"]
    assert all(record.to_fine or record.method == "fine" for record in done)
    assert len({record.noise_sha256 for record in done}) == 1  # they have one seed
    outside = [record for record in done if record.method not in INSIDE]
    assert all(record.flops and record.seconds for record in outside)


def test_pareto(flux, tmp_path):
    few = ["--calibration-count", 2, "--steps", 6, "--tries", 2]
    records = run_suite(flux, tmp_path / "r.jsonl", "pareto", *few)
    check_complete(records, [6, 5], names("pareto"))


def test_drift_and_indicators(flux, tmp_path):
    out = tmp_path / "r.jsonl"
    records = run_suite(flux, out, "indicators")
    assert [record.method for record in records] == ["full", "full"]
    assert len(records[0].traces["magnitude"]) == STEPS
    few = ["--calibration-count", 2]
    records = run_suite(flux, out, "drift", *few)  # appended to the same file
    check_complete(records, [7], names("drift"))
    for record in records:
        if record.status == "done" and record.method != "full":
            assert len(record.traces["state_drift"]) == STEPS + 1
            assert sum(record.traces["evaluated"]) == record.spent
    assert {r.method for r in records if r.traces and "cos_theta" in r.traces} >= {
        "tasu", "tasu-10", "damped", "reuse-10",
    }  # fmt: skip


def test_flow(flux, tmp_path):
    """Every method, tuned to the flow and compared with it; Euler runs with a few more steps."""
    few = ["--calibration-count", 2, "--fine", 12, "--evaluations", 5, "--tries", 2]
    records = run_suite(flux, tmp_path / "r.jsonl", "flow", *few)
    check_complete(records, [5], {"fine", *names("flow")})
    assert {record.reference for record in records} == {"flow"}
    assert {record.tries for record in records} == {2}
    found = {(one.method, one.prompt): one for one in records}
    assert found["fitted-flow", "a fox"].settings["target"] == "flow"
    assert found["euler:400", "a boat"].spent == 400
    assert found["instant", "a fox"].tuned_on is None


@pytest.mark.parametrize("suite", SUITES)
def test_suites_name_methods_that_are_there(suite):
    check_names(SUITES[suite].methods)
    assert not {"published", "inside"} & names(suite)


def test_the_main_suite_has_every_method_and_what_was_published_for_the_family():
    found = names("main")
    assert {name for name in METHODS if not name.endswith("-10")} - {FAST} <= found
    assert {"tasu-10", "magcache:flux", "vde:flux-3"} <= found
    assert not [name for name in found if ":wan" in name]
    assert {"tasu:wan", "magcache:wan-slow"} <= set(expanded(["published"], "WanPipeline"))
    assert set(SUITES["main"].evaluations) == set(BUDGETS) == {5, 7, 10, 13, 17, 25}


def test_rivals_inside_the_model_are_in_main_and_pareto():
    assert "dicache" in INSIDE
    assert set(INSIDE) <= names("main")
    assert set(INSIDE) <= names("pareto")
    assert set(INSIDE) <= names("main", "WanPipeline")
    assert "dicache:wan" in names("main", "WanPipeline")
    elsewhere = names("main", "QwenImagePipeline")
    assert not [name for name in elsewhere if name.partition(":")[0] in INSIDE]
    assert OWN == ("tasu", "tasu-10", "damped", "fitted")


@pytest.mark.parametrize(
    ("pipeline", "found"),
    [("WanPipeline", ["tasu:wan"]), ("FluxPipeline", ["tasu:flux"]), ("BAGEL", ["tasu:bagel"]),
     ("SD3Pipeline", [])],
)  # fmt: skip
def test_the_papers_thresholds_are_those_of_the_family(pipeline, found):
    assert expanded(["tasu:paper"], pipeline) == found
    assert set(found) <= names("thresholds", pipeline)


@pytest.mark.parametrize(
    ("name", "taus"),
    [("tasu:wan", (0.03, 0.3)), ("tasu:flux", (0.04, 0.4)), ("magnitude:bagel", (0.06, 0.6)),
     ("tasu:0.05/0.7", (0.05, 0.7))],
)  # fmt: skip
def test_thresholds_are_given_or_the_papers(name, taus):
    method: Any = resolve(name).method
    assert (method.tau_k, method.tau_d) == taus


def test_thresholds_of_an_unknown_family_are_refused():
    with pytest.raises(TACacheError, match="or the paper's for bagel, flux, wan"):
        resolve("tasu:sd3")


def test_rivals_inside_run_on_a_model_that_makes_clips(tmp_path):
    """Tuned and as published, on two calls a step; what they made is compared frame by frame."""
    folder = tmp_path / "wan"
    PIPELINES["wan-euler"].build().save_pretrained(folder)
    size = ["--height", 16, "--width", 16, "--frames", 5, "--call", "max_sequence_length=32"]
    asked = ["--methods", "inside,published,tasu:paper", "--evaluations", 4, "--steps", 6]
    few = ["--calibration-count", 1, "--count", 1, "--metrics", "psnr,motion-psnr"]
    few += ["--keep", tmp_path / "clips"]
    out = tmp_path / "r.jsonl"
    made = CliRunner().invoke(
        app, [str(x) for x in ["bench", folder, *size, *asked, *few, "-o", out]]
    )
    assert made.exit_code == 0, made.output
    found = {record.method: record for record in read_records(out)}
    assert {*INSIDE, "tasu:wan", "dicache:wan", "diffusers-magcache:wan-fast"} <= set(found)
    failed = {name: one.reason for name, one in found.items() if one.status == "failed"}
    assert not {n: reason for n, reason in failed.items() if not any(e in reason for e in EXCUSES)}
    assert found["cfg-late"].equivalent_evaluations == pytest.approx(4)
    scheduled = ("magcache", "taylorseer", "masks")
    for name in set(INSIDE) - {"cfg-late"} - set(failed):
        least = 4 - SLACK if any(word in name for word in scheduled) else 4
        assert found[name].spent <= 4
        assert least <= found[name].equivalent_evaluations + 1e-9 >= found[name].spent
        assert {"psnr", "motion-psnr"} <= set(found[name].to_full.metrics)
    with Image.open(tmp_path / found["full"].picture) as clip:  # a small one, without loss
        assert (clip.format, clip.size, clip.n_frames) == ("WEBP", (16, 16), 5)


def test_budgets_above_the_steps_are_dropped():
    assert within_steps((25, 13, 7), 13) == [13, 7]
    assert within_steps((), 4) == []
    with pytest.raises(TACacheError, match="above 4 steps: give --evaluations"):
        within_steps((25, 13, 7), 4)
