"""The studio end to end: see `conftest.py` for what every page is checked for besides."""

import json
import re
import time
import zipfile

import pytest
from tests.browser.conftest import SHOTS

from tacache import models
from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import default_evaluations
from tacache.plan import Plan, make_plan
from tacache.profile import Profile

pytestmark = pytest.mark.slow

PROMPT, OTHER = "a red apple", "three penguins on a blue background"
FAST, FULL = '[data-part="accelerated"] .screen > img', '[data-part="full steps"] .screen > img'
SOON, TRIES = 5, 3  # seconds
LIGHT = {"viewport": {"width": 1300, "height": 900}, "color_scheme": "light"}
PHONE = {"viewport": {"width": 420, "height": 860}, "color_scheme": "light"}
LOOKS = {
    "light": LIGHT,
    "dark": {**LIGHT, "color_scheme": "dark"},
    "phone": PHONE,
    "phone-dark": {**PHONE, "color_scheme": "dark"},
}


def draw(page, prompt, *, rule=None, evaluations=None):
    """Ask for a picture, and wait until the accelerated one is there."""
    page.locator("#prompt textarea").fill(prompt)
    if rule is not None:
        choose(page, "#rule", rule)
    if evaluations is not None:
        page.locator("#evaluations input[type=number]").fill(str(evaluations))
        page.keyboard.press("Tab")
    page.locator("#draw").click()


def choose(page, dropdown, words):
    page.locator(f"{dropdown} input").click()
    page.get_by_role("option", name=words).first.click()


def finished(page):
    page.locator(".facts").wait_for()
    return page.locator(FAST).get_attribute("src"), page.locator(FULL).get_attribute("src")


def view(page, name):
    page.get_by_role("tab", name=name).click()


def anchors(page, place):
    return page.locator(f"{place} .strip").get_attribute("aria-label")


def test_the_page_and_the_first_picture_are_there_soon(pictures, visit):
    """The first of a fresh server or, on a machine that is busy just then, one of two others."""
    times = []
    for _ in range(TRIES):
        started = time.monotonic()
        page = visit(pictures)
        ready = time.monotonic() - started
        draw(page, PROMPT)
        page.locator(FAST).wait_for()
        times.append({"page": ready, "picture": time.monotonic() - started - ready})
        finished(page)
        if max(times[-1].values()) < SOON:
            break
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / "times.json").write_text(json.dumps(times))
    assert max(times[-1].values()) < SOON, times


def test_a_prompt_becomes_a_picture_beside_the_full_one(pictures, visit):
    page = visit(pictures)
    draw(page, PROMPT, rule="Instant", evaluations=10)
    fast, full = finished(page)
    assert fast.startswith("data:image/png")
    assert fast != full
    facts = page.locator(".facts").inner_text()
    assert re.search(r"evaluations\s+10\s+50", facts)
    assert "PSNR" in facts
    assert "SSIM" in facts
    assert page.locator("#gallery img").count() == 1
    draw(page, OTHER)
    # "Done." may still be that of the first picture
    page.wait_for_function(
        "([place, src]) => (document.querySelector(place) || {src}).src != src", arg=[FAST, fast]
    )
    page.locator("#status", has_text="Done.").wait_for()
    assert finished(page)[0] != fast
    assert page.locator("#gallery .caption-label").count() == 2


def test_previews_and_progress_are_seen_while_it_runs(clips, visit):
    page = visit(clips)
    draw(page, "a cat moves to the left", rule="Instant", evaluations=9)
    page.locator("#status progress").first.wait_for()
    page.locator(".preview img").first.wait_for()
    assert page.locator("#draw").is_disabled()
    page.locator("#stop").click()
    page.locator("#status", has_text="Stopped after").wait_for()


def test_the_sliders_change_the_anchors(pictures, visit):
    page = visit(pictures)
    before = anchors(page, "#meaning")
    page.locator("#evaluations input[type=range]").focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "before => document.querySelector('#meaning .strip').ariaLabel != before", arg=before
    )
    view(page, "Understand")
    for slider in ("#tau-k", "#tau-d"):
        before = anchors(page, "#anchors")
        page.locator(f"{slider} input[type=range]").focus()
        for _ in range(30):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "before => document.querySelector('#anchors .strip').ariaLabel != before", arg=before
        )
    assert re.search(r"\d+ of 50 steps run the model", page.locator("#anchors").inner_text())
    page.locator("#use-thresholds").click()
    view(page, "Try")
    page.locator("#meaning", has_text="you made or loaded last").wait_for()


def test_a_plan_of_the_frontier_says_what_it_is(pictures, visit):
    page = visit(pictures)
    view(page, "Understand")
    points = page.locator("#frontier .point")
    alone = page.locator('#frontier .point[aria-label^="25 of 50 steps, fitted (shipped"]')
    alone.wait_for()  # others may lie over each other
    assert not alone.locator(".told").is_visible()
    alone.hover()
    alone.locator(".told").wait_for()
    assert "dB, drift" in alone.locator(".told").text_content()
    page.screenshot(path=SHOTS / "light-frontier.png", full_page=True)
    points.last.focus()
    points.last.locator(".told").wait_for()


def test_cancel_stops_within_two_steps(clips, visit):
    page = visit(clips)
    draw(page, "a heart shrinks", rule="Instant", evaluations=10)
    # a page that is busy does not show every step
    page.locator("#status", has_text=re.compile(r"step [3-7] of 10")).wait_for()
    seen = page.evaluate(
        "() => { document.querySelector('#stop').click();"
        " return document.querySelector('#status').innerText; }"
    )
    at = int(re.search(r"step (\d+) of 10", seen)[1])
    page.locator("#status", has_text="Stopped after").wait_for()
    after = int(re.search(r"after (\d+) of", page.locator("#status").inner_text())[1])
    assert at <= after <= at + 2
    assert page.locator("#draw").is_enabled()
    assert page.locator(".facts").count() == 0


def test_clips_play_side_by_side_in_step(clips, visit):
    page = visit(clips)
    draw(page, "a cat moves to the left", rule="Instant", evaluations=4)
    page.locator(".facts").wait_for()
    films = page.locator("#stage .film")
    assert films.count() == 2
    place, places = "all => all.map(one => getComputedStyle(one).backgroundPosition)", set()
    for _ in range(30):
        shown = films.evaluate_all(place)
        assert shown[0] == shown[1]
        places.add(shown[0])
        page.wait_for_timeout(40)
    assert len(places) > 3  # they move
    page.screenshot(path=SHOTS / "clips.png", full_page=True)


def test_a_plan_is_loaded_downloaded_and_loaded_again(pictures, visit, tmp_path):
    page = visit(pictures)
    view(page, "Make")
    profile = Profile.load(models.embedded("tiny-flux").profile)
    plan = make_plan(profile, evaluations=9)
    page.locator("#upload input[type=file]").set_input_files(plan.save(tmp_path / "mine.json"))
    page.locator("#loaded", has_text="Loaded into the plan store: 9 of 50").wait_for()
    page.locator("#about-plan", has_text="9 of 50 steps").wait_for()
    with page.expect_download() as caught:
        page.locator("#download-plan").click()
    file = tmp_path / "again.json"
    caught.value.save_as(file)
    assert Plan.load(file) == plan
    page = visit(pictures)
    view(page, "Make")
    page.locator("#upload input[type=file]").set_input_files(file)
    page.locator("#loaded", has_text="Loaded into the plan store: 9 of 50").wait_for()
    view(page, "Try")
    draw(page, PROMPT, rule="My own plan")
    finished(page)
    assert re.search(r"evaluations\s+9\s+50", page.locator(".facts").inner_text())
    view(page, "Make")
    with page.expect_download() as caught:
        page.locator("#download-profile").click()
    assert Profile.load(caught.value.path()) == profile


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON that can be used"),
        ('{"format": "tacache-plan", "version": 1}', "field"),
        ('{"format": "other"}', "neither a tacache-plan file nor a tacache-profile file"),
    ],
)
def test_a_malformed_file_is_a_sentence(pictures, visit, tmp_path, content, sentence):
    page, file = visit(pictures), tmp_path / "broken.json"
    file.write_text(content)
    view(page, "Make")
    page.locator("#upload input[type=file]").set_input_files(file)
    said = page.locator("#loaded [role=alert]")
    said.wait_for()
    assert sentence in said.inner_text()
    assert said.inner_text().endswith(".")


def test_two_people_at_once_get_their_own_pictures(pictures, visit):
    alone = visit(pictures)
    expected = []
    for drawn, prompt in enumerate((PROMPT, OTHER)):
        draw(alone, prompt, rule="Instant", evaluations=10)
        alone.locator("#gallery .caption-label").nth(drawn).wait_for()
        expected.append(finished(alone))
    pages = [visit(pictures) for _ in range(2)]
    for page, prompt in zip(pages, (PROMPT, OTHER), strict=True):
        draw(page, prompt, rule="Instant", evaluations=10)
    assert [finished(page) for page in pages] == expected
    for page, prompt in zip(pages, (PROMPT, OTHER), strict=True):
        captions = page.locator("#gallery .caption-label").all_inner_texts()
        assert len(captions) == 1
        assert captions[0].startswith(prompt[:8])


def test_a_prompt_with_markup_runs_no_script(pictures, visit):
    page = visit(pictures)
    markup = (
        '<img src=x onerror="window.ran=1"><script>window.ran=1</script>'
        "${window.ran=1}{{constructor.constructor('window.ran=1')()}}'\"><svg onload=window.ran=1>"
    )
    draw(page, markup, rule="Instant", evaluations=4)
    finished(page)
    page.locator("#gallery button.thumbnail-item").first.click()
    page.wait_for_timeout(300)
    view(page, "Understand")
    page.locator("#drift svg").wait_for()
    view(page, "Make")
    page.locator("#lesson textarea").fill(f"{markup}\n{markup}")
    page.locator("#budgets input, #budgets textarea").first.fill(markup)
    page.locator("#learn").click()
    page.locator("#learning [role=alert]").wait_for()
    assert page.evaluate("window.ran") is None
    assert page.locator('img[src="x"]').count() == 0


def test_learning_shows_progress_and_stops(pictures, visit):
    page = visit(pictures)
    view(page, "Make")
    page.locator("#lesson textarea").fill("a cat\na dog")
    page.locator("#learn").click()
    page.locator("#learning", has_text="full runs for the profile: step").wait_for()
    page.locator("#stop-learning").click()
    page.locator("#learning", has_text="Stopped after").wait_for()
    assert page.locator("#learn").is_enabled()


def test_what_was_made_is_exported_with_its_settings(pictures, visit):
    page = visit(pictures)
    draw(page, PROMPT, rule="Instant", evaluations=10)
    finished(page)
    with page.expect_download() as caught:
        page.locator("#export").click()
    with zipfile.ZipFile(caught.value.path()) as archive:
        names = archive.namelist()
        settings = json.loads(archive.read(next(n for n in names if n.endswith(".json"))))
    assert len(names) == 3
    assert (settings["prompt"], settings["evaluated"]) == (PROMPT, 10)


def test_everything_is_reached_by_the_keyboard(pictures, visit):
    page = visit(pictures, **LIGHT)
    reached = set()
    page.locator("#prompt textarea").focus()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('[id]:not([id^=range])')?.id"))
        if "draw" in reached:
            break
    assert {"seed", "evaluations", "rule", "draw"} <= reached
    page.keyboard.press("Enter")
    finished(page)
    line = page.locator(".compare input")
    line.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".compare").evaluate("one => one.style.getPropertyValue('--at')") == "51%"
    tab = page.get_by_role("tab", name="Understand")
    assert tab.evaluate("one => one.tabIndex") == 0
    tab.focus()
    page.keyboard.press("Enter")
    page.locator("#curves svg").first.wait_for()


def seen(page, file):
    """Keep a picture of a view, in which nothing may reach beyond the screen's sides."""
    page.wait_for_timeout(300)
    page.screenshot(path=SHOTS / f"{file}.png", full_page=True)
    wide = "() => document.scrollingElement.scrollWidth - window.innerWidth"
    assert page.evaluate(wide) <= 0, f"{file} is wider than the screen"


def test_the_first_view_is_typical_and_says_what_the_plan_promises(pictures, visit):
    page = visit(pictures)
    model = models.embedded("tiny-flux")
    assert page.locator("#prompt textarea").input_value() == model.typical_prompt
    assert page.locator("#steps input[type=number]").input_value() == "50"
    budgets = model.plans()
    usual = min(budgets, key=lambda budget: abs(budget - default_evaluations(50)))
    assert page.locator("#evaluations input[type=number]").input_value() == str(usual)
    psnr = model.plan(usual).certificate.psnr
    assert f"{psnr:.1f} dB to the full run in the mean" in page.locator("#meaning").inner_text()
    assert page.locator("#meaning .zones .pin").first.is_visible()
    assert page.locator("#stage img").count() == 0


def test_other_steps_bring_their_budget_and_are_drawn(pictures, visit):
    page = visit(pictures)
    page.locator("#steps input[type=number]").fill("20")
    page.keyboard.press("Tab")
    page.locator("#meaning", has_text="of 20 steps run the model").wait_for()
    usual, model = default_evaluations(20), models.embedded("tiny-flux")
    there = [k for k in range(4, 20) if model.plan_file(k, steps=20).is_file()]
    nearest = min(there, key=lambda evaluations: abs(evaluations - usual))
    assert page.locator("#evaluations input[type=number]").input_value() == str(nearest)
    draw(page, PROMPT, rule="Instant", evaluations=11)
    finished(page)
    assert re.search(r"evaluations\s+11\s+20", page.locator(".facts").inner_text())


def test_a_quality_is_asked_for_in_the_place_of_evaluations(pictures, visit):
    page = visit(pictures)
    page.get_by_role("radio", name="Same quality").check()
    page.locator("#like-steps input[type=number]").wait_for()
    assert not page.locator("#evaluations").is_visible()
    goal = QualityGoal(like_steps=50)
    model = models.embedded("tiny-flux")
    plans = [model.plan(budget, "flow") for budget in model.plans("flow")]
    fewest = goal.fewest(plans, lambda plan: plan).evaluations
    page.locator("#meaning", has_text=f"{fewest} of 50 steps run the model").wait_for()
    page.get_by_role("radio", name="Same picture").check()
    page.locator("#min-psnr input[type=number]").fill("26")
    page.keyboard.press("Tab")
    page.locator("#meaning", has_text="7 of 50 steps run the model").wait_for()
    draw(page, PROMPT)
    finished(page)
    assert re.search(r"evaluations\s+7\s+50", page.locator(".facts").inner_text())


def test_a_model_of_eight_steps_is_drawn(turbo, visit):
    page = visit(turbo, **LIGHT)
    page.locator("#meaning", has_text="6 of 8 steps run the model").wait_for()
    page.locator("#draw").click()
    finished(page)
    assert re.search(r"evaluations\s+6\s+8", page.locator(".facts").inner_text())
    seen(page, "turbo-try")


@pytest.mark.parametrize("look", LOOKS)
def test_every_view_fits_its_screen(pictures, visit, look):
    page = visit(pictures, **LOOKS[look])
    seen(page, f"{look}-first")
    page.locator("#draw").click()
    finished(page)
    for name, sign in (("Try", ".facts"), ("Understand", "#drift svg"), ("Make", "#learn")):
        view(page, name)
        page.locator(sign).wait_for()
        seen(page, f"{look}-{name.lower()}")
    dark = page.evaluate("document.body.classList.contains('dark')")
    assert dark == (LOOKS[look].get("color_scheme") == "dark")
