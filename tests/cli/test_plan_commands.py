"""`tacache plan push` and `tacache plan pull`: commands of two words beside `tacache plan`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run

from tacache import Plan, make_plan
from tacache.storage import hub
from tacache.storage.store import PlanStore


@pytest.fixture
def plan(profile) -> Plan:
    return make_plan(profile, evaluations=5)


@pytest.fixture
def pushed(monkeypatch) -> list[Any]:
    seen: list[Any] = []

    def push(plan: Plan, repo: str, name: str, *, private: bool) -> tuple[str, bool]:
        seen.append((plan, repo, name, private))
        return "https://hub/commit/1", repo != "me/model"

    monkeypatch.setattr(hub, "push", push)
    return seen


@pytest.fixture
def there(plan, monkeypatch, tmp_path) -> Plan:
    """A hub with one plan, and an empty folder to be in."""
    monkeypatch.setattr(hub, "pull", lambda repo, name, **_: ("deep/five.plan.json", plan))
    monkeypatch.chdir(tmp_path)
    return plan


def test_push_says_where_the_plan_is(plan, pushed, tmp_path):
    file = plan.save(tmp_path / "flux.plan.json")
    made = run("plan", "push", file, "me/plans", "--private")
    assert made.exit_code == 0, made.output
    assert made.stdout == "flux.plan.json is in https://hub/commit/1\n"
    assert run("plan", "push", file, "me/plans", "--name", "five").exit_code == 0
    assert pushed == [
        (plan, "me/plans", "flux.plan.json", True),
        (plan, "me/plans", "five.plan.json", False),
    ]


def test_push_says_when_the_card_is_not_ours(plan, pushed, tmp_path):
    file = plan.save(tmp_path / "a.json")
    assert "it was left as it is" in run("plan", "push", file, "me/model").stdout
    facts = json.loads(run("plan", "push", file, "me/model", "--json").stdout)
    assert facts == {"file": "a.plan.json", "commit": "https://hub/commit/1", "card": False}


def test_what_is_no_plan_is_not_pushed(profile, pushed, tmp_path):
    made = run("plan", "push", profile.save(tmp_path / "p.json"), "me/plans")
    assert made.exit_code == 2
    assert "is not a tacache-plan file" in made.stderr
    assert not pushed


def test_pull_puts_the_plan_into_the_store(there):
    made = run("plan", "pull", "me/plans", "--evaluations", 5)
    assert made.exit_code == 0, made.output
    (stored,) = PlanStore().plans()
    assert stored.plan == there
    assert f"In the plan store as {stored.name}" in made.stdout
    assert list(Path().iterdir()) == []


def test_pull_also_writes_a_file(there):
    facts = json.loads(run("plan", "pull", "me/plans", "-o", "sub/x.json", "--json").stdout)
    assert (facts["file"], facts["evaluations"]) == ("sub/x.json", 5)
    assert Plan.load("sub/x.json") == there
    assert PlanStore().get(facts["stored"]).plan == there


def test_pull_replaces_another_file_only_when_told_to(there):
    Path("five.plan.json").write_text("mine")
    made = run("plan", "pull", "me/plans", "-o", "five.plan.json")
    assert made.exit_code == 2
    assert "give another -o, or --force" in made.stderr
    assert Path("five.plan.json").read_text() == "mine"
    assert PlanStore().plans() == []
    assert run("plan", "pull", "me/plans", "-o", "five.plan.json", "--force").exit_code == 0
    assert run("plan", "pull", "me/plans", "-o", "five.plan.json").exit_code == 0  # the same again


def test_pull_replaces_a_stored_plan_only_when_told_to(there):
    mine = there.model_copy(update={"samples": 99})
    stored = PlanStore().put(mine)
    made = run("plan", "pull", "me/plans")
    assert made.exit_code == 2
    assert f"another plan for the same purpose, {stored.name}: give --force" in made.stderr
    assert PlanStore().get(stored.name).plan == mine
    assert run("plan", "pull", "me/plans", "--force").exit_code == 0
    assert PlanStore().get(stored.name).plan == there


def test_a_stored_plan_is_pushed_by_its_name(there, pushed):
    stored = PlanStore().put(there)
    assert run("plan", "push", stored.name, "me/plans").exit_code == 0
    assert pushed == [(there, "me/plans", f"{stored.name}.plan.json", False)]


def test_plan_itself_is_as_it_was(profile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile.save("push.profile.json")
    assert run("plan", "push.profile.json", "--evaluations", 5).exit_code == 0
    assert Plan.load("push.plan.json").evaluations == 5
    profile.save("pull")  # a file of a command's name is reached by its path
    assert run("plan", "./pull", "--evaluations", 5, "-o", "x.json").exit_code == 0


@pytest.mark.parametrize("command", ["push", "pull"])
def test_help_has_examples(command):
    shown = run("plan", command, "--help").stdout
    assert f"tacache plan {command}" in shown
    assert "Examples" in shown
    assert f"plan {command}" in run("--help").stdout


def test_without_the_package_the_error_names_the_extra(plan, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    made = run("plan", "push", plan.save(tmp_path / "a.plan.json"), "me/plans")
    assert made.exit_code == 2
    assert made.stderr == "tacache: this needs: pip install 'tacache[diffusers]'\n"
