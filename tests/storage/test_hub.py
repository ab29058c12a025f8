"""Plans on the hub, with its API replaced at the boundary by one that lives in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from typer.testing import CliRunner

from tacache import Plan, make_plan
from tacache.cli.command_line import app
from tacache.plan import Certificate
from tacache.storage.hub import CARD, OURS, HubError, card, pull, push
from tacache.storage.origin import Origin
from tacache.storage.reading import MAX_FILE_BYTES

CERTIFICATE = Certificate(
    held_out=4, drift=0.0123, fit_drift=0.01, psnr=36.5, evaluations_spent=2400, date="2026-01-02"
)
HOST = Origin(
    model="someone/model", pipeline="FluxPipeline", call={"height": 1024, "guidance_scale": 3.5}
)


@dataclass
class MemoryHub:
    """The few calls of HfApi that are used; `down` is raised by each."""

    folder: Path
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[tuple[str, str]] = field(default_factory=list)
    private: dict[str, bool] = field(default_factory=dict)
    down: Exception | None = None

    def __call__(self, library_name: str) -> MemoryHub:
        """As the class is called."""
        assert library_name == "tacache"
        return self

    def create_repo(self, repo_id: str, *, exist_ok: bool, private: bool) -> None:
        """Make it, unless it is there."""
        self._check()
        assert exist_ok
        if repo_id not in self.repos:
            self.repos[repo_id] = {}
            self.private[repo_id] = private

    def repo_info(self, repo_id: str, *, revision: str | None) -> Any:
        """Its files."""
        self._check()
        if repo_id not in self.repos:
            raise missing()
        names = [*self.repos[repo_id], ".gitattributes"]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None) -> str:
        """A file of it in a cache."""
        self._check()
        target = self.folder / repo_id / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.repos[repo_id][filename])
        return str(target)

    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> Any:
        """Add files."""
        self._check()
        for one in operations:
            self.repos[repo_id][one.path_in_repo] = one.path_or_fileobj
        self.commits.append((repo_id, commit_message))
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/{len(self.commits)}")

    def _check(self) -> None:
        if self.down is not None:
            raise self.down


def missing() -> Exception:
    error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    Exception.__init__(error, "404")
    return error


def unreachable() -> Exception:
    """What the hub's client raises without a network: the class its own errors derive from."""
    return HfHubHTTPError.__bases__[0]("[Errno -2] Name or service not known\nmore")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> MemoryHub:
    memory = MemoryHub(tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "HfApi", memory)
    return memory


@pytest.fixture
def plan(profile) -> Plan:
    made = make_plan(profile, evaluations=5)
    return made.model_copy(update={"origin": HOST, "certificate": CERTIFICATE})


@pytest.fixture
def larger(profile) -> Plan:
    return make_plan(profile, evaluations=9).model_copy(update={"origin": HOST})


def test_what_is_pushed_can_be_pulled(hub, plan):
    address, carded = push(plan, "me/plans", "5.plan.json", private=True)
    assert address == "https://hub/me/plans/commit/1"
    assert carded
    assert hub.private == {"me/plans": True}
    assert hub.commits == [("me/plans", "5.plan.json: 5 evaluations of 20 steps")]
    assert pull("me/plans") == ("5.plan.json", plan)


def test_the_card_says_what_the_certificates_say(hub, plan, larger):
    push(larger, "me/plans", "9.plan.json")
    push(plan, "me/plans", "5.plan.json")
    text = hub.repos["me/plans"][CARD].decode()
    front, body = text.split("---\n", 2)[1:]
    assert front == "base_model: someone/model\nlibrary_name: tacache\ntags:\n- tacache\n"
    measured = "| 5.plan.json | 5 of 20 | 4.00x | tasu | 36.50 dB | 0.0123 | 4 |"
    unmeasured = "| 9.plan.json | 9 of 20 | 2.22x | tasu | - | - | - |"
    assert body.index(measured) < body.index(unmeasured)
    for part in ("guidance_scale=3.5, height=1024", "2400 evaluations were spent", "tau_k"):
        assert part in body
    assert "$ tacache plan pull me/plans --evaluations 5" in body
    assert "$ tacache generate someone/model --plan 5.plan.json" in body


def test_a_plan_of_no_known_model_has_a_card_too(profile):
    text = card("me/plans", {"a.plan.json": make_plan(profile, evaluations=5)})
    assert "base_model" not in text
    assert "`a.plan.json`: a velocity function" in text
    assert "tacache generate MODEL" in text


@pytest.mark.parametrize(
    "name", ["a/b\nlicense: mit", "a/b\n---\n# Owned", "x | y\n\n# Owned", "a/b\x1b[31m"]
)
def test_a_models_name_stays_one_text_of_the_card(profile, name):
    plan = make_plan(profile, evaluations=5).model_copy(update={"origin": Origin(model=name)})
    text = card("me/plans", {"a|b.plan.json": plan})
    front, body = text.split("---\n", 2)[1:]
    assert front == "library_name: tacache\ntags:\n- tacache\n"
    assert "\n# Owned" not in body
    assert "\x1b" not in body
    assert "| a\\|b.plan.json | 5 of 20 |" in body


def test_a_plan_of_the_hub_that_is_too_large_is_refused(hub):
    hub.repos["me/plans"] = {"a.plan.json": bytes(MAX_FILE_BYTES + 1)}
    with pytest.raises(Exception, match=r"me/plans/a.plan.json is not a text of ours"):
        pull("me/plans")


def test_somebody_elses_card_is_left_alone(hub, plan):
    hub.repos["me/model"] = {CARD: b"# my model\n"}
    assert push(plan, "me/model", "5.plan.json")[1] is False
    assert hub.repos["me/model"][CARD] == b"# my model\n"
    assert pull("me/model")[1] == plan


def test_our_own_card_is_replaced(hub, plan, larger):
    push(plan, "me/plans", "5.plan.json")
    before = hub.repos["me/plans"][CARD]
    assert OURS.encode() in before
    assert push(larger, "me/plans", "9.plan.json")[1] is True
    assert hub.repos["me/plans"][CARD] != before


def test_one_of_several_is_chosen_by_name_or_budget(hub, plan, larger):
    push(plan, "me/plans", "5.plan.json")
    push(larger, "me/plans", "9.plan.json")
    assert pull("me/plans", "9")[1] == pull("me/plans", "9.plan.json")[1] == larger
    assert pull("me/plans", evaluations=5)[1] == plan
    with pytest.raises(HubError, match=r"several plans: .* 5.plan.json \(5\), 9.plan.json \(9\)"):
        pull("me/plans")
    with pytest.raises(HubError, match=r"no such plan: there are 5.plan.json, 9.plan.json"):
        pull("me/plans", evaluations=7)


def test_a_repository_without_plans_is_no_help(hub):
    hub.repos["me/model"] = {CARD: b"# my model\n"}
    with pytest.raises(HubError, match="me/model has no plan"):
        pull("me/model")


def test_a_broken_plan_is_named(hub):
    hub.repos["me/plans"] = {"a.plan.json": b"{}"}
    with pytest.raises(Exception, match=r"me/plans/a.plan.json is not a tacache-plan file"):
        pull("me/plans")
    hub.repos["me/plans"] = {"a.plan.json": b"\xff\xfe"}
    with pytest.raises(Exception, match=r"me/plans/a.plan.json is not a text"):
        pull("me/plans")


TROUBLES = [
    (OfflineModeIsEnabled("HF_HUB_OFFLINE=1"), "unset HF_HUB_OFFLINE"),
    (LocalTokenNotFoundError("no token"), "hf auth login"),
    (missing(), "the hub has no me/plans"),
    (unreachable(), "([Errno -2] Name or service not known): are you online?"),
    (ConnectionError(), "cannot reach me/plans on the hub (ConnectionError)"),
]


@pytest.mark.parametrize(("down", "message"), TROUBLES)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_without_the_hub_it_is_one_line_and_exit_code_2(
    hub, plan, tmp_path, command, down, message
):
    hub.down = down
    file = plan.save(tmp_path / "a.plan.json")
    arguments = [str(file), "me/plans"] if command == "push" else ["me/plans"]
    result = CliRunner().invoke(app, ["plan", command, *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("tacache: ")
    assert message in line


def test_a_name_that_can_be_no_repository(tmp_path):
    """The hub's own check, before any request."""
    result = CliRunner().invoke(app, ["plan", "pull", "a b/c/d"])
    assert result.exit_code == 2
    assert result.stderr == "tacache: 'a b/c/d' is not the name of a repository: give OWNER/NAME\n"


def test_cards_are_plain_text(hub, plan):
    push(plan, "me/plans", "5.plan.json")
    assert json.loads(hub.repos["me/plans"]["5.plan.json"]) == json.loads(plan.to_json())
