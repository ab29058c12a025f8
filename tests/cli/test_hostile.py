"""Commands on damaged and hostile files, and on disks that take nothing: one line each."""

import os
import resource

import pytest
from tests.command_line import assert_one_line, run
from tests.tiny import PIPELINES

from tacache.plan import make_plan
from tacache.storage.origin import Origin
from tacache_lab.commands.demo_command import check_ours


@pytest.fixture
def file(profile, tmp_path):
    return profile.save(tmp_path / "some.profile.json")


@pytest.mark.parametrize("command", ["show", "plan"])
def test_what_a_file_says_does_not_reach_the_terminal_raw(profile, tmp_path, command):
    evil = "\x1b]0;owned\x07\x1b[2J"
    path = tmp_path / "x.profile.json"
    source = profile.model_copy(update={"origin": Origin(model=evil, pipeline=evil)})
    more = ["--evaluations", 5] if command == "plan" else []
    source.save(path)
    made = run(command, path, *more)
    assert made.exit_code == 0
    path.write_text(path.read_text().replace('"samples"', '"samples\\u001b[2J"'))
    refused = run(command, path, *more)
    assert refused.exit_code == 2
    assert "\\x1b[2J" in refused.stderr
    for text in (made.output, refused.output):
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text


def test_only_a_plan_is_written_over(file, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("# mine\n")
    refused = run("plan", file, "--evaluations", 5, "-o", notes)
    assert_one_line(refused, "notes.md is there and is not a tacache-plan file")
    assert notes.read_text() == "# mine\n"


@pytest.mark.parametrize("number", ["1e308", "1e29", "1e7"])
def test_huge_numbers_are_one_line(file, tmp_path, number):
    text = file.read_text()
    start = text.index('"direction": [') + len('"direction": [')
    file.write_text(text[:start] + number + text[text.index(",", start) :])
    for arguments in (
        ("plan", file, "--evaluations", 5),
        ("show", file, "--plot", tmp_path / "x.svg"),
    ):
        assert_one_line(run(*arguments), "direction")


@pytest.mark.parametrize("command", ["generate", "demo", "fit", "bench", "calibrate"])
def test_a_folder_that_takes_nothing_ends_a_command_before_its_work(tmp_path, monkeypatch, command):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("tacache.models.load", never)
    monkeypatch.setattr("tacache.diffusers.pipeline_loading.load_pipeline", never)
    model = [] if command == "demo" else ["tiny-flux"]
    model += ["--prompt", "a fox"] if command == "generate" else []
    methods = ["--methods", "fewer"] if command == "bench" else []
    refused = run(command, *model, *methods, "-o", tmp_path / "out")
    assert_one_line(refused, f"cannot write {tmp_path}", "Read-only file system")


@pytest.mark.parametrize("command", ["fit", "bench"])
def test_a_disk_that_fills_up_meanwhile_is_one_line(tmp_path, monkeypatch, command):
    """No file grows beyond 2,000 bytes; the folder was tried before, and took a trial."""
    monkeypatch.setattr("tacache.storage.atomic.TRIAL", b"x")
    model = tmp_path / "flux"
    PIPELINES["flux"].build().save_pretrained(model)
    size = ["--steps", 6, "--height", 32, "--width", 32, "--call", "max_sequence_length=32"]
    more = ["--methods", "tasu", "--calibration-count", 2] if command == "bench" else []
    out = tmp_path / "out" / "x.json"
    asked = [command, model, *size, *more, "--count", 2, "--evaluations", 3, "-o", out, "--json"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        refused = run(*asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.exit_code == 2, refused.output
    line = refused.stderr.splitlines()[-1]
    assert line.startswith(f"tacache: cannot write {out}")
    assert "(File too large)" in line
    assert "Traceback" not in refused.output
    left = [name for _, _, names in os.walk(tmp_path / "out") for name in names]
    assert set(left) <= {"lock"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "it is not a finite number"),
        ("[1e40]", "field '0' is beyond 1e+30"),
        ("[" * 5000, "it is nested too deeply"),
        ("1" * 5000, "digits"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
    ],
)
def test_values_of_a_call_that_no_file_holds_are_one_line(tmp_path, value, reason):
    asked = ["--call", f"guidance_scale={value}", "-o", tmp_path / "x.json"]
    for command in (["calibrate"], ["fit"], ["bench", "--methods", "fewer"]):
        refused = run(command[0], "tiny-flux", *command[1:], *asked)
        assert_one_line(refused, "--call guidance_scale cannot be used", reason)


@pytest.mark.parametrize("name", ["index.html", "demo.json", "demo.profile.json"])
def test_a_demo_replaces_no_page_of_somebody_else(tmp_path, monkeypatch, name):
    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("tacache.models.load", never)
    (tmp_path / name).write_text("mine")
    assert_one_line(run("demo", "-o", tmp_path), tmp_path / name, "is there")
    assert (tmp_path / name).read_text() == "mine"


def test_a_demo_replaces_its_own_page(tmp_path):
    (tmp_path / "index.html").write_text("a page")
    (tmp_path / "demo.json").write_text('{"model": "m", "budgets": [], "pictures": []}')
    check_ours(tmp_path, "m")


@pytest.mark.parametrize("steps", [10**9, 0, -1, True, 2.5, "many"])
def test_a_plan_that_asks_for_steps_no_run_has_is_one_line(profile, tmp_path, monkeypatch, steps):
    def never(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("tacache.diffusers.pipeline_loading.load_pipeline", never)
    made = make_plan(profile, evaluations=5)
    host = Origin(kind="diffusers", call={"num_inference_steps": steps})
    path = made.model_copy(update={"origin": host}).save(tmp_path / "x.plan.json")
    refused = run("generate", "an/x", "--plan", path, "--prompt", "a fox", "-o", tmp_path)
    assert_one_line(refused, "num_inference_steps is a whole number from 1 to 10000", repr(steps))
