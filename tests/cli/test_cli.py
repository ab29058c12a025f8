import json
import os
import re
import subprocess
import sys

import pytest
import typer
from tests.command_line import assert_one_line, run
from tests.support import profile_from

import tacache
from tacache import Plan, make_plan, models
from tacache.cli.command_line import app
from tacache.cli.render import strip


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
    assert Plan.load(tmp_path / "out" / "x.json").evaluations == 7


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
        (["--evaluations", 1], ["1 evaluation cannot be made", "3 to 20"]),
        (["--evaluations", 99], ["99 evaluations cannot be made", "3 to 20"]),
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
        (b"[1, 2]", "neither a tacache-profile"),
        (b"{}", "neither a tacache-profile"),
        (b'{"format": "x"}', "its format is 'x'"),
        (b'{"format": []}', "neither a tacache-profile"),
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
    missing = run("show", tmp_path / "none.json")
    assert_one_line(missing, "none.json", "No such file")
    assert "Errno" not in missing.stderr
    assert_one_line(run("show", tmp_path), tmp_path, "irectory")


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


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(file):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tacache", "show", str(file)]
    with os.fdopen(writer, "w") as closed:
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.slow
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
        "tacache: 40 evaluations cannot be made: 8 steps with max_skip=12 take 2 to 8\n"
    )
