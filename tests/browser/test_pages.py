"""The site's pages in real Chromium: they fit at two widths, light and dark, and nothing is broken.

Screenshots of the landing page and of the sidebar's pages are left for people to look at.
"""

import pytest
from tests.browser.conftest import SHOTS
from tests.browser.test_studio import LOOKS
from tests.docs.site import build, sidebar

pytestmark = pytest.mark.slow

TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
# What is wider than the page scrolls within an element of its own.
CUT = """() => [...document.querySelectorAll("article :is(table, pre, img)")].filter((part) => {
    const {right, width} = part.getBoundingClientRect();
    let scrolls = part;
    while (scrolls && getComputedStyle(scrolls).overflowX === "visible")
        scrolls = scrolls.parentElement;
    return width && right > innerWidth + 1 && !scrolls;
}).map((part) => part.outerHTML.slice(0, 80))"""
BROKEN = "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
WHITE = """[...document.querySelectorAll('article img[src$=".svg"]')]
    .filter((one) => getComputedStyle(one).filter === "none").map((one) => one.src)"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The landing page and those of the sidebar, by their files."""
    site = build(tmp_path_factory.mktemp("site"))
    return [site / "docs/index.html", *(site / "docs" / name for name in sidebar(site))]


@pytest.mark.parametrize("look", LOOKS)
def test_the_pages_fit_and_nothing_is_broken(look, pages, browser):
    SHOTS.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(**LOOKS[look])
    page, wrong = context.new_page(), {}
    for path in pages:
        page.goto(path.as_uri())
        problems = [page.evaluate(script) for script in (TOO_WIDE, CUT, BROKEN)]
        problems += [page.evaluate(WHITE)] if LOOKS[look]["color_scheme"] == "dark" else []
        if any(problems):
            wrong[path.name] = problems
        shot = SHOTS / f"site-{look}-{path.parent.name}-{path.stem}.jpg"
        page.screenshot(path=shot, full_page=True, type="jpeg", quality=60)
    context.close()
    assert wrong == {}
