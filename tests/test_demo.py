import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from tacache import Plan, Profile
from tacache.demo import (
    CALIBRATION,
    LIMIT,
    PROMPTS,
    SIZE,
    Comparison,
    ModelDemo,
    picture_flow,
    run_demo,
    run_model_demo,
)
from tacache.diffusers import applied, calibrate
from tests.tiny import PIPELINES

CALL = {
    "height": 32,
    "width": 32,
    "max_sequence_length": 32,
    "num_inference_steps": 10,
    "guidance_scale": 3.5,
}
ASKED = Comparison(("a fox", "a boat"), (10, 6, 4), CALL, seed=5)


def test_the_demo_calibrates_plans_and_compares(tmp_path):
    result = run_demo(tmp_path, steps=16, budgets=(8, 5), samples=4)
    assert Profile.load(result.profile).steps == 16
    assert Profile.load(result.profile).samples == 4
    assert [Plan.load(path).evaluations for path in result.plans] == [8, 5]
    assert [row.evaluations for row in result.rows] == [8, 5]
    assert [row.speedup for row in result.rows] == [2.0, 3.2]
    for row in result.rows:
        assert 0 < row.tasu < row.reuse
        assert row.fewer_steps > 0
    assert result.rows[0].tasu < result.rows[1].tasu
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo-5.plan.json",
        "demo-8.plan.json",
        "demo.profile.json",
    ]


def test_a_seed_gives_the_same_demo_again(tmp_path):
    first, again, other = (
        run_demo(tmp_path / name, steps=10, budgets=(5,), samples=2, seed=seed).rows
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other


def test_the_pictures_have_three_channels():
    assert picture_flow()(torch.randn(2, 3, SIZE, SIZE), 0.5).shape == (2, 3, SIZE, SIZE)


# --- on a model


@pytest.fixture(scope="module")
def pipe():
    return PIPELINES["flux"].build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def made(pipe, folder) -> ModelDemo:
    return run_model_demo(pipe, folder, ASKED)


def test_every_prompt_is_drawn_with_every_budget(made, folder):
    drawn = [(one.prompt, one.evaluations) for one in made.pictures]
    assert drawn == [(prompt, n) for n in (10, 10, 6, 4) for prompt in ASKED.prompts]
    assert len({one.file for one in made.pictures}) == len(drawn)
    for one in made.pictures:
        assert Image.open(folder / one.file).size == (32, 32)
        assert one.seconds > 0
    assert json.loads((folder / "demo.json").read_text()) == json.loads(made.model_dump_json())


def test_fidelity_is_to_the_full_step_picture(made):
    for first, same, six, four in (made.pictures[i::2] for i in range(2)):
        assert (first.psnr, first.ssim) == (None, None)
        assert (same.psnr, same.ssim) == (LIMIT, pytest.approx(1.0))  # every step evaluated
        assert LIMIT > six.psnr > four.psnr > 0
        assert 1 > six.ssim > four.ssim


@pytest.mark.parametrize(("place", "plan"), [(1, None), (5, "demo-6.plan.json")])
def test_the_files_are_what_the_pipeline_draws(made, pipe, folder, place, plan):
    with applied(pipe, Plan.load(folder / plan)) if plan else nullcontext():
        generator = torch.Generator().manual_seed(ASKED.seed)
        image = pipe("a boat", generator=generator, **CALL).images[0]
    shown = Image.open(folder / made.pictures[place].file)
    assert made.pictures[place].prompt == "a boat"
    assert np.array_equal(np.asarray(shown), np.asarray(image))


def test_budgets_are_means_over_prompts(made, folder):
    full, _, six, _ = made.budgets
    assert (full.evaluations, full.speedup, full.psnr, full.plan) == (10, 1.0, None, None)
    pictures = [one for one in made.pictures if one.evaluations == 6]
    assert six.psnr == pytest.approx(sum(one.psnr for one in pictures) / 2)
    assert six.ssim == pytest.approx(sum(one.ssim for one in pictures) / 2)
    assert six.seconds == pytest.approx(sum(one.seconds for one in pictures) / 2)
    assert six.speedup == pytest.approx(full.seconds / six.seconds)
    plan = Plan.load(folder / six.plan)
    assert (plan.evaluations, plan.rule) == (6, "tasu")


def test_without_a_profile_the_model_is_calibrated_on_other_prompts(made, folder):
    assert Profile.load(folder / made.profile).samples == len(CALIBRATION)
    assert not set(CALIBRATION) & set(PROMPTS)


def test_a_given_profile_is_used_at_other_step_counts(pipe, tmp_path):
    profile = calibrate(pipe, ["a lamp"], **{**CALL, "num_inference_steps": 12})
    asked = ASKED._replace(prompts=["a fox"], budgets=[5])
    made = run_model_demo(pipe, tmp_path, asked, profile)
    used = Profile.load(tmp_path / made.profile)
    assert (used.steps, used.samples) == (10, 1)
    assert [budget.evaluations for budget in made.budgets] == [10, 5]


def test_the_threads_and_the_scheduler_are_given_back(pipe, tmp_path):
    before, threads = pipe.scheduler, torch.get_num_threads()
    asked = ASKED._replace(budgets=[1])  # too few
    with pytest.raises(Exception, match="evaluations"):
        run_model_demo(pipe, tmp_path, asked)
    assert pipe.scheduler is before
    assert torch.get_num_threads() == threads
