"""The page: complete in itself, sortable, with pictures where there are some."""

from __future__ import annotations

import base64
import io
import json
import re
import sys

import pytest
from PIL import Image
from tests.page_tags import PageTags
from tests.report_support import PROMPTS, REASON, bench, record, traced

from tacache.errors import TACacheError
from tacache_lab.films import film
from tacache_lab.report import study
from tacache_lab.report.ranking import styles
from tacache_lab.report.report_page import page, section
from tacache_lab.report.shelves import Shelves, shelves

PNG = b"\x89PNG" + bytes(80)
VOID = {"meta", "br", "img", "input", "link"}


def pictured(folder, suffix=".png"):
    """The records of a benchmark with pictures of finished samples."""
    found = []
    for number, one in enumerate(bench()):
        if one.status == "done":
            (folder / f"{number}{suffix}").write_bytes(PNG + bytes([number]))
            one = one.model_copy(update={"picture": f"{number}{suffix}"})
        found.append(one)
    return found


def data(text: str) -> dict:
    return json.loads(re.search(r'class="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def plain() -> str:
    return page([section(study("main", bench()), Shelves([], 0, 0), {})])


def test_the_page_is_well_formed_and_fetches_nothing(plain):
    reader = PageTags(plain)
    assert reader.open == []
    assert not re.search(r"url\(|@import|<link|<iframe", plain)
    assert not [url for url in re.findall(r"https?://[^\"'\s]+", plain) if "w3.org" not in url]
    assert "default-src 'none'" in plain
    assert not [one for one in reader.all("script") if "src" in one]
    assert "prefers-color-scheme: dark" in plain


def test_numbers_stand_in_tables_without_a_script(plain):
    text = " ".join(re.sub(r"<[^>]+>", " ", plain).split())
    assert "fitted 39.10 ± 2.73" in text
    assert f"unreachable: {REASON}" in text
    assert "<strong>39.10 ± 2.73</strong>" in plain
    assert "<u>36.10 ± 2.73</u>" in plain
    assert "failed for 1 of 3 samples" in text
    assert not [
        one for one in PageTags(plain).all("section") if "viewer" in (one.get("class") or "")
    ]


def test_cells_are_sorted_by_what_they_mean(plain):
    values = [cell["data-value"] for cell in PageTags(plain).all("td") if "data-value" in cell]
    assert values
    assert all(float(value) == float(value) for value in values)
    assert 'data-better="higher"' in plain


def test_the_plot_has_every_finished_method(plain):
    found = data(plain)
    assert {(p["method"], p["asked"]) for p in found["points"]} >= {("fitted", 4), ("ab2", 2)}
    assert ("teacache", 2) not in {(p["method"], p["asked"]) for p in found["points"]}
    assert found["across"] == ["evaluations", "speedup"]
    assert [m["name"] for m in found["methods"] if m["ours"]] == ["fitted", "tasu"]
    assert next(q["title"] for q in found["quantities"]) == "PSNR (dB)"


def test_pictures_are_inside_the_reference_first(tmp_path):
    records = pictured(tmp_path)
    kept = shelves(records, tmp_path, 10**6)
    assert [shelf.prompt for shelf in kept.shown] == list(PROMPTS)
    assert (kept.left_out, kept.missing) == (0, 0)
    first = kept.shown[0].pictures[0]
    assert (first.method, first.video) == ("full", False)
    assert base64.b64decode(first.address.partition(",")[2]) == PNG + b"\0"
    assert "PSNR" in kept.shown[0].pictures[2].facts
    text = page([section(study("main", records), kept, {})])
    assert data(text)["shelves"][2]["prompt"] == PROMPTS[2]
    assert "<b>lamp</b>" not in text
    assert PageTags(text).open == []


def test_there_is_room_for_whole_samples_only(tmp_path):
    records = pictured(tmp_path)
    everything = shelves(records, tmp_path, 10**6)
    one = sum(len(p.address.partition(",")[2]) for p in everything.shown[0].pictures)
    kept = shelves(records, tmp_path, one)
    assert (len(kept.shown), kept.left_out) == (1, 2)
    assert 0 < kept.size < everything.size
    none = shelves(records, tmp_path, 0)
    text = page([section(study("main", records), none, {})])
    assert "3 samples have pictures, and there was no room" in text


def test_clips_are_played(tmp_path):
    kept = shelves(pictured(tmp_path, ".mp4"), tmp_path, 10**6)
    first = kept.shown[0].pictures[0]
    assert first.video
    assert first.address.startswith("data:video/mp4;base64,")


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_small_clips_are_films_that_share_a_clock(tmp_path, suffix):
    frames = [Image.new("RGB", (8, 6), (80 * n, 0, 0)) for n in range(3)]
    more = {"save_all": True, "append_images": frames[1:], "duration": 80}
    frames[0].save(tmp_path / f"clip{suffix}", lossless=True, **more)
    kept = shelves([record("full", 8, picture=f"clip{suffix}")], tmp_path, 10**6)
    (shown,) = kept.shown[0].pictures
    assert shown.film == {"width": 8, "height": 6, "frames": 3, "seconds": 0.24}
    assert not shown.video
    with Image.open(io.BytesIO(base64.b64decode(shown.address.partition(",")[2]))) as whole:
        assert (whole.format, whole.size) == ("PNG", (8, 18))
        assert [whole.getpixel((4, 6 * n + 3))[0] for n in range(3)] == [0, 80, 160]


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_frames_that_were_joined_are_apart_again(tmp_path, suffix):
    frames = [Image.new("RGB", (8, 6), (80 * n, 0, 0)) for n in (0, 1, 1, 2, 2, 2)]
    more = {"save_all": True, "append_images": frames[1:], "duration": 80}
    frames[0].save(tmp_path / f"clip{suffix}", lossless=True, **more)
    made = film(tmp_path / f"clip{suffix}")
    assert (made.frames, made.seconds) == (6, 0.48)
    with Image.open(io.BytesIO(made.content)) as whole:
        assert [whole.getpixel((4, 6 * n + 3))[0] for n in range(6)] == [0, 80, 80, 160, 160, 160]


def test_only_files_below_the_results_are_put_on_a_page(tmp_path):
    """Records may come from others, and pages are shared."""
    folder, secret = tmp_path / "results", tmp_path / "secret.png"
    (folder / "pictures").mkdir(parents=True)
    secret.write_bytes(b"secret")
    (folder / "pictures" / "mine.png").write_bytes(b"mine")
    (folder / "link.png").symlink_to(secret)
    names = (str(secret), "../secret.png", "pictures/../../secret.png", "link.png", "nul\0.png")
    records = [record("full", 8, seed=seed, picture=name) for seed, name in enumerate(names)]
    kept = shelves(records, folder, 10**6)
    assert (kept.shown, kept.missing) == ([], len(names))
    kept = shelves([record("full", 8, picture="pictures/mine.png")], folder, 10**6)
    assert len(kept.shown) == 1


def test_pictures_that_are_gone_or_no_pictures_are_left_out(tmp_path):
    (tmp_path / "secret.txt").write_text("no picture")
    records = [
        record("full", 8, picture="gone.png"),
        record("tasu", 4, picture="secret.txt"),
    ]
    kept = shelves(records, tmp_path, 10**6)
    assert (kept.shown, kept.missing) == ([], 2)
    text = page([section(study("x", records), kept, {})])
    assert "2 pictures that the records name were not found" in text


def test_figures_of_steps_are_shown(tmp_path):
    (tmp_path / "drift-drift.svg").write_text("<svg/>")
    made = section(
        study("drift", traced()), Shelves([], 0, 0), {"drift": tmp_path / "drift-drift.svg"}
    )
    images = PageTags(page([made])).all("img")
    assert [image["src"][:26] for image in images] == ["data:image/svg+xml;base64,"]


def test_several_studies_have_a_way_to_each():
    sections = [section(study(name, bench()), Shelves([], 0, 0), {}) for name in ("one", "two")]
    links = PageTags(page(sections)).all("a")
    assert [link["href"] for link in links] == ["#study-0", "#study-1"]


def test_styles_tell_methods_apart():
    names = ["fitted", "tasu", "tasu@30", *(f"rival {n}" for n in range(40))]
    found = styles(names)
    assert len(set(found.values())) == len(names)
    assert found["fitted"] == styles(["fewer", "fitted"])["fitted"]
    assert [name for name in names if found[name].ours] == names[:3]


def test_the_page_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TACacheError, match=r"tacache\[report\]"):
        page([])
