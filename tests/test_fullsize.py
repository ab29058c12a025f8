"""The full-size benchmark end to end on small models of the same classes, on the processor."""

import json
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import torch
from benchmarks.fullsize import measuring, tables
from benchmarks.fullsize.__main__ import main
from benchmarks.fullsize.methods import METHODS, OURS, RIVALS, Task
from benchmarks.fullsize.models import MODELS, build
from benchmarks.fullsize.records import read
from benchmarks.fullsize.timing import Clock, Position, by_iteration, probe, timed_run
from tests.diffusers_support import SUPPORTED  # noqa: F401  (sets offline mode and one thread)

from tacache.errors import HostError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/fullsize.jsonl"
STEPS, BUDGET = 12, 5
CLAIMED = ("tasu", "fitted")  # of our methods; an instant plan steps as these do
RIVALRY = ("flux", "wan", "sd35", "qwen", "wan22")  # the models measured beside every rival
RECENT = tuple(name for name in MODELS if name not in RIVALRY)
CACHES = ("first-block-cache", "magcache", "taylorseer", "taylorseer-lite")
SPREADS = ("loop_seconds", "evaluated_seconds")


def measure(out, *options):
    common = ("--tiny", "--steps", str(STEPS), "--budgets", str(BUDGET), "--repeats", "1")
    main(["measure", *common, "-o", str(out), "--decode", *options])


@pytest.fixture(scope="module", autouse=True)
def _short_traces():
    """A profiler reads its events for seconds."""
    with mock.patch.multiple(measuring, TRACE_STEPS=4, TRACE_BUDGET=2):
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """FLUX and Wan by every method, and all else that is measured."""
    out = tmp_path_factory.mktemp("fullsize") / "records.jsonl"
    methods = ("--methods", "full", "tasu", "fitted", *CACHES, "dbcache")
    measure(out, "--models", "flux", *methods, "--what", "run", "stepping", "waiting")
    measure(out, "--models", "wan", "--methods", "full", "tasu", "magcache", "--what", "run")
    fit = ("--what", "fit", "--fit-samples", "4", "--fit-budgets", str(BUDGET))
    measure(out, "--models", "flux", *fit)
    return out


@pytest.fixture(scope="module")
def records(measured):
    return {(r["model"], r["what"], r["method"]): r for r in read(measured)}


@pytest.mark.parametrize("method", ["tasu", "fitted", *CACHES])
def test_every_method_evaluates_as_often_as_it_is_told(method, records):
    found = records["flux", "run", method]
    assert "error" not in found
    assert found["evaluations"] == BUDGET
    assert found["steps"] == STEPS
    assert records["flux", "run", "full"]["evaluations"] == STEPS


def test_guidance_in_two_passes_counts_as_one_evaluation(records):
    assert records["wan", "run", "full"]["evaluations"] == STEPS
    for method in ("tasu", "magcache"):
        assert records["wan", "run", method]["evaluations"] == BUDGET


def test_a_run_is_recorded_with_what_it_takes_to_read_it(records):
    for (_, what, method), found in records.items():
        assert found["versions"]["torch"] == torch.__version__
        assert found["command"]
        assert found["device"].endswith(", tiny")
        if what != "run" or "error" in found:
            continue
        for name in SPREADS:
            assert 0 <= found[name]["min"] <= found[name]["median"] <= found[name]["max"]
        assert ("skip_us" in found) == (method != "full")
        assert found["latent_bytes"] == 2 * torch.Size(found["latent_shape"]).numel()
        assert found["peak_bytes"] == 0  # nobody counts on the processor
        assert found["finite"]
        assert found["decoded"] == 0


def test_cache_dit_evaluates_as_often_as_it_is_told(records):
    pytest.importorskip("cache_dit")
    assert records["flux", "run", "dbcache"]["evaluations"] == BUDGET


def test_stepping_waiting_and_fit_are_measured(records, measured):
    stepping = records["flux", "stepping", ""]
    assert stepping["first_skip_us"]["median"] > stepping["one_pass_us"]["median"] > 0
    waiting = records["flux", "waiting", "tasu"]
    once = Counter({"aten::_local_scalar_dense": 1})  # at the end: whether the result is finite
    assert Counter(waiting["trace"]["planned"]) == Counter(waiting["trace"]["plain"]) + once
    assert waiting["steps_waiting"]["planned"] == [0] * waiting["setting"]["evaluations"]
    fit = records["flux", "fit", "fitted"]
    assert fit["evaluations_spent"] >= 4 * STEPS
    assert fit["seconds"]["median"] > 0
    plan = json.loads((measured.parent / fit["plan"]).read_text())
    assert len(plan["anchors"]) == BUDGET


def test_the_table_has_a_row_for_every_method(measured, tmp_path, capsys):
    main(["table", str(measured)])
    printed = capsys.readouterr().out
    for method in ("tasu", "fitted", *CACHES):
        assert f"| {method} | {BUDGET} |" in printed
    assert f"{STEPS / BUDGET:.2f}x" in printed
    assert "waits in the trace" in printed
    document = tmp_path / "page.md"
    document.write_text(f"above\n{tables.BEGIN}\nold\n{tables.END}\nbelow\n")
    main(["table", str(measured), "--write", str(document)])
    assert tables.between_markers(document.read_text()) == printed.strip()
    assert document.read_text().startswith("above\n")
    assert document.read_text().endswith("\nbelow\n")


@pytest.mark.parametrize(
    ("document", "make"), [("full-size.md", tables.render), ("performance.md", tables.summary)]
)
def test_documents_show_the_records(document, make):
    shown = tables.between_markers((ROOT / "docs" / "reference" / document).read_text("utf-8"))
    assert shown == make(read(RESULTS)).strip()


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("model", RIVALRY)
def test_the_records_hold_what_the_documents_claim(model, mode):
    """Nearly the ideal, and a skipped step and memory below every rival's."""
    runs = [r for r in read(RESULTS) if (r["model"], r["mode"], r["what"]) == (model, mode, "run")]
    full = next(r for r in runs if r["method"] == "full")
    ours = [r for r in runs if r["method"] in CLAIMED]
    rivals = [r for r in runs if r["method"] in RIVALS]
    assert {(r["method"], r["budget"]) for r in ours} == {(m, k) for m in CLAIMED for k in (13, 7)}
    for run in ours:
        plain = run.get("full_loop_seconds", full["loop_seconds"]["median"])
        speedup = plain / run["loop_seconds"]["median"]
        assert speedup >= 0.98 * run["steps"] / run["evaluations"]
        assert run["skip_us"]["median"] < min(r["skip_us"]["median"] for r in rivals)
        assert run["peak_bytes"] < min(r["peak_bytes"] for r in rivals)
        assert run["peak_bytes"] - full["peak_bytes"] <= 6 * run["latent_bytes"]
        assert run["skip_us"]["median"] <= 1e-3 * 1e6 * full["evaluated_seconds"]["median"]


@pytest.mark.parametrize("model", RECENT)
def test_the_records_of_recent_models_are_near_the_ideal(model):
    runs = [r for r in read(RESULTS) if (r["model"], r["what"]) == (model, "run")]
    full = next(r for r in runs if r["method"] == "full")
    ours = [r for r in runs if r["method"] in OURS]
    assert {r["method"] for r in ours} == set(OURS)
    for run in ours:
        speedup, ideal = tables.speedups(run, full)
        assert speedup >= 0.98 * ideal
        assert run["skip_us"]["median"] <= 1e-3 * 1e6 * full["evaluated_seconds"]["median"]
        assert run["peak_bytes"] - full["peak_bytes"] <= 6 * run["latent_bytes"]


@pytest.fixture(scope="module")
def recent(tmp_path_factory):
    """The recent models by our methods, and all else that is measured."""
    out = tmp_path_factory.mktemp("recent") / "records.jsonl"
    methods = ("--methods", "full", *OURS, "taylorseer-lite")
    measure(out, "--models", *RECENT, *methods, "--what", "run", "stepping", "waiting")
    return {(r["model"], r["what"], r["method"]): r for r in read(out)}


@pytest.mark.parametrize("model", RECENT)
def test_recent_models_evaluate_as_often_as_they_are_told(model, recent):
    assert recent[model, "run", "full"]["evaluations"] == STEPS
    for method in (*OURS, "taylorseer-lite"):
        run = recent[model, "run", method]
        assert "error" not in run
        assert run["finite"]
        assert run["evaluations"] == BUDGET
    waiting = recent[model, "waiting", "tasu"]
    assert waiting["steps_waiting"]["planned"] == [0] * waiting["setting"]["evaluations"]


def test_all_latents_of_a_joint_model_are_measured(recent):
    run = recent["ltx2", "run", "fitted"]
    shapes = [run["latent_shape"], *run["further_shapes"]]
    assert len(shapes) == 2
    assert run["latent_bytes"] == 4 * sum(torch.Size(shape).numel() for shape in shapes)
    assert recent["ltx2", "stepping", ""]["further_shapes"] == run["further_shapes"]
    assert "further_shapes" not in recent["qwen21", "run", "fitted"]


def test_a_joint_model_is_timed_with_the_steps_of_all_its_latents():
    """A step of each latent falls into its iteration, and the schedulers are as they were."""
    cpu = torch.device("cpu")
    built = build("ltx2", cpu, tiny=True)
    step = type(built.pipe.scheduler).step
    run = timed_run(built, Clock(cpu), 4)
    assert len(run.steps) == len(run.iterations) == 4
    assert len(run.latents) == 2
    assert type(built.pipe.scheduler).step is step
    seen = probe(built, Clock(cpu), 4, evaluations=2)
    assert seen.further == {"audio": seen.times}
    with METHODS["fitted"](Task(built, seen.times, 2, Position(), seen.further)):
        assert len(timed_run(built, Clock(cpu), 4).iterations) == 2


@pytest.mark.parametrize(("steps", "sums"), [([1, 2, 3, 4], [3, 7]), ([1, 2], [1, 2])])
def test_steps_are_summed_over_each_iteration(steps, sums):
    assert by_iteration(steps, 2) == sums


def test_steps_that_fall_into_no_iteration_are_refused():
    with pytest.raises(HostError):
        by_iteration([1, 2, 3], 2)


@pytest.fixture(scope="module")
def flux():
    return build("flux", torch.device("cpu"), tiny=True)


@pytest.mark.parametrize("name", ["sd35", "qwen", "wan22", *RECENT])
def test_other_models_make_finite_latents(name):
    built, device = build(name, torch.device("cpu"), tiny=True), torch.device("cpu")
    assert len(probe(built, Clock(device), 4, evaluations=2).times) == 5
    assert timed_run(built, Clock(device), 4).is_finite
    assert len(built.last_blocks) == MODELS[name].experts
