"""tests/publishing.py: what the index and ComfyUI's registry are told of a release."""

import importlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from tests import publishing

ROOT = Path(__file__).parent.parent
HOME, TAG = "https://github.com/somebody/tacache", "v9.9.9"
LINKS = re.compile(r"\]\(([^)\s]+)\)")
MAX_ICON = 400  # pixels, by ComfyUI's registry


@pytest.fixture
def checkout(tmp_path):
    """The files of a checkout that a release changes, changed."""
    for name in (*publishing.PROJECTS, publishing.NODES, publishing.README):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    publishing.write(tmp_path, HOME, TAG, "somebody")
    return tmp_path


def content(path: Path) -> dict[str, Any]:
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tables: dict[str, Any] = reader.loads(path.read_text(encoding="utf-8"))
    return tables


def pythons() -> list[str]:
    """Return the versions of Python that the workflow *tests* runs."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    versions: list[str] = jobs["jobs"]["tests"]["strategy"]["matrix"]["python"]
    return versions


@pytest.mark.parametrize("name", publishing.PROJECTS)
def test_the_index_page_of_a_project_says_what_it_is_and_where(checkout, name):
    project = content(checkout / name)["project"]
    assert {"Repository", "Documentation", "Changelog", "Issues", "Paper"} == set(project["urls"])
    assert project["urls"]["Repository"] == HOME
    assert 40 < len(project["description"]) < 140
    known = set(importlib.import_module("trove_classifiers").classifiers)
    assert set(project["classifiers"]) <= known
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if " :: 3." in line]
    assert named == pythons()


def test_links_of_the_index_page_lead_to_files_of_the_repository(checkout):
    links = LINKS.findall((checkout / "README.md").read_text(encoding="utf-8"))
    ours = [link for link in links if link.startswith(HOME)]
    assert len(ours) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    workflows = [link for link in ours if "/actions/workflows/" in link]
    assert len(workflows) == 4  # two badges, each with a link
    for link in ours:
        if link in workflows:
            name = re.match(rf"{HOME}/actions/workflows/(\w+\.yml)", link).group(1)
            assert (ROOT / ".github/workflows" / name).is_file()
            continue
        kind, path = re.fullmatch(rf"{HOME}/(blob|raw)/{TAG}/([^#]+).*", link).groups()
        assert (ROOT / path).exists()
        assert (kind == "raw") == path.endswith((".svg", ".png", ".gif", ".webp"))


def test_the_nodes_have_what_comfyuis_registry_asks_for(checkout):
    tables = content(checkout / publishing.NODES)
    project, comfy = tables["project"], tables["tool"]["comfy"]
    assert re.fullmatch(r"[a-z](?:[._-]?[a-z0-9]+)*", project["name"])
    assert "comfyui" not in project["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["license"].keys() <= {"file", "text"}
    assert project["urls"]["Repository"] == HOME
    assert comfy.keys() == {"PublisherId", "DisplayName", "Icon", "includes"}
    assert comfy["PublisherId"] == "somebody"
    assert comfy["Icon"] == f"{HOME}/raw/{TAG}/{publishing.ICON}"
    icon = ElementTree.parse(ROOT / publishing.ICON).getroot()
    assert icon.get("width") == icon.get("height")
    assert int(icon.get("width")) <= MAX_ICON


def test_a_table_that_is_missing_ends_it(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\n")
    with pytest.raises(SystemExit, match=r"project\.urls"):
        publishing.change(path, {"project.urls": {"a": "b"}})
