"""The demo's page: complete, self-contained, and true to the record."""

import base64
import html
import io
import re
import sys

import pytest
from PIL import Image
from tests.demo_support import WAYS, saved_demo
from tests.page_tags import PageTags
from tests.support import profile_from

from tacache.errors import TACacheError
from tacache_lab.demo.demo_page import page, write_page
from tacache_lab.demo.record import ModelDemo

STEPS = WAYS[0][1]


@pytest.fixture
def profile():
    return profile_from(
        [0.1 * (-1) ** n for n in range(STEPS)], [0.05 + 0.01 * n for n in range(STEPS)]
    )


@pytest.fixture
def made(tmp_path, profile) -> ModelDemo:
    return saved_demo(tmp_path, profile)


@pytest.mark.slow
def test_the_page_holds_its_pictures_in_the_rows_of_their_prompts(made, tmp_path):
    reader = PageTags(page(made, tmp_path))
    *images, curves = reader.all("img")
    assert curves["src"].startswith("data:image/svg+xml")
    shown = [base64.b64decode(image["src"].partition(",")[2]) for image in images]
    files = [f"{i}-{rule}-{evaluations}.png" for i in range(2) for rule, evaluations in WAYS]
    assert shown == [(tmp_path / file).read_bytes() for file in files]
    assert [image["alt"] for image in images][3] == "a <b>red</b> fox, paper's rule, 8 evaluations"
    assert reader.open == []


@pytest.mark.slow
def test_rules_stand_side_by_side_at_the_same_evaluations(made, tmp_path):
    figures = PageTags(page(made, tmp_path)).all("figure")[: len(WAYS)]
    assert [one["class"] for one in figures] == ["full", "plain", "linear", "tasu", "tasu"]
    assert [one["style"] for one in figures] == [f"--column: {n}" for n in (1, 2, 3, 4, 4)]
    assert [one.get("data-budget") for one in figures] == [None, "8", "8", "8", "5"]
    assert 'style="--columns: 4"' in page(made, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("moving", [False, True])
def test_a_policy_keeps_the_page_to_itself(made, clips, tmp_path, moving):
    (policy,) = PageTags(page(clips if moving else made, tmp_path)).all(
        "meta", **{"http-equiv": "Content-Security-Policy"}
    )
    parts = dict(part.split(maxsplit=1) for part in policy["content"].split("; "))
    assert (parts["default-src"], parts["img-src"]) == ("'none'", "data:")
    assert parts["script-src"] == "'unsafe-inline'"  # its own, for the slider; none is fetched


@pytest.fixture
def clips(made, tmp_path) -> ModelDemo:
    """The same of a model that makes clips of three frames."""
    pictures = []
    for one in made.pictures:
        file = one.file.replace(".png", ".gif")
        frames = [Image.new("RGB", (8, 6), (80 * n, 0, 0)) for n in range(3)]
        frames[0].save(tmp_path / file, save_all=True, append_images=frames[1:], duration=100)
        pictures.append(one.model_copy(update={"file": file}))
    changes = {"change_psnr": 21.0, "change_ssim": 0.5}
    budgets = [b if b.psnr is None else b.model_copy(update=changes) for b in made.budgets]
    update = {"pictures": tuple(pictures), "budgets": tuple(budgets), "fps": 12}
    return made.model_copy(update=update)


@pytest.mark.slow
def test_clips_are_films_that_play_in_step(clips, tmp_path):
    text = page(clips, tmp_path)
    films = PageTags(text).all("img", **{"class": "film"})
    assert len(films) == 2 * len(WAYS)
    with Image.open(io.BytesIO(base64.b64decode(films[0]["src"].partition(",")[2]))) as shown:
        assert (shown.format, shown.size) == ("PNG", (8, 3 * 6))
        assert [shown.getpixel((4, 6 * n + 3))[0] for n in range(3)] == [0, 80, 160]
    assert films[0]["style"] == "aspect-ratio: 8 / 6; --frames: 3; --seconds: 0.300s"
    assert text.index('body.classList.add("started")') > text.rindex("<img")
    assert "prefers-reduced-motion" in text
    assert "21.00 dB" in text
    assert PageTags(text).open == []


@pytest.mark.slow
def test_a_clip_that_stands_still_is_a_picture(clips, tmp_path):
    still = Image.new("RGB", (8, 6))
    still.save(tmp_path / clips.pictures[0].file, save_all=True, append_images=[still, still])
    *images, _ = PageTags(page(clips, tmp_path)).all("img")
    assert images[0]["src"].startswith("data:image/gif;base64,")
    assert [image.get("class") for image in images] == [None, *["film"] * 9]


@pytest.mark.slow
def test_pictures_are_there_without_the_script(made, tmp_path):
    text = page(made, tmp_path)
    assert "film" not in text
    reader = PageTags(text)
    assert all("hidden" not in figure for figure in reader.all("figure"))
    assert all("hidden" not in part for part in reader.all("section"))
    (tools,) = reader.all("form")
    assert "hidden" in tools  # until the script makes them work


@pytest.mark.slow
def test_the_page_fetches_nothing(made, tmp_path):
    text = page(made, tmp_path)
    assert not re.search(r"https?://|url\(|@import|<script[^>]|<link|fetch\(|import\(", text)
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,30})', text)
    assert sources
    assert all(
        source.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,"))
        for source in sources
    )


@pytest.mark.slow
def test_prompts_are_text_and_no_markup(made, tmp_path):
    text = page(made, tmp_path)
    assert "<b>red</b>" not in text
    assert "a &lt;b&gt;red&lt;/b&gt; fox" in text


@pytest.mark.slow
def test_the_numbers_are_the_records(made, tmp_path):
    plain = html.unescape(re.sub(r"<[^>]+>", " ", page(made, tmp_path)))
    text = " ".join(plain.split())
    assert "With 5 instead of 20 evaluations of the model" not in text  # the paper's, not ours
    assert "a picture takes 0.80 s instead of 2.00 s: 2.5 times faster" in text
    assert "paper's rule 8 0.80 s 2.50x 38.00 dB 20.00 dB 0.8750 1 of 2" in text
    assert "paper's rule 5 0.50 s 4.00x 35.00 dB 20.00 dB 0.8750 1 of 2" in text
    assert text.count("ours, instant 8 evaluations 0.80 s 38.0 dB") == 2
    assert "as near to the flow as 31 Euler steps" in text


@pytest.mark.slow
def test_the_page_serves_light_dark_wide_and_narrow(made, tmp_path):
    text = page(made, tmp_path)
    assert "prefers-color-scheme: dark" in text
    (narrow,) = PageTags(text).all("source")
    assert narrow["media"] == "(max-width: 700px)"
    drawn = [narrow["srcset"], PageTags(text).all("img")[-1]["src"]]
    first, second = (base64.b64decode(one.partition(",")[2]).decode() for one in drawn)
    assert first != second
    for svg in (first, second):
        assert svg.startswith("<svg")
        assert "evaluated steps, by budget" in svg


@pytest.mark.slow
def test_write_page_writes_one_file(made, tmp_path):
    before = set(tmp_path.iterdir())
    target = write_page(made, tmp_path)
    assert set(tmp_path.iterdir()) - before == {target}
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_names_its_extra(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TACacheError, match=r"tacache\[demo\]"):
        page(made, tmp_path)
