"""Methods by name, made ready on a calibration set: those inside the model, damped, and fitted."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diffusers_support import counted
from tests.tiny import PIPELINES

from tacache import HostError, Plan, PlanError, TACacheError, instant_plan
from tacache.diffusers import fit_plan
from tacache.diffusers.pipeline import PipelineHost
from tacache.fitting.fit_options import MAX_EVALUATIONS, FitOptions
from tacache.prompts import Sample
from tacache_lab.bench import BenchJob, Record, named_methods, run_bench
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.model_caches import CalibrationTrials, InsideMethod, within
from tacache_lab.bench.named_methods import METHODS, load_settings, published, resolve
from tacache_lab.bench.plan_methods import Planned, sample_by_plan
from tacache_lab.bench.recorded_runs import record_full_run
from tacache_lab.bench.records import plain
from tacache_lab.bench.tuning_journal import TuningJournal
from tacache_lab.methods import BASELINES, SamplingProblem
from tacache_lab.methods.inside import CACHES, Cache
from tacache_lab.methods.inside.library import FirstBlockSettings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FLUX = PIPELINES["flux"]
STEPS = 6
PROMPTS = ("a lamp", "a bowl of soup")
SUBJECT = Sample("a red fox", 0)
GUIDED = {"true_cfg_scale": 2.0, "negative_prompt": "grey"}
NEEDS_CACHE_DIT = pytest.mark.skipif(
    importlib.util.find_spec("cache_dit") is None,
    reason="cache-dit is not installed: pip install 'tacache[peers]'",
)
NAMES = [
    pytest.param(name, marks=NEEDS_CACHE_DIT) if name.startswith("cache-dit") else name
    for name in CACHES
    if name != "cfg-late"  # which has a grid of its own
]


def call(name: str = "flux", **changes: Any) -> dict[str, Any]:
    options = PIPELINES[name].call() | {"num_inference_steps": STEPS} | changes
    options.pop("prompt")
    return options


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def caller(pipe) -> Calls:
    return Calls(PipelineHost(pipe), call(**GUIDED), SUBJECT)


@pytest.fixture(scope="module")
def calibration_set(caller, tmp_path_factory) -> CalibrationSet:
    made = CalibrationSet(caller, tmp_path_factory.mktemp("calibration_set"), "given", PROMPTS)
    for subject in made.subjects:
        record_full_run(caller, made.folder, subject)
    return made


@torch.no_grad()
def sampled(caller: Calls, method: Any, settings: Any) -> tuple[Any, Any]:
    """A method's run, and the velocity function that counted it."""
    with within(method, caller, settings), caller.open(SUBJECT) as velocity:
        problem = SamplingProblem(velocity, velocity.run.noise, caller.times)
        return method.sample(problem, settings), velocity


# --- inside the model -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_is_tuned_for_its_budget_and_counted_at_the_model(caller, calibration_set, name):
    method = METHODS[name]
    settings = method.prepare(calibration_set, 4)
    spent = CalibrationTrials(calibration_set, CACHES[name]).evaluations(settings)
    assert 1 <= spent <= 4
    x, velocity = sampled(caller, method, settings)
    assert x.isfinite().all()
    assert set(velocity.evaluated) <= set(caller.times)
    assert velocity.evaluated[0] == caller.times[0]
    assert len(velocity.evaluated) - 0.5 <= velocity.equivalent_evaluations <= STEPS
    again = load_settings(type(settings).__name__, plain(settings))
    assert again == settings
    assert method.shown(settings) == plain(settings)


def test_late_guidance_spends_its_budget_on_a_grid_of_its_own(caller, calibration_set):
    method = METHODS["cfg-late"]
    settings = method.prepare(calibration_set, 4)
    times = caller.grid_for(lambda problem: method.sample(problem, settings)) or caller.times
    assert times == settings.times
    with within(method, caller, settings), caller.open(SUBJECT, times) as velocity:
        problem = SamplingProblem(velocity, velocity.run.noise, caller.times)
        assert method.sample(problem, settings).isfinite().all()
    assert velocity.equivalent_evaluations == pytest.approx(4)
    assert velocity.evaluated == settings.times[:-1]
    assert 4 <= len(velocity.evaluated) <= STEPS
    assert load_settings(type(settings).__name__, plain(settings)) == settings


@pytest.mark.parametrize("name", ["dicache", "diffusers-magcache"])
def test_a_tuning_inside_the_model_goes_on_without_a_run_twice(
    caller, calibration_set, tmp_path, name
):
    first = replace(calibration_set, tries=TuningJournal(tmp_path / "x.tries"))
    settings = METHODS[name].prepare(first, 4)
    with counted(caller.pipe, FLUX.denoisers) as made:
        again = replace(calibration_set, tries=TuningJournal(tmp_path / "x.tries"))
        assert METHODS[name].prepare(again, 4) == settings
    assert not made


def test_with_every_step_it_is_the_full_run(caller, calibration_set):
    method = METHODS["diffusers-fbcache"]
    x, velocity = sampled(caller, method, method.prepare(calibration_set, STEPS))
    whole = METHODS["fewer"]  # any method without a cache leaves the model alone
    with torch.no_grad(), within(whole, caller, None), caller.open(SUBJECT) as full:
        problem = SamplingProblem(full, full.run.noise, caller.times)
        torch.testing.assert_close(x, method.sample(problem, None), rtol=1e-5, atol=1e-5)
    assert velocity.evaluated == full.evaluated == caller.times[:-1]
    assert velocity.equivalent_evaluations == STEPS
    assert full.equivalent_evaluations is None


def test_calls_opened_one_after_the_other_have_caches_in_a_new_state(caller):
    settings = FirstBlockSettings(threshold=1e6)
    with torch.no_grad(), caller.inside(Cache(CACHES["diffusers-fbcache"], settings)):
        for _ in range(2):
            with caller.open(SUBJECT) as velocity:
                problem = SamplingProblem(velocity, velocity.run.noise, caller.times)
                METHODS["diffusers-fbcache"].sample(problem, settings)
            assert velocity.evaluated == (caller.times[0],)
        with (
            pytest.raises(HostError, match="one at a time"),
            caller.inside(Cache(CACHES["dicache"], settings)),
        ):
            pass


def test_the_model_is_left_alone_where_a_run_fails(caller, pipe):
    settings = FirstBlockSettings(threshold=1e6)
    before = [list(vars(part)) for part in pipe.transformer.modules()]
    with (
        pytest.raises(RuntimeError, match="stop"),
        within(METHODS["diffusers-fbcache"], caller, settings),
        caller.open(SUBJECT),
    ):
        raise RuntimeError("stop")
    assert [list(vars(part)) for part in pipe.transformer.modules()] == before
    with caller.open(SUBJECT) as velocity:
        assert velocity.equivalent_evaluations is None


def job(**changes: Any) -> BenchJob:
    options = {"methods": [], "evaluations": [3], "prompts": ["a red fox"], "calibration": PROMPTS}
    return BenchJob(**{**options, "call": call(**GUIDED), **changes})


@pytest.fixture(scope="module")
def records(pipe, tmp_path_factory) -> dict[str, Record]:
    """A benchmark in which some methods are inside the model, at budgets and as published."""
    names = ["diffusers-fbcache", "diffusers-taylorseer-lite", "dicache:flux", "damped", "fewer"]
    out = tmp_path_factory.mktemp("bench") / "r.jsonl"
    return {one.method: one for one in run_bench(pipe, job(methods=names), out)}


def test_a_benchmark_gives_them_the_same_noise_and_grid(records):
    assert {one.status for one in records.values()} == {"done"}
    assert len({one.noise_sha256 for one in records.values()}) == 1
    full = records["full"].evaluated
    for name, one in records.items():
        assert name == "fewer" or set(one.evaluated) <= set(full)
        assert (one.equivalent_evaluations is None) == (name.partition(":")[0] not in CACHES)
    assert records["dicache:flux"].evaluations is None
    lite = records["diffusers-taylorseer-lite"]
    assert lite.equivalent_evaluations == lite.spent == 3
    assert records["diffusers-fbcache"].equivalent_evaluations > records["diffusers-fbcache"].spent
    published = {"threshold": 0.4, "retention": 0.2, "cap": 1.5, "both_ends": True}
    assert records["dicache:flux"].settings == published


def test_flops_are_those_of_the_work(records):
    full, lite = records["full"], records["diffusers-taylorseer-lite"]
    assert lite.flops == records["damped"].flops < records["diffusers-fbcache"].flops < full.flops


def test_a_model_that_is_not_supported_fails_alone(tmp_path):
    pipe = PIPELINES["sd3"].build()
    asked = job(methods=["dicache", "dicache:flux", "fewer"], call=call("sd3"))
    found = run_bench(pipe, asked, tmp_path / "r.jsonl")
    assert {one.method: one.status for one in found} == {
        "full": "done", "dicache": "failed", "dicache:flux": "failed", "fewer": "done",
    }  # fmt: skip
    assert "no cache can be put into SD3Transformer2DModel" in found[1].reason


def test_without_cache_dit_its_methods_fail_with_the_extra_that_is_missing(
    calibration_set, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("cache-dit", "cache-dit:flux", "cache-dit-taylorseer:flux-fast"):
        with pytest.raises(HostError, match=r"tacache\[peers\]"):
            resolve(name).method.prepare(calibration_set, 3)


def test_they_are_named_like_the_others():
    assert {"dicache:flux", "cache-dit:flux-fast", "diffusers-magcache:flux"} <= set(published())
    assert not resolve("dicache:flux").method.budgeted
    assert resolve("dicache@1").samples == 1
    inside = [name for name, one in METHODS.items() if isinstance(one, InsideMethod)]
    assert inside == list(CACHES)
    with pytest.raises(TACacheError, match="no published setting 'sd3': there are flux, wan"):
        resolve("dicache:sd3")


@NEEDS_CACHE_DIT
def test_a_published_setting_that_means_nothing_for_a_model_is_unreachable(calibration_set):
    with pytest.raises(PlanError, match="8 first and 0 last blocks has none to skip"):
        resolve("cache-dit:flux").method.prepare(calibration_set, None)


# --- ours -------------------------------------------------------------------------------------


def test_damped_is_tasu_with_its_direction_weakened(calibration_set):
    damped, tasu = (
        METHODS["damped"].prepare(calibration_set, 3),
        METHODS["tasu"].prepare(calibration_set, 3),
    )
    assert isinstance(damped, Plan)
    assert damped.rule == "damped"
    assert (damped.anchors, damped.magnitude) == (tasu.anchors, tasu.magnitude)
    assert damped.direction != tasu.direction
    assert all(0 <= a <= b for a, b in zip(damped.direction, tasu.direction, strict=True))
    with calibration_set.recording() as recording:
        assert torch.isfinite(sample_by_plan(recording, damped)).all()
    assert METHODS["damped"].shown(damped)["rule"] == "damped"
    assert isinstance(METHODS["damped"], Planned)


@pytest.mark.parametrize(("samples", "reason"), [(1, "at least two samples"), (340, "too few")])
def test_a_fit_that_asks_too_much_is_refused_before_it_starts(
    caller, calibration_set, pipe, samples, reason
):
    class Same(CalibrationSet):
        """All samples are the first two, which are recorded."""

        @property
        def subjects(self) -> list[Sample]:
            return [calibration_set.subjects[i % 2] for i in range(len(self.prompts))]

    doubled = Same(
        caller, calibration_set.folder, "given", tuple(f"prompt {i}" for i in range(samples))
    )
    with counted(pipe, FLUX.denoisers) as calls, pytest.raises(PlanError, match=reason):
        METHODS["fitted"].prepare(doubled, 3)
    assert not calls


def test_a_plan_at_once_needs_no_calibration(caller, calibration_set, pipe):
    with counted(pipe, FLUX.denoisers) as calls:
        plan = METHODS["instant"].prepare(calibration_set, 4)
    assert not calls
    assert plan == instant_plan(caller.times, 4)
    assert not METHODS["instant"].calibrated
    _, velocity = sampled(caller, METHODS["instant"], plan)
    assert velocity.evaluated == tuple(caller.times[n] for n in plan.anchors)


def test_a_fit_to_the_flow_is_that_of_a_pipeline(caller, pipe, tmp_path):
    """Its finer run is a call with more steps, as where users fit a plan."""

    class Seeded(CalibrationSet):
        """The same prompts with the seed that a user gives."""

        @property
        def subjects(self) -> list[Sample]:
            return [Sample(prompt, 5) for prompt in self.prompts]

    seeded = Seeded(caller, tmp_path, "given", PROMPTS)
    for subject in seeded.subjects:
        record_full_run(caller, tmp_path, subject)
    there = fit_plan(pipe, list(PROMPTS), seeds=[5], evaluations=4, target="flow", **caller.call)
    method = METHODS["fitted-flow"]
    here = method.prepare(seeded, 4)
    assert here.anchors == there.anchors
    assert here.certificate.flow_drift == pytest.approx(there.certificate.flow_drift, rel=1e-3)
    shown = method.shown(here)
    assert shown["target"] == "flow"
    assert shown["max_evaluations"] == MAX_EVALUATIONS >= shown["evaluations_spent"]
    assert shown["samples"] + shown["held_out"] == len(PROMPTS)
    assert "target" not in METHODS["fitted"].shown(here)


def test_a_fit_to_the_flow_takes_as_many_samples_as_it_can_pay_for(calibration_set, monkeypatch):
    options = FitOptions(target="flow", max_evaluations=100)
    monkeypatch.setattr(METHODS["fitted-flow"], "options", options)
    more = replace(calibration_set, prompts=(*PROMPTS, "a chair", "a kite"))
    for subject in more.subjects:
        record_full_run(more.caller, more.folder, subject)
    plan = METHODS["fitted-flow"].prepare(more, 4)
    assert plan.samples + plan.certificate.held_out == 3
    assert plan.certificate.evaluations_spent <= 100


def test_every_method_says_what_it_is_in_the_help_of_its_module():
    names = ("damped", "instant", "fitted", "fitted-flow", *CACHES)
    assert [name for name in names if name not in (named_methods.__doc__ or "")] == []


@NEEDS_CACHE_DIT
def test_a_cache_that_averages_over_processes_says_how_to_run_it(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(HostError, match="without torchrun, in one process, with --retry-failed"):
        CACHES["cache-dit"].available()


def test_all_calls_are_counted_together_for_a_while(caller):
    told: list[int] = []
    with caller.counting(lambda: told.append(1)) as spent:
        for _ in range(2):
            with torch.no_grad(), caller.open(SUBJECT) as velocity:
                velocity(velocity.run.noise, caller.times[0])
    with torch.no_grad(), caller.open(SUBJECT) as velocity:
        velocity(velocity.run.noise, caller.times[0])
    assert spent.total == len(told) == 2
    assert velocity.evaluated == caller.times[:1]


@pytest.mark.parametrize("page", ["README.md", "docs/reference/bench.md"])
def test_pages_say_how_many_rivals_there_are(page):
    rivals = {*BASELINES, *CACHES} - {"full"}
    said = re.search(r"(\d+) rivals", (ROOT / page).read_text(encoding="utf-8"))
    assert said is not None
    assert int(said[1]) == len(rivals)
