import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from support import profile_from
from typer.testing import CliRunner

import tacache
from tacache import Plan, Profile, make_plan, models
from tacache.cli import app
from tacache.cli.demo import checked_budgets, default_budgets
from tacache.cli.render import strip
from tacache.lab.demo.run import CALIBRATION
from tests.tiny import PIPELINES


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments], terminal_width=100)


def assert_one_line(result, *parts):
    """Our own error: exit code 2, one line on standard error, nothing else."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("tacache: ")
    for part in parts:
        assert str(part) in result.stderr


@pytest.fixture
def file(profile, tmp_path):
    return profile.save(tmp_path / "some.profile.json")


# --- plan


def test_plan_by_evaluations(file, profile):
    result = run("plan", file, "--evaluations", 7)
    assert result.exit_code == 0, result.output
    made = Plan.load(file.with_name("some.plan.json"))
    assert made == make_plan(profile, evaluations=7)
    assert strip(made) in result.stdout
    assert "7 of 20 steps" in result.stdout
    assert "some.plan.json" in result.stdout


def test_plan_by_speedup(file, tmp_path):
    result = run("plan", file, "--speedup", 3, "-o", tmp_path / "out" / "x.json")
    assert result.exit_code == 0, result.output
    assert Plan.load(tmp_path / "out" / "x.json").evaluations == 6


def test_plan_by_thresholds(file, profile, tmp_path):
    out = tmp_path / "x.json"
    result = run(
        *("plan", file, "--tau-k", 0.3, "--tau-d", 0.4, "--max-skip", 4),
        *("--rule", "magnitude", "--out", out),
    )
    assert result.exit_code == 0, result.output
    expected = make_plan(profile, tau_k=0.3, tau_d=0.4, max_skip=4, rule="magnitude")
    assert Plan.load(out) == expected


def test_plan_keeps_a_ratio(file):
    assert run("plan", file, "--evaluations", 7, "--ratio", 10).exit_code == 0
    made = Plan.load(file.with_name("some.plan.json"))
    assert made.tau_d == pytest.approx(10 * made.tau_k)


def test_plan_prints_json(file, profile):
    result = run("plan", file, "--evaluations", 7, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    printed = json.loads(result.stdout)
    made = make_plan(profile, evaluations=7)
    assert printed["file"] == str(file.with_name("some.plan.json"))
    assert printed["anchors"] == list(made.anchors)
    assert printed["intervals"] == list(made.intervals)
    assert (printed["steps"], printed["evaluations"], printed["speedup"]) == (20, 7, 20 / 7)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], ["give exactly one of", "none was given"]),
        (["--evaluations", 5, "--speedup", 2], ["evaluations, speedup were given"]),
        (["--tau-k", 0.1], ["tau_d is missing"]),
        (["--evaluations", 1], ["1 evaluations are impossible", "3 to 20"]),
        (["--evaluations", 99], ["99 evaluations are impossible", "3 to 20"]),
        (["--evaluations", 5, "--rule", "magic"], ["unknown rule 'magic'", "tasu"]),
        (["--speedup", 0.5], ["speedup is a number from 1"]),
        (["--evaluations", 5, "--max-skip", 0], ["max_skip is at least 1"]),
        (["--tau-k", "nan", "--tau-d", 1], ["tau_k is a finite number"]),
    ],
)
def test_a_wrong_wish_is_one_line(file, options, parts):
    assert_one_line(run("plan", file, *options), *parts)
    assert not file.with_name("some.plan.json").exists()


def test_a_file_that_is_no_profile_is_one_line(tmp_path):
    assert_one_line(run("plan", tmp_path / "none.json", "--evaluations", 5), "none.json")
    assert_one_line(run("plan", tmp_path, "--evaluations", 5), tmp_path, "irectory")
    plan = Plan.full([1.0, 0.5, 0.0]).save(tmp_path / "x.plan.json")
    assert_one_line(run("plan", plan, "--evaluations", 5), "'tacache-plan'")


def test_a_place_that_cannot_be_written_is_one_line(file, tmp_path):
    assert_one_line(run("plan", file, "--evaluations", 5, "-o", tmp_path), "is a folder")
    assert_one_line(run("plan", file, "--evaluations", 5, "-o", file / "x.json"), file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.profile.json"]


# --- show


def test_show_a_profile(file):
    result = run("show", file)
    assert result.exit_code == 0
    for part in ("magnitude (MI", "direction (DI", "samples", "20, t from 1 to 0"):
        assert part in result.stdout


def test_show_a_plan(profile, tmp_path):
    plan = make_plan(profile, evaluations=5)
    result = run("show", plan.save(tmp_path / "x.plan.json"))
    assert result.exit_code == 0
    for part in (strip(plan), "predicted speedup", "4.00x", "intervals", "direction (DI"):
        assert part in result.stdout


def test_show_prints_json(file, profile, tmp_path):
    printed = json.loads(run("show", file, "--json").stdout)
    assert printed["direction"] == list(profile.direction)
    assert printed["samples"] == 6
    plan = make_plan(profile, evaluations=5)
    printed = json.loads(run("show", plan.save(tmp_path / "x.plan.json"), "--json").stdout)
    assert printed["anchors"] == list(plan.anchors)
    assert printed["speedup"] == 4.0


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is not JSON"),
        (b"garbage", "is not JSON"),
        (b"\x80\x04\x95\xff\xfe\x00", "is not JSON"),
        (b"[1, 2]", "neither a profile nor a plan"),
        (b"{}", "neither a profile nor a plan"),
        (b'{"format": "x"}', "its format is 'x'"),
        (b'{"format": []}', "neither a profile nor a plan"),
        (b'{"format": "tacache-plan", "version": 9}', "has version 9"),
        (b'{"format": "tacache-plan", "version": 1}', "field required"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_show_what_is_neither_is_one_line(tmp_path, content, part):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert_one_line(run("show", path), path, part)


def test_show_a_missing_file_or_a_directory_is_one_line(tmp_path):
    assert_one_line(run("show", tmp_path / "none.json"), "none.json", "No such file")
    assert_one_line(run("show", tmp_path), tmp_path, "irectory")


# --- demo


@pytest.mark.parametrize("steps", [10, 20, 28])
def test_demo_has_budgets_for_every_step_count_it_allows(steps):
    budgets = default_budgets(steps, (25, 13, 10, 7))
    assert len(set(budgets)) == len(budgets)
    assert budgets == checked_budgets(budgets, steps)


def test_demo_refuses_what_cannot_be(tmp_path):
    assert_one_line(run("demo", "--steps", 9, "--out", tmp_path), "10")
    assert_one_line(run("demo", "--analytic", "--out", tmp_path), "No such option: --analytic")
    for budget in ("1", "51", "13,0"):
        few = run("demo", "--evaluations", budget, "--out", tmp_path)
        assert_one_line(few, "a run of 50 steps takes 6 to 50", budget.split(",")[-1])
    assert_one_line(run("demo", "--evaluations", "ten", "--out", tmp_path), "whole numbers", "ten")
    assert not any(tmp_path.iterdir())


def without(monkeypatch, package):
    """As if a package were not installed, and all others of the demo were."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else name)


@pytest.fixture
def weights(tmp_path_factory, monkeypatch):
    """Folders where the embedded model's weights would be."""
    folder = tmp_path_factory.mktemp("weights")
    for part in models.PARTS:
        (folder / part).mkdir()
    shipped = replace(models.EMBEDDED["tiny-flux"], folder=folder)
    monkeypatch.setitem(models.EMBEDDED, "tiny-flux", shipped)


def test_demo_says_so_where_the_weights_are_missing(tmp_path, monkeypatch):
    shipped = replace(models.EMBEDDED["tiny-flux"], folder=tmp_path / "none")
    monkeypatch.setitem(models.EMBEDDED, "tiny-flux", shipped)
    result = run("demo", "--out", tmp_path, "--json")
    assert_one_line(result, "the weights of tiny-flux are not in")


@pytest.mark.parametrize("package", ["torchmetrics", "jinja2", "matplotlib", "diffusers"])
@pytest.mark.usefixtures("weights")
def test_demo_without_the_models_packages_names_what_to_install(tmp_path, monkeypatch, package):
    without(monkeypatch, package)
    result = run("demo", "--out", tmp_path / "demo")
    assert_one_line(result, package, "pip install 'tacache[demo]'")
    assert not (tmp_path / "demo").exists()


@pytest.fixture
def tiny_demo(monkeypatch):
    """The embedded model replaced by a tiny random pipeline of 10 steps."""
    call = {"height": 32, "width": 32, "max_sequence_length": 32, "num_inference_steps": 10}
    shipped = models.Embedded(Path("nowhere"), call)
    monkeypatch.setitem(models.EMBEDDED, "tiny-flux", shipped)
    monkeypatch.setattr(models, "check", lambda name: None)
    monkeypatch.setattr(models, "load", lambda name: PIPELINES["flux"].build())


def test_demo_draws_prompts_with_the_embedded_model(tmp_path, tiny_demo):
    command = ["demo", "a red [apple]", "a fox", "--steps", 10, "--evaluations", "4,5,4"]
    tmp_path = tmp_path / "[v2]"
    result = run(*command, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "10 steps, mean of 2 prompts" in text
    assert "full steps" in text
    plan = Plan.load(tmp_path / "demo-4.plan.json")
    assert strip(plan) in result.stdout
    assert len(list((tmp_path / "pictures").iterdir())) == 6
    assert "[v2]" in "".join(result.stdout.split())
    assert "a red [apple]" in (tmp_path / "index.html").read_text()


def test_demo_of_the_model_prints_its_record_as_json(tmp_path, tiny_demo):
    command = ["demo", "a fox", "--steps", 10, "--evaluations", "4", "--seed", 3, "--json"]
    result = run(*command, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "full steps" not in result.stderr  # no progress
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "demo.json").read_text())
    assert [row["evaluations"] for row in printed["budgets"]] == [10, 4]
    assert printed["seed"] == 3


def test_demo_uses_the_shipped_profile_unless_asked_to_calibrate(tmp_path, tiny_demo, monkeypatch):
    command = ["demo", "a fox", "--steps", 10, "--evaluations", "4", "--out", tmp_path]
    assert run(*command).exit_code == 0
    measured = Profile.load(tmp_path / "demo.profile.json")
    assert measured.samples == len(CALIBRATION)
    shipped = replace(models.EMBEDDED["tiny-flux"], folder=tmp_path)
    monkeypatch.setitem(models.EMBEDDED, "tiny-flux", shipped)
    measured.model_copy(update={"samples": 77}).save(shipped.profile)
    assert run(*command).exit_code == 0
    assert Profile.load(tmp_path / "demo.profile.json").samples == 77
    assert run(*command, "--calibrate").exit_code == 0
    assert Profile.load(tmp_path / "demo.profile.json").samples == len(CALIBRATION)


# --- around the commands


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"tacache {tacache.__version__}\n")


@pytest.mark.parametrize(
    "command", [known.name or known.callback.__name__ for known in app.registered_commands]
)
def test_help_of_every_command_has_an_example(command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"tacache {command} " in result.stdout


def test_no_help_text_has_brackets_that_are_taken_for_markup():
    def swallowed(command):
        parameters = typer.main.get_command_from_info(
            command, pretty_exceptions_short=False, rich_markup_mode="rich"
        ).params
        return [one.name for one in parameters if re.search(r"(?<!\\)\[", one.help or "")]

    found = {known.callback.__name__: swallowed(known) for known in app.registered_commands}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_no_command_shows_help():
    result = run()
    assert "Usage" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments", [["paln"], ["plan"], ["plan", "x", "--evaluations", "many"], ["show", "--jsno"]]
)
def test_a_mistyped_command_ends_with_code_2_and_no_traceback(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.output


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    def needs(name):
        def check(*_):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(models, "check", check)
        return run("demo", "--out", tmp_path)

    assert_one_line(needs("diffusers.pipelines"), "pip install 'tacache[diffusers]'")
    # Any other missing module is a fault of ours, and is to be seen as one.
    assert isinstance(needs("tacache.nowhere").exception, ModuleNotFoundError)


def test_a_reader_that_has_seen_enough_is_no_error(file):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tacache", "show", str(file)]
    with os.fdopen(writer, "w") as closed:
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"")


def test_the_module_runs_as_a_command(tmp_path):
    path = profile_from([0.1] * 8, [0.2] * 8).save(tmp_path / "x.profile.json")

    def tacache_command(*arguments):
        command = [sys.executable, "-m", "tacache", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = tacache_command("plan", path, "--evaluations", 4, "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["evaluations"] == 4
    bad = tacache_command("plan", path, "--evaluations", 40)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == (
        "tacache: 40 evaluations are impossible: 8 steps with max_skip=12 take 2 to 8\n"
    )
