import importlib.util
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tiny import PIPELINES

from tacache import Plan, Profile
from tacache.diffusers import applied, calibrate
from tacache.errors import PlanError
from tacache.fidelity import CAP
from tacache.instant import instant_plan
from tacache.plan import make_plan
from tacache_lab.demo import run as module
from tacache_lab.demo.demo_request import (
    CALIBRATION,
    PROMPTS,
    VIDEO_CALIBRATION,
    VIDEO_PROMPTS,
    DemoRequest,
)
from tacache_lab.demo.record import ModelDemo
from tacache_lab.demo.run import (
    ENLARGED,
    DemoDrawing,
    _side_by_side,
    can_encode,
    fidelity,
    run_model_demo,
)

pytestmark = pytest.mark.slow

CALL = {
    "height": 32,
    "width": 32,
    "max_sequence_length": 32,
    "num_inference_steps": 10,
    "guidance_scale": 3.5,
}
ASKED = DemoRequest(("a fox", "a boat"), CALL, seed=5)


def planned(profile: Profile) -> list[Plan]:
    """The paper's rule at three budgets, and an instant plan."""
    plans = [make_plan(profile, evaluations=budget) for budget in (10, 6, 4)]
    return [*plans, instant_plan(profile.times, 4)]


@pytest.fixture(scope="module")
def pipe():
    return PIPELINES["flux"].build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def made(pipe, folder) -> ModelDemo:
    return run_model_demo(pipe, folder, ASKED, planned)


def test_every_prompt_is_drawn_by_every_plan(made, folder):
    drawn = [(one.prompt, one.rule, one.evaluations) for one in made.pictures]
    ways = [(None, 10), ("tasu", 10), ("tasu", 6), ("tasu", 4), ("linear", 4)]
    assert drawn == [(prompt, *way) for way in ways for prompt in ASKED.prompts]
    assert len({one.file for one in made.pictures}) == len(drawn)
    for one in made.pictures:
        assert Image.open(folder / one.file).size == (32, 32)
        assert one.seconds > 0
    assert made.pictures[-1].file == "pictures/0001-a-boat-s5-linear-4.png"
    assert "core" in made.machine


def test_nothing_is_drawn_from_the_random_numbers_that_threads_share(pipe, tmp_path):
    before = torch.get_rng_state()
    run_model_demo(pipe, tmp_path, ASKED._replace(prompts=("a fox",)), lambda p: planned(p)[2:3])
    assert torch.equal(torch.get_rng_state(), before)  # parts of a demo run side by side


def test_each_prompt_is_drawn_in_all_ways_before_the_next_one(pipe, tmp_path, monkeypatch):
    seen, draw = [], module._draw

    def noted(pipe, prompt, asked):
        plan = getattr(pipe.scheduler, "plan", None)
        seen.append((prompt, None if plan is None else plan.evaluations))
        return draw(pipe, prompt, asked)

    monkeypatch.setattr(module, "_draw", noted)
    profile = calibrate(pipe, ["a lamp"], **CALL)
    run_model_demo(pipe, tmp_path, ASKED, lambda p: planned(p)[1:3], profile)
    assert seen == [(prompt, k) for prompt in ("a fox", "a boat") for k in (None, 6, 4)]


def test_fidelity_is_to_the_full_step_picture(made):
    for first, same, six, four, _ in (made.pictures[i::2] for i in range(2)):
        assert (first.psnr, first.ssim) == (None, None)
        assert (same.psnr, same.ssim) == (CAP, pytest.approx(1.0))  # every step evaluated
        assert CAP > six.psnr > four.psnr > 0
        assert 1 > six.ssim > four.ssim


@pytest.mark.parametrize(("place", "plan"), [(1, None), (5, "tasu-6.plan.json")])
def test_the_files_are_what_the_pipeline_draws(made, pipe, folder, place, plan):
    with applied(pipe, Plan.load(folder / plan)) if plan else nullcontext():
        generator = torch.Generator().manual_seed(ASKED.seed)
        image = pipe("a boat", generator=generator, **CALL).images[0]
    shown = Image.open(folder / made.pictures[place].file)
    assert made.pictures[place].prompt == "a boat"
    assert np.array_equal(np.asarray(shown), np.asarray(image))


def test_every_plan_is_summed_up_over_the_prompts(made, folder):
    full, _, six, _, instant = made.budgets
    assert (full.evaluations, full.speedup, full.psnr, full.plan) == (10, 1.0, None, None)
    pictures = [one for one in made.pictures if one.evaluations == 6]
    assert six.psnr == pytest.approx(sum(one.psnr for one in pictures) / 2)
    assert six.ssim == pytest.approx(sum(one.ssim for one in pictures) / 2)
    assert six.lowest == min(one.psnr for one in pictures)
    assert six.speedup == pytest.approx(full.seconds / six.seconds)
    plan = Plan.load(folder / six.plan)
    assert (plan.evaluations, plan.rule) == (6, "tasu")
    assert Plan.load(folder / instant.plan).rule == "linear"


def test_plain_steps_are_a_call_with_fewer_steps(pipe, tmp_path):
    request = ASKED._replace(prompts=["a boat"], plain=(6, 4), part="short")
    profile = calibrate(pipe, ["a lamp"], **CALL)
    made = run_model_demo(pipe, tmp_path, request, lambda p: planned(p)[1:], profile)
    ways = [(None, 10), ("plain", 6), ("tasu", 6), ("plain", 4), ("tasu", 4), ("linear", 4)]
    assert [(one.rule, one.evaluations) for one in made.budgets] == ways
    assert made.budgets[1].plan is None
    image = pipe(
        "a boat", generator=torch.Generator().manual_seed(5), **{**CALL, "num_inference_steps": 6}
    ).images[0]
    assert made.pictures[1].file == "short/pictures/0000-a-boat-s5-plain-6.png"
    shown = Image.open(tmp_path / made.pictures[1].file)
    assert np.array_equal(np.asarray(shown), np.asarray(image))
    assert (tmp_path / made.budgets[2].plan).parent.name == "short"
    assert Profile.load(tmp_path / made.profile).steps == 10


def test_without_a_profile_the_model_is_calibrated_on_other_prompts(made, folder):
    assert Profile.load(folder / made.profile).samples == len(CALIBRATION)
    assert not set(CALIBRATION) & set(PROMPTS)


def test_a_given_profile_is_used_at_other_step_counts(pipe, tmp_path):
    profile = calibrate(pipe, ["a lamp"], **{**CALL, "num_inference_steps": 12})
    asked = ASKED._replace(prompts=["a fox"])
    made = run_model_demo(pipe, tmp_path, asked, lambda p: [make_plan(p, evaluations=5)], profile)
    used = Profile.load(tmp_path / made.profile)
    assert (used.steps, used.samples) == (10, 1)
    assert [budget.evaluations for budget in made.budgets] == [10, 5]


def test_the_threads_and_the_scheduler_are_given_back(pipe, tmp_path):
    def refuse(profile):
        raise PlanError("too few")

    before, threads = pipe.scheduler, torch.get_num_threads()
    with pytest.raises(PlanError, match="too few"):
        run_model_demo(pipe, tmp_path, ASKED, refuse)
    assert pipe.scheduler is before
    assert torch.get_num_threads() == threads


# --- on a model that makes clips

CLIP_CALL = {
    "height": 16,
    "width": 16,
    "num_frames": 5,
    "max_sequence_length": 32,
    "num_inference_steps": 10,
    "guidance_scale": 5.0,
}
CLIPS = DemoRequest(("waves", "a boat"), CLIP_CALL, 5, ("a lamp",), fps=12)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> tuple[ModelDemo, Path]:
    folder = tmp_path_factory.mktemp("clips")
    pipe = PIPELINES["wan-euler"].build()
    return run_model_demo(pipe, folder, CLIPS, planned_clips), folder


def planned_clips(profile: Profile) -> list[Plan]:
    return [make_plan(profile, evaluations=budget) for budget in (10, 5)]


def test_clips_are_written_as_gifs_each_and_side_by_side(clips):
    made, folder = clips
    assert (made.fps, made.noun) == (12, "clip")
    assert [one.evaluations for one in made.pictures] == [10, 10, 10, 10, 5, 5]
    for one in made.pictures:
        assert one.file.startswith("clips/")
        with Image.open(folder / one.file) as shown:
            assert (shown.size, shown.n_frames) == ((16, 16), 5)
    beside = sorted((folder / "clips").glob("*-side-by-side.gif"))
    assert [path.name[:4] for path in beside] == ["0000", "0001"]
    with Image.open(beside[0]) as shown:
        assert (shown.size, shown.n_frames) == ((3 * 16 + 2 * 2, 16), 5)
    assert Profile.load(folder / made.profile).samples == 1


def test_clips_side_by_side_are_written_as_mp4_where_that_can_be(clips):
    pytest.importorskip("imageio_ffmpeg")
    import imageio

    _, folder = clips
    beside = sorted((folder / "clips").glob("*.mp4"))
    assert [path.name[:4] for path in beside] == ["0000", "0001"]
    with imageio.get_reader(beside[0]) as video:
        assert video.get_meta_data()["fps"] == 12
        assert video.get_meta_data()["size"] == (ENLARGED * (3 * 16 + 2 * 2), ENLARGED * 16)
        assert video.count_frames() == 5


def test_without_an_encoder_there_are_gifs_only(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not can_encode()
    drawn = [[DemoDrawing(torch.rand(3, 3, 8, 8), 1.0)]]
    _side_by_side(drawn, CLIPS._replace(prompts=("waves",)), tmp_path)
    assert [path.suffix for path in (tmp_path / "clips").iterdir()] == [".gif"]


def test_clips_are_compared_by_frames_and_by_changes(clips):
    made, _ = clips
    full, same, fast = made.pictures[::2]
    assert (full.psnr, full.change_psnr, full.change_ssim) == (None, None, None)
    assert (same.psnr, same.change_psnr) == (CAP, CAP)
    assert same.change_ssim == pytest.approx(1.0)
    assert CAP > fast.psnr > 0
    assert CAP > fast.change_psnr > 0
    assert fast.ssim < 1
    mean = sum(one.change_psnr for one in made.pictures if one.evaluations == 5) / 2
    assert made.budgets[-1].change_psnr == pytest.approx(mean)
    assert made.budgets[0].change_ssim is None


def test_a_clip_that_moves_otherwise_is_told_by_its_changes():
    generator = torch.Generator().manual_seed(0)
    clip = torch.rand(4, 3, 16, 16, generator=generator) * 0.5
    brighter = fidelity(clip, clip + 0.1)  # every frame differs, and it moves alike
    assert brighter["psnr"] == pytest.approx(20, abs=0.01)
    assert brighter["change_psnr"] > 60
    backwards = fidelity(clip, clip.flip(0))
    assert backwards["change_psnr"] < brighter["change_psnr"]
    assert fidelity(clip[0], clip[0] + 0.1).keys() == {"psnr", "ssim"}


def test_the_prompts_of_clips_are_not_those_calibrated_on():
    assert len({*VIDEO_PROMPTS, *VIDEO_CALIBRATION}) == 8
    assert len({*PROMPTS, *CALIBRATION}) == 8
