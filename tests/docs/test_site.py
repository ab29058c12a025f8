"""The site is built without a warning, and its pages are short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOG = DOCS / "decisions.md"  # a log that grows; nobody reads it from top to bottom
PAGES = sorted(page for page in DOCS.rglob("*.md") if page != LOG)
LONGEST = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it: every warning is an error."""
    out = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", str(DOCS)]
    made = subprocess.run(
        [sys.executable, *words, str(ROOT), str(out)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return out


def test_the_site_is_built_and_fetches_nothing(site):
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//([^\"]+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert not fetched.findall(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_reference_has_what_is_public(site):
    import tacache
    import tacache.bagel
    import tacache.diffusers

    shown = (site / "docs/reference/api.html").read_text(encoding="utf-8")
    for module in (tacache, tacache.diffusers, tacache.bagel):
        for name in set(module.__all__) - {"models"}:
            assert f'id="{module.__name__}.{name}"' in shown, name
    assert 'id="tacache.kdiffusion.sample_tacache"' in shown


def test_the_reference_has_every_command_and_option(site):
    import typer

    from tacache.cli import app

    shown = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands
    assert commands
    for name, command in commands.items():
        assert command.hidden or f"tacache {name}<" in shown
        for option in command.params:
            written = [word for word in option.opts if word.startswith("--") and word != "--help"]
            assert option.hidden or all(word in shown for word in written), (name, written)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_is_short(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) < LONGEST, f"{len(lines)} lines: split it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_begins_with_its_title(page):
    first = page.read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"# \S.*", first)


def test_every_message_in_troubleshooting_is_one_of_ours():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)  # a text that goes over several lines
    page = (DOCS / "how-to/troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(messages) > 30
    for message in messages:
        assert message in joined, message


def test_numbers_of_a_table_are_not_broken_in_two(site):
    shown = (site / "docs/reference/clips.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td class=\"([^\"]*)\"><p>(?:<[^>]+>)?([^<]*)", shown)
    assert {"63.18 ± 1.91", "53.47, 0 %"} <= {text for kinds, text in cells if "number" in kinds}
    assert "fitted" not in {text for kinds, text in cells if "number" in kinds}
    sheet = (site / "_static/site.css").read_text(encoding="utf-8")
    assert re.search(r"td\.number \{\s*white-space: nowrap;", sheet)
