"""The text-to-video model's clips: words, ways and pictures agree."""

import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.video_support import THINGS, WHITE, animation, clips_of, pictures, run_main
from training.video import (
    contact,
    corpus,
    emoji,
)
from training.video.captions import caption
from training.video.config import FRAMES, SIZE
from training.video.emoji import Animations
from training.video.motions import Path as Way
from training.video.motions import track
from training.video.render import make_bank, pack, render
from training.video.scenes import Actor, Clip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bank():
    return make_bank(pictures(), THINGS, Animations(("3",), animation()[None]))


def tracks(clip: Clip) -> torch.Tensor:
    return track(torch.tensor([actor.path.numbers() for actor in clip.actors]))


# --- motions and captions


def read_direction(words: str) -> tuple[int, int] | None:
    """Which way a caption says a lone object goes, read without the captions' own tables."""
    if re.search(r"to the left|(mov|glid)\w+ left|right to left", words):
        return -1, 0
    if re.search(r"to the right|(mov|glid)\w+ right|left to right", words):
        return 1, 0
    if re.search(r"(moves|moving|goes|going|flies|flying) (up|upwards)\b|ris(es|ing)", words):
        return 0, -1
    if re.search(r"(moves|moving|goes|going) (down|downwards)\b|fall|sink", words):
        return 0, 1
    return None


@given(seed=st.integers(0, 10**6))
def test_the_direction_in_the_words_is_the_way_of_the_object(seed):
    rng = random.Random(seed)
    for clip in clips_of("alone", 8, seed):
        words = caption(clip, rng, THINGS).lower()
        x, y = tracks(clip)[0, [0, -1], :2].diff(dim=0)[0].tolist()
        motion, direction = clip.actors[0].motion, read_direction(words)
        if direction is not None:
            assert (x * direction[0] > 10) or (y * direction[1] > 10), words
        elif motion not in ("circle left", "circle right"):
            assert abs(x) + abs(y) < 1e-3, words


# --- pictures


def centre(frame: torch.Tensor) -> tuple[float, float]:
    """Of what is not white."""
    weight = 255.0 - frame.float().amin(dim=0)
    across, down = weight.sum(dim=0), weight.sum(dim=1)
    line = torch.arange(SIZE) + 0.5
    return float((across * line).sum() / across.sum()), float((down * line).sum() / down.sum())


def test_objects_are_drawn_where_their_track_says(bank):
    path = Way(30, 40, 36, across=40, down=10, factor=1.2)
    clip = Clip("alone", WHITE, (Actor(3, None, "right", "fast", path),))
    drawn = render(pack([clip], bank), bank)
    assert drawn.shape == (1, 3, FRAMES, SIZE, SIZE)
    assert drawn.dtype == torch.uint8
    for frame, (x, y, size, _) in zip(drawn[0].transpose(0, 1), tracks(clip)[0], strict=True):
        assert centre(frame) == pytest.approx((float(x), float(y)), abs=0.6)
        covered = (frame.amin(dim=0) < 128).float()
        assert covered.sum() == pytest.approx(np.pi / 4 * float(size) ** 2, rel=0.08)


def test_the_data_can_be_looked_at(tmp_path, monkeypatch):
    np.savez(tmp_path / "emoji.npz", pictures=pictures())
    emoji.save(tmp_path / "animations.npz", {"3": animation()})
    for module in (contact, corpus):
        monkeypatch.setattr(module, "load_vocabulary", lambda: THINGS)
    data = ["--pictures", tmp_path / "emoji.npz", "--animations", tmp_path / "animations.npz"]
    run_main(contact, "--kind", "animated", "--count", 3, *data, "-o", tmp_path / "a.b")
    with Image.open(tmp_path / "a.b.gif") as moving:
        assert moving.n_frames == FRAMES
    assert (tmp_path / "a.b.png").is_file()
