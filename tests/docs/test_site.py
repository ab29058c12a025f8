"""The site is built without a warning, and its pages are short."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.site import DOCS, ROOT, build, sidebar, sidebar_tree

PAGES = sorted(DOCS.rglob("*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
MAX_LINES = 250
SCREEN = 35
MAX_SIDEBAR = 25


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it: every warning is an error."""
    return build(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing(site):
    fetched = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//([^\"]+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(set(PAGES) - set(DECISIONS))
    for page in pages:
        assert not fetched.findall(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
def test_the_sidebar_has_three_doors_and_at_most_25_pages(site):
    tree = sidebar_tree(site)
    doors = re.findall(r'<li class="toctree-l1[^"]*"><a [^>]*href="([^"#]+)"', tree)
    assert doors == ["use.html", "understand.html", "extend.html"]
    assert tree.count('type="checkbox"') == len(doors)  # each is opened and closed by a box
    pages = set(sidebar(site))
    assert len(doors) < len(pages) <= MAX_SIDEBAR
    assert not (site / "docs/decisions").exists()
    assert not (site / "training").exists()


@pytest.mark.slow
def test_the_landing_page_has_pictures_an_install_figures_and_doors(site):
    shown = (site / "docs/index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img alt="([^"]*)" src="[^"]*/(demo-tiny-flux\.\w+)"', shown)
    assert [name for _, name in pictures] == ["demo-tiny-flux.png", "demo-tiny-flux.webp"]
    assert all(alt for alt, _ in pictures)
    assert "pip<" in shown
    assert "28 steps" in shown
    assert shown.count("Begin with") == 3


@pytest.mark.slow
def test_long_code_may_go_on_in_the_next_line(site):
    shown = (site / "docs/how-to/coming-from.html").read_text(encoding="utf-8")
    assert "max_<wbr>continuous_<wbr>cached_<wbr>steps" in shown


@pytest.mark.slow
def test_the_reference_has_what_is_public(site):
    import tacache
    import tacache.bagel
    import tacache.diffusers

    shown = (site / "docs/reference/api.html").read_text(encoding="utf-8")
    for module in (tacache, tacache.diffusers, tacache.bagel):
        for name in set(module.__all__) - {"models"}:
            assert f'id="{module.__name__}.{name}"' in shown, name
    assert 'id="tacache.kdiffusion.sample_tacache"' in shown


@pytest.mark.slow
def test_the_reference_has_every_command_and_option(site):
    import typer

    from tacache.cli.command_line import app

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
    assert len(lines) < MAX_LINES, f"{len(lines)} lines: split it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_begins_with_its_title(page):
    text = page.read_text(encoding="utf-8").removeprefix("---\norphan: true\n---\n\n")
    assert re.fullmatch(r"# \S.*", text.splitlines()[0])


def test_a_decision_has_a_number_of_its_own_and_stands_in_the_index():
    index = (DOCS / "decisions/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- (\d{4}) \[.+\]\((\1-[\w-]+\.md)\)$", index, flags=re.MULTILINE)
    assert [name for _, name in listed] == [page.name for page in DECISIONS]
    assert len({number for number, _ in listed}) == len(DECISIONS)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_fits_on_a_screen(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= SCREEN


PLACE = re.compile(r"%\.?\d?[sdg]|\{[^}]*\}")


def printed(node: ast.AST) -> str | None:
    """Return a text of the code as it is printed, with … where it differs from case to case."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return PLACE.sub("…", node.value)
    if isinstance(node, ast.JoinedStr):
        parts = node.values
        return "".join(printed(part) if isinstance(part, ast.Constant) else "…" for part in parts)
    return None


def messages_of(path: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # a text that stands alone
    for node in ast.walk(tree):
        if node not in docstrings and (text := printed(node)):
            yield text


@pytest.mark.slow
def test_every_message_in_troubleshooting_is_one_of_ours():
    ours = [text for path in (ROOT / "src").rglob("*.py") for text in messages_of(path)]
    page = (DOCS / "how-to/troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(messages) > 30
    for message in messages:
        assert any(message in text for text in ours), message


@pytest.mark.slow
def test_numbers_of_a_table_are_not_broken_in_two(site):
    shown = (site / "docs/reference/clips.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td class=\"([^\"]*)\"><p>(?:<[^>]+>)?([^<]*)", shown)
    assert {"63.18 ± 1.91", "53.47, 0 %"} <= {text for kinds, text in cells if "number" in kinds}
    assert "fitted" not in {text for kinds, text in cells if "number" in kinds}
    sheet = (site / "_static/site.css").read_text(encoding="utf-8")
    assert re.search(r"td\.number \{\s*white-space: nowrap;", sheet)
