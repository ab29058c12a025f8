"""The full-size benchmark end to end on small models of the same classes, on the processor."""

import json
import operator
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from diffusers_support import SUPPORTED  # noqa: F401  (sets offline mode and one thread)

from benchmarks.fullsize import __main__ as command
from benchmarks.fullsize import measuring, tables
from benchmarks.fullsize.__main__ import main
from benchmarks.fullsize.measuring import skip_seconds
from benchmarks.fullsize.methods import (
    METHODS,
    OURS,
    RIVALS,
    Forced,
    Task,
    even_anchors,
    fitted_plan,
    mag_cache_rhythm,
    shares,
    tasu_plan,
    taylorseer_rhythm,
)
from benchmarks.fullsize.models import MODELS, _make, build
from benchmarks.fullsize.records import Records, read
from benchmarks.fullsize.timing import Clock, Position, probe, spread, timed_run
from benchmarks.fullsize.waiting import pauses
from tacache import HostError, time_grid

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/fullsize.jsonl"
STEPS, BUDGET = 12, 5
CACHES = ("first-block-cache", "magcache", "taylorseer", "taylorseer-lite")
SPREADS = ("loop_seconds", "evaluated_seconds")


def measure(out, *options):
    common = ("--tiny", "--steps", str(STEPS), "--budgets", str(BUDGET), "--repeats", "1")
    main(["measure", *common, "-o", str(out), "--decode", *options])


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


def test_a_rival_that_is_not_installed_is_an_error_in_its_record(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cache_dit", None)
    out = tmp_path / "r.jsonl"
    measure(out, "--models", "flux", "--methods", "dbcache", "--what", "run")
    (found,) = read(out)
    assert "cache_dit" in found["error"]
    assert found["method"] == "dbcache"


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


def test_what_is_in_the_file_is_not_measured_again(measured, capsys):
    before = measured.read_text()
    measure(measured, "--models", "wan", "--methods", "full", "tasu", "--what", "run")
    assert measured.read_text() == before
    assert "wan: 0 measurements left" in capsys.readouterr().out


def test_no_measurement_begins_after_the_time_is_up(tmp_path, capsys):
    measure(tmp_path / "r.jsonl", "--models", "flux", "--what", "run", "--seconds", "-1")
    assert not (tmp_path / "r.jsonl").exists()
    assert "measurements left" in capsys.readouterr().out


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


def test_the_summary_compares_every_method_with_full_steps(measured, capsys):
    records = read(measured)
    runs = [r for r in records if r["what"] == "run" and "error" not in r]
    head, _, *rows = tables.summary(records, BUDGET).splitlines()
    assert head.startswith(f"| {BUDGET} evaluations of {STEPS} | FLUX.1-dev")
    methods = dict.fromkeys(run["method"] for run in runs if run["method"] != "full")
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in methods]
    assert all("x (" in row for row in rows)
    main(["table", str(measured), "--summary"])
    assert capsys.readouterr().out.strip() == tables.summary(records)
    assert tables.summary([]) == ""
    assert tables.render([r for r in runs if r["method"] == "tasu"]) == ""  # nothing to compare to


def test_a_summary_by_hand():
    common = {"what": "run", "model": "flux", "mode": "eager", "steps": 50, "device": "H200"}
    full = common | {
        "method": "full",
        "evaluations": 50,
        "loop_seconds": {"median": 10.0},
        "peak_bytes": 100,
    }
    run = common | {
        "method": "tasu",
        "budget": 10,
        "evaluations": 10,
        "loop_seconds": {"median": 2.5},
        "skip_us": {"median": 100.0},
        "peak_bytes": 120,
        "latent_bytes": 10,
    }
    other = [one | {"mode": "compiled"} for one in (full, run | {"method": "fitted"})]
    elsewhere = [one | {"device": "A100"} for one in (full, run)]
    del other[1]["peak_bytes"]  # not kept
    assert tables.summary([full, run, *other, run | {"budget": 7}], 10).splitlines() == [
        "| 10 evaluations of 50 | FLUX.1-dev 1024x1024, eager | FLUX.1-dev 1024x1024, compiled |",
        "|---|---|---|",
        "| tasu | 4.00x (80.0 %), 100 us, 2 latents | - |",
        "| fitted | - | 4.00x (80.0 %), 100 us |",
    ]
    apart = tables.summary([full, run, *elsewhere], 10).splitlines()[0]
    assert "eager, H200, 50 steps | FLUX.1-dev 1024x1024, eager, A100, 50 steps" in apart


def test_a_document_without_markers_is_an_error(measured, tmp_path):
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(SystemExit, match="has no markers"):
        main(["table", str(measured), "--write", str(tmp_path / "page.md")])


def test_a_row_by_hand():
    full = {
        "loop_seconds": {"median": 10.0},
        "total_seconds": {"median": 11.0},
        "rest_seconds": {"median": 1.1},
        "decoded": 1,
        "evaluated_seconds": {"median": 0.2},
        "peak_bytes": 1000 * 2**20,
    }
    run = {
        "method": "tasu",
        "steps": 50,
        "evaluations": 10.0,
        "loop_seconds": {"median": 2.5},
        "total_seconds": {"median": 3.5},
        "decoded": 1,
        "skip_us": {"median": 100.0},
        "peak_bytes": 1001 * 2**20,
        "latent_bytes": 2**19,
    }
    assert tables.run_row(run, full) == (
        "| tasu | 10 | 2.50 s | 4.00x | 5.00x | 80.0 % | 3.14x | 100 us (0.05 %) | 12.5 ms "
        "| 1.0 MiB (2.0 latents) |"
    )
    earlier = run | {"full_loop_seconds": 12.5}  # beside its own full steps
    assert tables.speedups(earlier, full) == (5.0, 5.0)
    assert tables.with_decoding(earlier, full) == "3.89x"
    assert tables.by_difference(earlier, full) == pytest.approx(0.0)
    borrowed = full | {"decoded": 0}  # its decoding is of an earlier run
    assert tables.with_decoding(run | {"decoded": 0}, borrowed) == "~3.08x"
    assert tables.with_decoding(run | {"decoded": 0}, full) == "~3.06x"
    del borrowed["rest_seconds"]
    assert tables.with_decoding(run, borrowed) == "-"


def test_what_a_record_says_of_itself_stands_below_the_table(measured):
    runs = [r for r in read(measured) if r["what"] == "run" and "error" not in r]
    runs = [r for r in runs if r["mode"] == runs[0]["mode"] and r["model"] == runs[0]["model"]]
    full = next(r for r in runs if r["method"] == "full")
    others = [r | {"note": "in two passes; early"} for r in runs if r["method"] == "tasu"]
    table = tables.runs_table([full | {"note": "in two passes"}, *others])
    named = ", ".join(f"tasu {r['evaluations']:g}" for r in others)
    assert table.endswith(f"|\n\n{named}: early.")


@pytest.mark.parametrize(
    ("document", "make"), [("full-size.md", tables.render), ("performance.md", tables.summary)]
)
def test_documents_show_the_records(document, make):
    if not RESULTS.exists():
        pytest.skip("no full-size results are recorded yet: benchmarks/fullsize/README.md")
    shown = tables.between_markers((ROOT / "docs" / "reference" / document).read_text("utf-8"))
    assert shown == make(read(RESULTS)).strip()


# --- what a session on a GPU must survive


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("model", MODELS)
def test_the_records_hold_what_the_documents_claim(model, mode):
    """Nearly the ideal, and a skipped step and memory below every rival's."""
    runs = [r for r in read(RESULTS) if (r["model"], r["mode"], r["what"]) == (model, mode, "run")]
    full = next(r for r in runs if r["method"] == "full")
    ours = [r for r in runs if r["method"] in OURS]
    rivals = [r for r in runs if r["method"] in RIVALS]
    assert {(r["method"], r["budget"]) for r in ours} == {(m, k) for m in OURS for k in (13, 7)}
    for run in ours:
        plain = run.get("full_loop_seconds", full["loop_seconds"]["median"])
        speedup = plain / run["loop_seconds"]["median"]
        assert speedup >= 0.98 * run["steps"] / run["evaluations"]
        assert run["skip_us"]["median"] < min(r["skip_us"]["median"] for r in rivals)
        assert run["peak_bytes"] < min(r["peak_bytes"] for r in rivals)
        assert run["peak_bytes"] - full["peak_bytes"] <= 6 * run["latent_bytes"]
        assert run["skip_us"]["median"] <= 1e-3 * 1e6 * full["evaluated_seconds"]["median"]


def test_a_model_that_cannot_be_built_is_recorded_and_the_next_one_measured(tmp_path, monkeypatch):
    def failing(name, device, *, tiny):
        if name == "flux":
            raise torch.OutOfMemoryError("no memory for it")
        return build(name, device, tiny=tiny)

    monkeypatch.setattr(command, "build", failing)
    out = tmp_path / "r.jsonl"
    measure(out, "--models", "flux", "sd35", "--methods", "full", "--what", "run")
    first, second = read(out)
    assert first["what"] == "build"
    assert first["error"] == "OutOfMemoryError: no memory for it"
    assert second["model"] == "sd35"
    assert "error" not in second


def test_ours_come_before_the_rivals_which_may_have_budgets_of_their_own():
    given = ["measure", "-o", "r", "--what", "run", "waiting", "fit", "--rival-budgets", "13"]
    options = command.parser().parse_args([*given, "--methods", "magcache", "full", "tasu"])
    assert [(job.what, job.method, job.budget) for job in command.jobs(options)] == [
        ("run", "full", None),
        ("run", "tasu", 13),
        ("run", "tasu", 7),
        ("waiting", "tasu", None),
        ("run", "magcache", 13),
        ("fit", "fitted", 13),
    ]


def tiny_bench(built, *, repeats=1, decoded=frozenset(), compiled=False):
    clock = Clock(built.device)
    thorough = measuring.Thoroughness(repeats, 1, 1, frozenset(decoded))
    return measuring.Bench(built, clock, probe(built, clock, STEPS), thorough, compiled)


@pytest.fixture(scope="module")
def flux():
    return build("flux", torch.device("cpu"), tiny=True)


def test_only_the_first_run_is_decoded_and_only_it_counts_for_whole_calls(flux):
    bench = tiny_bench(flux, repeats=3, decoded={"tasu"})
    found = measuring.measure_run(bench, "tasu", BUDGET)
    assert (found["repeats"], found["decoded"]) == (3, 1)
    assert found["total_seconds"]["min"] == found["total_seconds"]["max"]
    assert found["rest_seconds"]["median"] > 0
    fitted = measuring.measure_run(bench, "fitted", BUDGET)
    assert fitted["decoded"] == 0
    assert "total_seconds" not in fitted


def test_velocities_that_are_not_numbers_are_said_and_timed_all_the_same():
    built = build("flux", torch.device("cpu"), tiny=True)
    built.pipe.transformer.proj_out.weight.fill_(torch.nan)
    found = measuring.measure_run(tiny_bench(built), "magcache", BUDGET)
    assert not found["finite"]
    assert found["evaluations"] == BUDGET
    assert found["loop_seconds"]["median"] > 0


def test_nothing_is_compiled_once_a_method_is_warm(flux, monkeypatch):
    monkeypatch.setattr(measuring, "BACKEND", "eager")
    bench, before = tiny_bench(flux, compiled=True), measuring.graph_count()
    found = measuring.measure_run(bench, "full", STEPS)
    graphs = measuring.graph_count() - before
    assert 2 <= graphs <= 4  # of double and single blocks, however many there are
    assert found["compile_seconds"] > 0
    assert found["graphs_compiled_late"] == 0
    for method in ("tasu", "fitted"):
        assert measuring.measure_run(bench, method, BUDGET)["graphs_compiled_late"] == 0
    assert measuring.graph_count() - before == graphs
    assert all(block._compiled_call_impl is None for block in flux.blocks)


def test_a_run_that_is_stopped_makes_so_many_iterations_and_the_next_one_all(flux):
    clock, position = Clock(flux.device), Position()
    stopped = timed_run(flux, clock, STEPS, position=position, stop_after=3)
    assert len(stopped.iterations) == len(stopped.steps) == position.step == 3
    whole = timed_run(flux, clock, STEPS, position=position)
    assert len(whole.iterations) == position.step == STEPS
    assert whole.latent.device.type == "meta"  # no memory is held from run to run


def test_memory_on_a_gpu_is_what_was_asked_for(monkeypatch):
    stats = {"requested_bytes.all.current": 10, "requested_bytes.all.peak": 30}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    clock = Clock(torch.device("cuda"))
    assert (clock.allocated(), clock.peak()) == (10, 30)


def test_pauses_of_the_device_after_the_first_evaluation_by_hand():
    # Two evaluations in 100 us: what begins before 50 us is the first one's.
    spans = [(80, 100), (0, 20), (40, 60), (55, 70), (61, 65)]
    assert pauses(spans, 2) == {"longest": 10, "total": 10, "share": 0.2}
    assert pauses([], 2)["total"] == 0


# --- the parts


@pytest.mark.parametrize(
    ("name", "billions"),
    [("flux", 11.90), ("wan", 1.42), ("sd35", 8.06), ("qwen", 20.43), ("wan22", 14.29)],
)
def test_full_size_is_the_published_size(name, billions):
    model = MODELS[name]
    transformer = _make(model.transformer, model.config, torch.device("meta"))
    weights = list(transformer.parameters())
    assert sum(weight.numel() for weight in weights) / 1e9 == pytest.approx(billions, abs=0.005)
    assert {weight.dtype for weight in weights} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["sd35", "qwen", "wan22"])
def test_other_models_make_finite_latents(name):
    built, device = build(name, torch.device("cpu"), tiny=True), torch.device("cpu")
    assert len(probe(built, Clock(device), 4, evaluations=2).times) == 5
    assert timed_run(built, Clock(device), 4).is_finite
    assert len(built.last_blocks) == MODELS[name].experts


@pytest.fixture(scope="module")
def two_experts():
    built = build("wan22", torch.device("cpu"), tiny=True)
    seen = probe(built, Clock(built.device), STEPS, evaluations=2)
    return Task(built, seen.times, BUDGET, Position())


def test_each_expert_has_its_own_steps_and_evaluations(two_experts):
    first, second = shares(two_experts)
    assert (first.steps, second.steps) == (range(5), range(5, STEPS))
    assert (first.budget, second.budget) == (3, 4)  # a plan's anchors 0, 1, 4 and 5, 6, 7, 9
    assert [first.transformer, second.transformer] == two_experts.built.transformers


@pytest.mark.parametrize("method", RIVALS)
def test_rivals_evaluate_both_experts_where_they_are_told(method, two_experts):
    if "dbcache" in method:
        pytest.importorskip("cache_dit", reason="cache-dit is not installed")
    built, position, seen = two_experts.built, two_experts.position, []
    handles = [
        block.attn1.to_q.register_forward_pre_hook(lambda *_: seen.append(position.step))
        for block in built.last_blocks
    ]
    with METHODS[method](two_experts) as engaged:
        timed_run(built, Clock(built.device), STEPS, position=position)
    for handle in handles:
        handle.remove()
    assert seen == [n for n in engaged.anchors for _ in range(built.model.passes)]
    assert len(engaged.anchors) == sum(part.budget for part in shares(two_experts))


@pytest.mark.parametrize(("steps", "budget"), [(50, 13), (50, 7), (12, 5)])
def test_schedules_meet_their_budget(steps, budget):
    times = tuple(time_grid(steps, shift=3.0))
    anchors = even_anchors(steps, budget)
    assert len(set(anchors)) == budget
    assert anchors[:2] == (0, 1)
    assert max(anchors) < steps
    for plan in (tasu_plan(times, budget), fitted_plan(times, budget)):
        assert plan.evaluations == budget
    retained, skips = mag_cache_rhythm(steps, budget)
    assert retained + (steps - retained) // (skips + 1) == budget
    first, interval = taylorseer_rhythm(steps, budget)
    warm = range(first + 1, steps, interval)
    assert first + len(warm) == budget


def test_a_budget_beyond_the_steps_is_an_error():
    with pytest.raises(HostError, match="a budget is 2 up to the steps"):
        even_anchors(5, 6)
    with pytest.raises(HostError, match="TaylorSeer cannot evaluate 1 of 50 steps"):
        taylorseer_rhythm(50, 1)
    with pytest.raises(HostError, match="MagCache cannot evaluate 51 of 50 steps"):
        mag_cache_rhythm(50, 51)


def test_a_forced_threshold_gives_the_verdict():
    position = Position()
    threshold = Forced((0, 3), position)
    verdicts = []
    for step in range(4):
        position.step = step
        verdicts.append(operator.gt(1e9, threshold))
    assert verdicts == [True, False, False, True]


def test_the_cost_of_a_skip_by_hand():
    # Three anchors over six steps: three skips in the 9 units beyond three plain steps of 1.
    assert skip_seconds([1.0, 4.0, 7.0], [1, 2, 3], 1.0) == 3.0


def test_spreads_are_in_order():
    assert spread([3.0, 1.0, 2.0], 10.0) == {"median": 20.0, "min": 10.0, "max": 30.0}


def test_records_survive_a_cut_off_line_and_failures_are_tried_again(tmp_path):
    path = tmp_path / "r.jsonl"
    records = Records(path)
    good, bad = {"model": "flux", "what": "run"}, {"model": "wan", "what": "run", "error": "x"}
    records.add(good)
    records.add(bad)
    with path.open("a") as file:
        file.write('{"model": "fl')
    again = Records(path)
    assert again.has(good)
    assert not again.has({"model": "wan", "what": "run"})
    again.add({"model": "wan", "what": "fit"})
    assert [record["what"] for record in read(path)] == ["run", "run", "fit"]
    path.write_text('{"broken\n' + json.dumps(good) + "\n")
    with pytest.raises(SystemExit, match="line 1: no record"):
        read(path)
