"""The text-to-video model's clips: words, ways and pictures agree."""

import random
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from video_support import THINGS, WHITE, animation, clips_of, pictures, run_main

from training.scenes import Background
from training.video import (
    contact,
    corpus,
    emoji,
)
from training.video.captions import caption
from training.video.config import FRAMES, SIZE
from training.video.emoji import Animations
from training.video.motions import FACTOR, MOTIONS, track
from training.video.motions import Path as Way
from training.video.render import make_bank, pack, render
from training.video.scenes import KINDS, Actor, Clip, sample_clips


@pytest.fixture(scope="module")
def bank():
    return make_bank(pictures(), THINGS, Animations(("3",), animation()[None]))


def tracks(clip: Clip) -> torch.Tensor:
    return track(torch.tensor([actor.path.numbers() for actor in clip.actors]))


def lone(motion: str, **path: float) -> Clip:
    return Clip("alone", WHITE, (Actor(1, None, motion, "fast", Way(48, 48, 40, **path)),))


# --- motions and captions


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(list(KINDS)))
def test_objects_stay_in_the_frame_and_readable(seed, kind):
    for clip in clips_of(kind, 3, seed):
        x, y, size, _ = tracks(clip).unbind(-1)
        for centre in (x, y):
            assert (centre - size / 2 > -0.1).all(), clip
            assert (centre + size / 2 < SIZE + 0.1).all(), clip
        assert size.min() > 16


@given(seed=st.integers(0, 10**6))
def test_motion_is_smooth(seed):
    for clip in clips_of(None, 3, seed):
        steps = tracks(clip)[..., :2].diff(dim=-2).norm(dim=-1)
        assert steps.max() < 0.3 * SIZE


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


@given(seed=st.integers(0, 10**6))
def test_sizes_turns_and_speeds_are_as_worded(seed):
    rng = random.Random(seed)
    for clip in clips_of("alone", 8, seed):
        words = caption(clip, rng, THINGS).lower()
        x, y, size, angle = tracks(clip)[0].unbind(-1)
        if re.search("bigger|larger|grow|closer", words):
            assert size[-1] > 1.25 * size[0]
        if re.search("smaller|shrink|far away", words):
            assert size[-1] < size[0] / 1.25
        if re.search("(turn|spin|rotat)", words):
            assert (angle[-1] < 0) == ("counterclockwise" in words)
        slow, fast = re.search("slowly|gently", words), re.search("fast|quickly|rapidly", words)
        way = max((x[-1] - x[0]).abs(), (y[-1] - y[0]).abs())
        if clip.actors[0].motion in ("left", "right", "up", "down") and (slow or fast):
            assert (way < 0.25 * SIZE) if slow else (way > 0.45 * SIZE), words
        if "bounc" in words and (slow or fast):
            assert clip.actors[0].path.hops == (1 if slow else 3)


def test_captions_name_the_objects_and_the_background():
    rng, grounds = random.Random(0), 0
    for clip in clips_of(None, 300):
        words = caption(clip, rng, THINGS).lower()
        for actor in clip.actors:
            names = [name for name, _ in THINGS[actor.thing].names]
            assert any(name in words for name in names), words
        said = re.search(r"(\w+) (background|wall)", words)
        if said:
            grounds += 1
            assert said[1] in (clip.background.name, "grey", "violet", "turquoise")
        assert "scissors moves" not in words
        assert " a orange" not in words
    assert grounds > 60


def test_crossing_objects_change_sides_and_meet():
    rng = random.Random(0)
    for clip in clips_of("cross"):
        places = tracks(clip)[..., :2]
        axis = 0 if clip.actors[0].motion in ("left", "right") else 1
        apart = places[0, :, axis] - places[1, :, axis]
        assert apart[0] * apart[-1] < 0
        assert apart.abs().min() < 4
        words = caption(clip, rng, THINGS).lower()
        assert ("from left and right" in words) <= (axis == 0)
        assert ("from above and below" in words) <= (axis == 1)


@pytest.mark.parametrize("kind", ["pair", "together"])
def test_two_objects_keep_apart(kind):
    for clip in clips_of(kind):
        places = tracks(clip)
        apart = (places[0, :, :2] - places[1, :, :2]).abs()
        sizes = (places[0, :, 2] + places[1, :, 2]) / 2
        assert (apart.amax(dim=-1) > 0.95 * sizes).all()
        if kind == "together":
            assert len({(actor.motion, actor.speed) for actor in clip.actors}) == 1


def test_every_motion_and_kind_is_drawn_and_seeds_hold():
    clips = clips_of(None, 1500)
    assert {clip.kind for clip in clips} == set(KINDS)
    moved = {actor.motion for clip in clips for actor in clip.actors}
    assert moved == {*MOTIONS, "animated"}
    assert clips == clips_of(None, 1500) != clips_of(None, 1500, seed=2)
    assert {clip.kind for clip in sample_clips(20, 0, THINGS, (), "animated")} == {"alone"}
    assert FACTOR["slow"][1] < FACTOR["fast"][0]


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


def test_a_turn_is_clockwise_as_seen(bank):
    quarter = render(pack([lone("turn right", turn=np.pi / 2)], bank), bank)[0]
    x, y = centre(quarter[:, 0])
    assert x > 54  # the half disc is on the right
    assert y == pytest.approx(48, abs=0.5)
    x, y = centre(quarter[:, -1])
    assert x == pytest.approx(48, abs=0.5)
    assert y > 54  # and then at the bottom


def test_animations_play_and_the_front_object_covers(bank):
    playing = Actor(2, None, "animated", "medium", Way(48, 48, 64), animated=True)
    drawn = render(pack([Clip("animated", WHITE, (playing,))], bank), bank)[0]
    heights = [centre(frame)[1] for frame in drawn.transpose(0, 1)]
    assert all(after > before for before, after in pairwise(heights))
    front = Actor(0, "blue", "still", "slow", Way(48, 48, 40))
    still = render(pack([Clip("pair", WHITE, (playing, front))], bank), bank)[0]
    red, green, blue = still[:, 8, 48, 48].tolist()
    assert blue > 150 > red
    assert blue > green


def test_backgrounds_run_between_their_shades(bank):
    ground = Background("gray", (0.2, 0.2, 0.2), (0.8, 0.8, 0.8), 0.0)
    clip = Clip("alone", ground, (Actor(0, None, "still", "slow", Way(48, 48, 4)),))
    row = render(pack([clip], bank), bank)[0, 0, 0, 5].float()
    assert (row.diff() >= 0).all()
    assert row[-1] - row[0] > 60


def test_animations_are_packed_and_read_again(tmp_path):
    moving = [Image.fromarray(frame) for frame in animation()]
    moving[0].save(
        tmp_path / "a.webp", save_all=True, append_images=moving[1:], duration=42, lossless=True
    )
    frames = emoji.read_animation((tmp_path / "a.webp").read_bytes())
    assert frames.shape == animation().shape
    assert emoji.change(frames) > emoji.LEAST_CHANGE
    assert emoji.change(np.stack([frames[0]] * 3)) == 0
    moving[0].save(tmp_path / "b.webp")
    assert emoji.read_animation((tmp_path / "b.webp").read_bytes()) is None
    emoji.save(tmp_path / "pack.npz", {"1f600": frames, "1f601": frames[::-1]})
    codes, again = emoji.load_animations(tmp_path / "pack.npz")
    assert codes == ("1f600", "1f601")
    error = np.abs(again[0, ..., 3].astype(int) - frames[..., 3]).mean()
    assert error < 4
    assert np.abs(again[1].astype(int) - again[0, ::-1]).mean() < 4


def test_clips_show_only_the_objects_chosen_for_them():
    things = [replace(thing, video=thing.noun != "box") for thing in THINGS]
    seen = {actor.thing for clip in sample_clips(400, 0, things) for actor in clip.actors}
    assert seen == {0, 2, 3}


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
