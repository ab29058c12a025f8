import json
import zipfile

import pytest
from tests.studio.conftest import STEPS

from tacache.errors import HostError
from tacache.fidelity import CAP
from tacache.studio.attempts import MAX_PROMPT_LENGTH, MAX_SEED, PictureOptions, attempt, plan_for
from tacache.studio.drawing import ACCELERATED, FULL_STEPS
from tacache.studio.gallery import Gallery
from tacache.studio.pictures import address, difference, fidelity, shown, small, together
from tacache.studio.turns import Part

pytestmark = pytest.mark.slow

FOX = PictureOptions("a red fox in the snow", 3, 4, "linear")


def test_the_accelerated_picture_comes_first(studio, hearing):
    watch = hearing()
    made = attempt(studio.known(studio.session("me")), FOX, watch)
    assert [one.name for one in watch.news if isinstance(one, Part)] == [ACCELERATED, FULL_STEPS]
    assert (made.fast.evaluations, made.full.evaluations) == (4, STEPS)
    assert made.psnr < CAP
    assert 0 < made.ssim < 1
    assert made.drift[-1][0] == STEPS
    assert made.equivalent_steps is None
    assert made.fast.seconds > 0


def test_all_steps_are_equal_to_all_steps(studio, hearing):
    options = FOX._replace(evaluations=STEPS)
    made = attempt(studio.known(studio.session("me")), options, hearing())
    assert made.psnr > 60
    assert made.ssim == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "  "}, "no prompt"),
        ({"prompt": "x" * (MAX_PROMPT_LENGTH + 1)}, "longer than"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change, sentence):
    with pytest.raises(HostError, match=sentence):
        FOX._replace(**change).checked()


def test_a_rival_has_no_plan_of_ours(studio):
    known = studio.known(studio.session("me"))
    assert plan_for(known, FOX._replace(rule="magcache")) is None
    assert plan_for(known, FOX).plan.evaluations == 4


@pytest.fixture
def made(studio, hearing):
    return attempt(studio.known(studio.session("me")), FOX, hearing())


def test_the_gallery_keeps_files_with_their_settings(made, tmp_path):
    gallery = Gallery(tmp_path / "gallery")
    first = gallery.add(made, "flux", 16)
    gallery.add(made, "flux", 16)
    assert first.caption == "a red fox in the snow (seed 3, linear, 4 of 10)"
    with zipfile.ZipFile(gallery.export()) as archive:
        names = archive.namelist()
        settings = json.loads(archive.read("0000-a-red-fox-in-the-snow-s3.json"))
    assert len(names) == 6
    assert {name.rsplit(".", 1)[1] for name in names} == {"png", "json"}
    assert settings["prompt"] == FOX.prompt
    assert settings["anchors"] == list(made.plan.anchors)
    assert settings["plan"]["format"] == "tacache-plan"


def test_the_oldest_picture_gives_way(made, tmp_path, monkeypatch):
    monkeypatch.setattr("tacache.studio.gallery.MAX_ENTRIES", 1)
    gallery = Gallery(tmp_path)
    first, second = (gallery.add(made, "flux", 16) for _ in range(2))
    assert gallery.entries == [second]
    assert not first.fast.exists()
    assert second.full.exists()


def test_pictures_and_clips_are_shown(made):
    picture = made.fast.pixels
    clip = picture[None].repeat(3, axis=0)
    assert shown(picture, "x").startswith('<img src="data:image/png;base64,')
    film = shown(clip, '"><script>')
    assert 'style="aspect-ratio:32/32;' in film
    assert "<script>" not in film
    assert 'style="--frames:3;--seconds:0.250s"' in together(clip, 12, film)
    assert together(picture, 12, "x") == together(None, 12, "x") == '<div class="stage">x</div>'
    assert fidelity(clip, clip) == (CAP, pytest.approx(1))
    assert difference(picture, picture).max() == 0
    assert address(picture) != address(made.full.pixels)
    assert small(picture.repeat(20, axis=0)).shape[0] <= 256
