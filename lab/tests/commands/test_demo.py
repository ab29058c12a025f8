"""`tacache demo`: what it refuses, what it writes, and what it says."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command_line import assert_one_line, run
from tests.tiny import PIPELINES

import tacache_models
from tacache import Plan, Profile, models
from tacache.cli.render import strip
from tacache.instant import instant_plan
from tacache_lab.commands.demo_command import (
    DemoRunOptions,
    checked_budgets,
    default_budgets,
    runs_of,
)
from tacache_lab.demo.demo_plans import fewest, plans_for
from tacache_lab.demo.demo_request import CALIBRATION
from tacache_lab.demo.record import ModelDemo

RULES = ("linear", "tasu")


@pytest.mark.parametrize("steps", [10, 20, 28])
def test_demo_has_budgets_for_every_step_count_it_allows(steps):
    budgets = default_budgets(steps, (13, 10, 7))
    assert len(set(budgets)) == len(budgets)
    assert budgets == checked_budgets(budgets, steps)


def test_steps_or_evaluations_that_are_named_are_drawn_alone():
    by_default = [(run.model, run.steps) for run in runs_of("tiny-flux", DemoRunOptions(), None)]
    assert by_default == [("tiny-flux", 50), ("tiny-flux", 28), ("tiny-flux-turbo", 8)]
    assert [run.steps for run in runs_of("tiny-flux", DemoRunOptions(28), None)] == [28]
    (named,) = runs_of("tiny-flux", DemoRunOptions(), "7,9")
    assert (named.steps, named.budgets) == (50, [9, 7])
    assert [run.model for run in runs_of("tiny-wan", DemoRunOptions(), None)] == ["tiny-wan"]


def test_demo_refuses_what_cannot_be(tmp_path):
    assert_one_line(run("demo", "--steps", 9, "--out", tmp_path), "10")
    assert_one_line(run("demo", "--analytic", "--out", tmp_path), "No such option: --analytic")
    for budget in ("1", "51", "13,0"):
        few = run("demo", "--evaluations", budget, "--out", tmp_path)
        assert_one_line(few, "a run of 50 steps takes 2 to 50", budget.split(",")[-1])
    assert_one_line(run("demo", "--video", "--film", "--out", tmp_path), "--film is of pictures")
    assert_one_line(run("demo", "--evaluations", "ten", "--out", tmp_path), "whole numbers", "ten")
    assert not any(tmp_path.iterdir())


def without(monkeypatch, package):
    """As if a package were not installed, and all others of the demo were."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else name)


@pytest.fixture
def weights(tmp_path_factory, monkeypatch):
    """Folders where the embedded model's weights would be."""
    folder = tmp_path_factory.mktemp("weights")
    for part in tacache_models.PARTS:
        (folder / part).mkdir()
    shipped = replace(models.shipped()["tiny-flux"], folder=folder)
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)


def test_demo_says_so_where_the_weights_are_missing(tmp_path, monkeypatch):
    shipped = replace(models.shipped()["tiny-flux"], folder=tmp_path / "none")
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    result = run("demo", "--out", tmp_path, "--json")
    assert_one_line(result, "the weights of tiny-flux are not in")


@pytest.mark.parametrize("package", ["torchmetrics", "jinja2", "matplotlib", "diffusers"])
@pytest.mark.usefixtures("weights")
def test_demo_without_the_models_packages_names_what_to_install(tmp_path, monkeypatch, package):
    without(monkeypatch, package)
    result = run("demo", "--out", tmp_path / "demo")
    assert_one_line(result, package)
    assert not (tmp_path / "demo").exists()


@pytest.fixture
def tiny_demo(monkeypatch):
    """The embedded model replaced by a tiny random pipeline of 10 steps."""
    call = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": 10}
    shipped = replace(models.embedded("tiny-flux"), folder=Path("nowhere"), call=call)
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    monkeypatch.setattr(models, "check", lambda name: None)
    monkeypatch.setattr(models, "load", lambda name: PIPELINES["flux"].build())


@pytest.mark.slow
def test_demo_draws_prompts_with_the_embedded_model(tmp_path, tiny_demo):
    command = ["demo", "a red [apple]", "a fox", "--steps", 10, "--evaluations", "4,5,4", "--film"]
    tmp_path = tmp_path / "[v2]"
    result = run(*command, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "10 steps, mean of 2 prompts" in text
    assert "full steps" in text
    plans = [Plan.load(tmp_path / f"{rule}-{k}.plan.json") for k in (4, 5) for rule in RULES]
    assert [plan.rule for plan in plans] == [*RULES, *RULES]
    shown = [strip(plan) in result.stdout for plan in plans]
    assert shown in ([True, True, False, False], [False, False, True, True])  # of one budget
    assert len(list((tmp_path / "pictures").iterdir())) == 14  # full, and three ways at 5 and 4
    assert "[v2]" in "".join(result.stdout.split())
    assert "a red [apple]" in (tmp_path / "index.html").read_text()
    names = {"demo.json", "demo.profile.json", "index.html", "strip.png", "table.md", "pictures"}
    names.add("film.webp")
    assert names <= {path.name for path in tmp_path.iterdir()}
    for words in ("Ours, instant (the rule linear)", "The paper's rule (tasu)", "times faster"):
        assert words in text
    assert "Loading tiny-flux" in result.stderr
    assert run(*command, "--out", tmp_path).exit_code == 0  # it replaces its own


@pytest.mark.slow
def test_demo_of_the_model_prints_its_record_as_json(tmp_path, tiny_demo):
    command = ["demo", "a fox", "--steps", 10, "--evaluations", "4", "--seed", 3, "--json"]
    result = run(*command, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "full steps" not in result.stderr  # no progress
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "demo.json").read_text())
    rows = [(row["rule"], row["evaluations"]) for row in printed["budgets"]]
    assert rows == [(None, 10), ("plain", 4), ("linear", 4), ("tasu", 4)]
    assert ModelDemo.model_validate(printed).fps is None
    assert printed["seed"] == 3


@pytest.mark.slow
def test_demo_uses_the_shipped_profile_unless_asked_to_calibrate(tmp_path, tiny_demo, monkeypatch):
    command = ["demo", "a fox", "--steps", 10, "--evaluations", "4", "--out", tmp_path]
    assert run(*command).exit_code == 0
    measured = Profile.load(tmp_path / "demo.profile.json")
    assert measured.samples == len(CALIBRATION)
    shipped = replace(models.shipped()["tiny-flux"], folder=tmp_path)
    monkeypatch.setitem(models.shipped(), "tiny-flux", shipped)
    measured.model_copy(update={"samples": 77}).save(shipped.profile)
    assert run(*command).exit_code == 0
    assert Profile.load(tmp_path / "demo.profile.json").samples == 77
    assert run(*command, "--calibrate").exit_code == 0
    assert Profile.load(tmp_path / "demo.profile.json").samples == len(CALIBRATION)


@pytest.mark.slow
def test_a_demo_has_a_folder_for_each_model(tmp_path, tiny_demo, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("demo", "a fox", "--steps", 10, "--evaluations", "4")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "demo" / "tiny-flux" / "index.html").is_file()
    assert "Open demo/tiny-flux/index.html" in " ".join(result.stdout.split())


def never(*_, **__):
    raise AssertionError("the model was loaded")


@pytest.mark.parametrize(
    "name", ["index.html", "demo.json", "table.md", "strip.png", "strip.gif", "film.webp"]
)
def test_a_demo_replaces_no_file_of_somebody_else(tmp_path, monkeypatch, name):
    monkeypatch.setattr(models, "load", never)
    (tmp_path / name).write_text("mine")
    refused = run("demo", "-o", tmp_path)
    assert_one_line(refused, tmp_path / name, "no demo wrote it", "--out")
    assert (tmp_path / name).read_text() == "mine"


def test_a_demo_replaces_no_demo_of_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load", never)
    record = '{"model": "tiny-flux", "budgets": [], "pictures": []}'
    (tmp_path / "demo.json").write_text(record)
    assert_one_line(run("demo", "--video", "-o", tmp_path), "holds the demo of tiny-flux", "--out")
    assert (tmp_path / "demo.json").read_text() == record


# --- its plans


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.load(models.embedded("tiny-flux").profile)


@pytest.fixture
def shipped(tmp_path, profile) -> models.Embedded:
    """A model with a plan of 13 evaluations."""
    made = replace(models.embedded("tiny-flux"), folder=tmp_path, call={})
    plan = instant_plan(profile.times, 13).model_copy(update={"rule": "fitted"})
    plan.save(made.plan_file(13))
    return made


def test_ours_and_the_papers_are_drawn_at_the_same_evaluations(shipped, profile):
    found = [(plan.rule, plan.evaluations) for plan in plans_for(shipped, profile, [13])]
    assert found == [("linear", 13), ("fitted", 13), ("tasu", 13)]


@pytest.mark.slow
def test_where_no_plan_ships_the_instant_one_stands_in(shipped, profile):
    found = [(plan.rule, plan.evaluations) for plan in plans_for(shipped, profile, [13, 9])]
    assert found[-2:] == [("linear", 9), ("tasu", 9)]
    shorter = profile.resample(profile.times[::2])
    assert [plan.rule for plan in plans_for(shipped, shorter, [13])] == ["linear", "tasu"]


@pytest.mark.slow
def test_a_plan_that_ships_for_other_steps_is_found_by_its_own_steps(shipped, profile):
    shorter = profile.resample(profile.times[::2])
    plan = instant_plan(shorter.times, 9).model_copy(update={"rule": "fitted"})
    plan.save(shipped.plan_file(13).with_name("9of25.plan.json"))
    plan.save(shipped.plan_file(9, "flow"))  # one for the flow is none for the run
    rules = [plan.rule for plan in plans_for(shipped, shorter, [9])]
    assert rules == ["linear", "fitted", "tasu"]
    assert [plan.rule for plan in plans_for(shipped, profile, [9])] == ["linear", "tasu"]


def test_the_papers_rule_is_left_out_of_budgets_it_cannot_meet(shipped, profile):
    assert fewest(50) == 6
    assert [plan.rule for plan in plans_for(shipped, profile, [5])] == ["linear"]
