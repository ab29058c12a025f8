"""The pages of file formats name every field that files hold, and no other."""

import re
from pathlib import Path

import pytest

from tacache import Plan, Profile
from tacache.plan import Certificate, LatentCertificate, LatentPlan
from tacache.storage.files import FileRecord, Frozen
from tacache.storage.frontier import Frontier, Point
from tacache.storage.origin import Origin
from tacache_lab.bench.records import Record

REFERENCE = Path(__file__).parents[2] / "docs/reference"
TABLES: list[tuple[str, str, type[Frozen]]] = [
    ("format.md", "## Profile", Profile),
    ("format.md", "## Plan", Plan),
    ("joint.md", "## Latents of a plan", LatentPlan),
    ("joint.md", "## Certificate of a latent", LatentCertificate),
    ("format.md", "### Certificate", Certificate),
    ("format.md", "## Frontier", Frontier),
    ("format.md", "## Origin", Origin),
    ("format.md", "### Record", Record),
]


def section(page: str, heading: str) -> str:
    """Return the text below a heading; of a chapter also what its own sections say."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    _, below = re.split(f"^{heading}.*\n", text, maxsplit=1, flags=re.MULTILINE)
    return re.split(r"^#{2,3} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of a section's tables, without their headings."""
    lines = re.findall(r"^\| (`.*) \|$", section(page, heading), flags=re.MULTILINE)
    return [line.split(" | ") for line in lines]


@pytest.mark.parametrize(("page", "heading", "kind"), TABLES, ids=lambda value: str(value)[:20])
def test_a_table_has_the_fields_of_its_files(page, heading, kind):
    names = {name for row in rows(page, heading) for name in re.findall(r"`(\w+)`", row[0])}
    header = {"format", "version"} if issubclass(kind, FileRecord) else set()
    assert names == header | set(kind.model_fields)


@pytest.mark.parametrize(("page", "heading", "kind"), TABLES, ids=lambda value: str(value)[:20])
def test_what_may_be_missing_is_marked(page, heading, kind):
    for names, types, *_ in rows(page, heading):
        fields = [kind.model_fields.get(name) for name in re.findall(r"`(\w+)`", names)]
        unset = [field is not None and field.default is None for field in fields]
        marked = "*optional*" in types or heading == "## Origin"  # where all are
        assert marked or not any(unset), names
        assert not marked or not all(field is None or field.is_required() for field in fields)


def test_a_point_of_a_frontier_is_described():
    ((_, _, meaning),) = [row for row in rows("format.md", "## Frontier") if "points" in row[0]]
    assert set(re.findall(r"`(\w+)`", meaning)) == set(Point.model_fields)


@pytest.mark.parametrize("kind", [kind for _, _, kind in TABLES if issubclass(kind, FileRecord)])
def test_headings_name_the_version_that_is_written(kind):
    ((page, heading),) = [(page, heading) for page, heading, of in TABLES if of is kind]
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert re.search(rf"^{heading}, version {kind.VERSION}$", text, flags=re.MULTILINE)
    assert f"`{kind.VERSION}`" in section(page, heading)
    assert f'`"{kind.FORMAT}"`' in section(page, heading)
