"""The demo's page in real Chromium: it is opened as a file, and works by keyboard and by touch."""

import pytest
from tests.browser.conftest import SHOTS
from tests.browser.test_studio import LOOKS
from tests.demo_support import saved_demo
from tests.support import profile_from

from tacache_lab.demo.demo_page import write_page

pytestmark = pytest.mark.slow
LAYER = "article >> nth=0 >> figure.linear >> .layer"


def saved(folder):
    rates = [0.1 * (-1) ** n for n in range(20)]
    return saved_demo(folder, profile_from(rates, [0.05 + 0.01 * n for n in range(20)]))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a demo of two parts, by its file."""
    folder = tmp_path_factory.mktemp("demo")
    made = saved(folder)
    other = made.model_copy(update={"model": "tiny-flux-turbo"})
    return write_page(made.model_copy(update={"others": (other,)}), folder).as_uri()


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_fits_and_looks_well(look, address, open_page):
    page = open_page(address, **LOOKS[look])
    for view in ("pictures", "wipe", "difference"):
        page.check(f"input[value={view}]", force=True)
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"demo-{look}-{view}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_slider_moves_by_keyboard_and_by_the_mouse_on_a_picture(address, open_page):
    page = open_page(address)
    assert page.locator(LAYER).evaluate("e => getComputedStyle(e).visibility") == "hidden"
    page.focus("input[value=pictures]")
    page.keyboard.press("ArrowRight")  # to the next way to look
    page.focus("input[name=wipe]")
    page.keyboard.press("ArrowRight")
    clip = page.locator(LAYER).evaluate("e => getComputedStyle(e).clipPath")
    assert clip == "inset(0px 49% 0px 0px)"
    frame = page.locator("article >> nth=0 >> figure.linear >> .frame")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 9)
    page.mouse.down()
    page.mouse.up()
    assert page.input_value("input[name=wipe]") == "25"


def test_the_difference_of_two_pictures_is_what_is_shown(address, open_page):
    page = open_page(address)
    page.check("input[value=difference]", force=True)
    style = page.locator(LAYER).evaluate("e => getComputedStyle(e).mixBlendMode")
    assert style == "difference"
    full = page.locator("article >> nth=0 >> figure.full img").get_attribute("src")
    assert page.locator(LAYER).get_attribute("src") == full


def test_one_number_of_steps_and_of_evaluations_is_shown_at_a_time(address, open_page):
    page = open_page(address)
    shown = "figure:visible"
    names = page.locator(f"article >> nth=0 >> {shown}").evaluate_all(
        "f => f.map(e => e.className)"
    )
    assert names == ["full", "plain", "linear", "tasu"]
    page.check("input[name=evaluations-1][value='5']", force=True)
    names = page.locator(f"article >> nth=0 >> {shown}").evaluate_all(
        "f => f.map(e => e.className)"
    )
    assert names == ["full", "tasu"]
    page.check("input[name=part][value='2']", force=True)
    assert page.locator(".part:visible h2").first.text_content() == "tiny-flux-turbo, 20 steps"


def test_a_demo_of_one_part_is_shown_at_once(tmp_path, open_page):
    page = open_page(write_page(saved(tmp_path), tmp_path).as_uri())
    assert page.locator("figure:visible").count() == 8
    assert page.locator("input[name=part]").count() == 0
