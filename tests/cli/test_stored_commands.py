"""`tacache plans` and its words show, remove and export: exit codes, tables and JSON."""

import errno
import json
from pathlib import Path

import pytest
from tests.command_line import assert_one_line, run
from tests.storage.test_store import CERTIFICATE, FLOW, ORIGIN, fitted

from tacache import Origin, Plan, PlanError, TACacheError, make_plan
from tacache.cli.stored_commands import named_plan
from tacache.storage.store import PlanStore


@pytest.fixture
def stored():
    measured = CERTIFICATE.model_copy(update={"psnr": 33.125})
    return PlanStore().put(fitted(certificate=measured))


@pytest.fixture
def unshipped(monkeypatch):
    """No model is installed that comes with plans."""
    monkeypatch.setattr("tacache.storage.store.shipped_folders", tuple)


@pytest.mark.usefixtures("unshipped")
def test_an_empty_store_says_how_a_plan_is_made(home):
    shown = run("plans")
    assert shown.exit_code == 0
    assert str(home / "plans") in shown.stdout.replace("\n", "")
    assert "tacache fit MODEL" in shown.stdout
    assert json.loads(run("plans", "--json").stdout) == {
        "folder": str(home / "plans"), "plans": []
    }  # fmt: skip


def test_the_list_says_what_each_plan_is_for_and_does(stored, monkeypatch):
    PlanStore().put(fitted(certificate=FLOW))
    monkeypatch.setenv("COLUMNS", "140")
    shown = run("plans").stdout
    for part in (stored.name, "3 of 8", "2.67x", "fitted", "33.12", "0.1000", "FLUX.1-dev",
                 "1024x1024", "guidance 3.5", "equivalent to 20 steps"):  # fmt: skip
        assert part in shown, part


def test_the_list_for_programs(stored):
    listed = json.loads(run("plans", "--json").stdout)["plans"]
    places = [
        (Path(one["model"]).name, one["steps"], one["target"], one["evaluations"]) for one in listed
    ]
    assert places == sorted(places)
    assert len({place[0] for place in places}) > 1
    (facts,) = (one for one in listed if not one["shipped"])
    assert facts["name"] == stored.name
    assert facts["file"] == str(stored.path)
    assert (facts["evaluations"], facts["steps"], facts["rule"]) == (3, 8, "fitted")
    assert (facts["psnr"], facts["drift"], facts["target"]) == (33.125, 0.1, "run")
    assert facts["model"] == ORIGIN.model
    assert facts["used_unasked"] is True


def test_plans_of_every_kind_are_listed(profile):
    store = PlanStore()
    store.put(make_plan(profile, evaluations=5))
    call = {"image_shapes": [512, 768], "cfg_text_scale": 4.0}
    store.put(fitted(Origin(kind="bagel", call=call)))
    shown = run("plans")
    assert shown.exit_code == 0, shown.output
    assert "512x768, guidance 4" in shown.stdout.replace("\n", " ")
    assert "tasu" in shown.stdout


def test_show_prints_the_plan(stored):
    shown = run("plans", "show", stored.name)
    assert shown.exit_code == 0, shown.output
    assert "3 of 8 steps" in shown.stdout
    facts = json.loads(run("plans", "show", stored.name, "--json").stdout)
    assert facts["anchors"] == [0, 1, 2]
    assert facts["name"] == stored.name


def test_remove_deletes_all_or_none(stored):
    other = PlanStore().put(fitted(evaluations=4))
    assert_one_line(run("plans", "remove", stored.name, "nothing"), "there is no plan 'nothing'")
    assert len(PlanStore().plans()) == 2
    removed = run("plans", "remove", stored.name, other.name)
    assert removed.exit_code == 0
    assert removed.stdout.count("Removed") == 2
    assert PlanStore().plans() == []


def test_export_writes_the_same_file(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("plans", "export", stored.name).exit_code == 0
    assert Path(stored.path.name).read_bytes() == stored.path.read_bytes()
    made = run("plans", "export", stored.name, "-o", tmp_path / "sub" / "x.json")
    assert f"Written to {tmp_path / 'sub' / 'x.json'}" in made.stdout.replace("\n", "")
    assert Plan.load(tmp_path / "sub" / "x.json") == stored.plan
    (tmp_path / "notes.md").write_text("mine")
    assert_one_line(run("plans", "export", stored.name, "-o", "notes.md"), "notes.md is there")


@pytest.mark.parametrize("command", [["show"], ["remove"], ["export"]])
def test_a_misspelt_name_is_one_line_with_the_right_one(stored, command):
    said = run("plans", *command, stored.name[:-1])
    assert_one_line(said, "there is no plan", f"did you mean {stored.name}?")
    assert_one_line(run("plans", *command), "Missing argument")


def test_an_unknown_word_is_an_error(stored):
    assert_one_line(run("plans", "list"), "list")
    assert_one_line(run("plans", "--sort"), "--sort")


def test_a_damaged_file_is_named_and_the_others_are_listed(stored, caplog):
    stored.path.with_name("torn.plan.json").write_text("{")
    shown = run("plans")
    assert shown.exit_code == 0
    assert stored.name in shown.stdout
    assert "torn.plan.json" in caplog.text


def test_a_read_only_store_is_one_line(stored, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert_one_line(run("plans", "remove", stored.name), "Read-only file system")
    assert run("plans").exit_code == 0


@pytest.mark.parametrize("command", ["", "show", "remove", "export"])
def test_help_has_examples(command):
    shown = run("plans", *([command] if command else []), "--help").stdout
    assert "Examples" in shown
    assert f"tacache plans {command}".strip() in shown


def test_a_plan_is_named_by_its_file_or_by_its_name(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_plan(stored.name) == stored.plan
    assert named_plan(str(stored.path)) == stored.plan
    Path("mine").write_text(stored.plan.to_json())
    assert named_plan("mine") == stored.plan
    with pytest.raises(TACacheError, match="is no file, and there is no plan 'none'"):
        named_plan("none")
    with pytest.raises(PlanError, match="cannot read"):
        named_plan("none.plan.json")


def test_shipped_plans_are_listed_and_shown_and_stay(stored, tmp_path, monkeypatch):
    shipped = PlanStore(tmp_path / "tiny" / "plans", shipped=())
    theirs = shipped.put(fitted(evaluations=5))
    monkeypatch.setattr("tacache.storage.store.shipped_folders", lambda: (shipped.folder,))
    name = f"tiny-{theirs.name}"
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("plans").stdout
    assert shown.index(stored.name) < shown.index(name)  # fewer evaluations first
    assert all(len(line) <= 80 for line in shown.splitlines())
    (facts,) = json.loads(run("plans", "--shipped", "--json").stdout)["plans"]
    assert (facts["name"], facts["shipped"]) == (name, True)
    for command in (("plans", "show"), ("show",)):
        assert "5 of 8 steps" in run(*command, name).stdout
    assert_one_line(run("plans", "remove", name), "comes with the package")


def test_what_a_terminal_would_act_on_is_escaped():
    path = PlanStore().put(fitted(ORIGIN.model_copy(update={"model": "\x1b[31mred\u202e"}))).path
    hostile = path.rename(path.with_name("\x1b[2J.plan.json"))
    for command in (["plans"], ["plans", "show", "\x1b[2J"], ["plans", "remove", "\x1b[3J"]):
        shown = run(*command)
        assert "\x1b" not in shown.output + shown.stderr
        assert "\u202e" not in shown.output
    hostile.write_text("{")
    assert "\x1b" not in run("plans").output
