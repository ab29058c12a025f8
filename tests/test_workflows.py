"""What the workflows, the hooks and the constraints name is there."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("*/pyproject.toml"))]
# Their weights are too large for a test, so nothing is known of their versions.
UNTESTED = {"piq", "pyiqa"}


def commands(workflow: Path) -> list[str]:
    """Return what the steps of a workflow run."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def project(path: Path) -> dict[str, Any]:
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = reader.loads(path.read_text(encoding="utf-8"))["project"]
    return table


def distribution(requirement: str) -> str:
    """Return the name of a requirement, as an index writes it."""
    (name,) = re.findall(r"^[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==(\S+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_makes_targets_that_exist(workflow):
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    targets = {
        word
        for command in commands(workflow)
        for words in re.findall(r"^make ([^\n#\"]*)", command, flags=re.MULTILINE)
        for word in words.split()
        if "=" not in word
    }
    assert targets
    assert targets <= set(phony.split())


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_the_oldest_python_that_is_supported_is_tested(path):
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    pythons = tests["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert project(path)["requires-python"] == f">={pythons[0]}"


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_dependency_has_a_version_that_was_tested(path):
    table = project(path)
    extras = table.get("optional-dependencies", {}).values()
    required = {distribution(line) for line in sum(extras, table.get("dependencies", []))}
    ours = {project(path)["name"] for path in PROJECTS}
    assert required - ours - UNTESTED <= set(constraints())


def test_a_release_publishes_every_distribution():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))[
        "jobs"
    ]
    kept = [step["with"] for step in jobs["build"]["steps"] if "upload" in step.get("uses", "")]
    ours = {project(path)["name"] for path in PROJECTS} - {"tacache-nodes"}  # ComfyUI's registry
    assert set(jobs["publish"]["strategy"]["matrix"]["project"]) == ours
    assert {options["name"]: options["path"] for options in kept} == {
        name: f"dist/{name.replace('-', '_')}-*" for name in ours
    }


def test_a_commit_is_formatted_by_the_ruff_that_was_tested():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (ruff,) = (repo for repo in hooks["repos"] if repo["repo"].endswith("ruff-pre-commit"))
    assert ruff["rev"] == f"v{constraints()['ruff']}"
