"""The model that ships, with its real weights; few steps, since each costs a tenth of a second."""

import json
from pathlib import Path

import pytest
import torch
from tests.command_line import run

import tacache_models
from tacache import models
from tacache.diffusers import applied
from tacache.diffusers.stepping import run_times
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.prompts import fingerprint, read_prompts
from tacache_lab.following import Item, check, detect, load_detector
from tacache_lab.picture_metrics import psnr

pytestmark = pytest.mark.slow

SHIPPED = models.embedded("tiny-flux")


@pytest.fixture(scope="module")
def pipe():
    loaded = models.load("tiny-flux")
    loaded.set_progress_bar_config(disable=True)
    return loaded


def picture(pipe, prompt="a red apple", steps=4, **call):
    arguments = {**models.default_call("tiny-flux"), "num_inference_steps": steps, **call}
    generator = torch.Generator().manual_seed(0)
    return pipe(prompt, generator=generator, output_type="pt", **arguments).images[0]


@pytest.fixture(scope="module")
def quick(pipe):
    return picture(pipe)


@pytest.fixture(scope="module")
def full(pipe):
    return picture(pipe, steps=50)


def test_it_is_a_flux_pipeline_of_the_libraries_own_classes(pipe):
    parts = {name: type(part) for name, part in pipe.components.items() if part is not None}
    names = {name: part.__name__ for name, part in parts.items()}
    assert type(pipe).__name__ == "FluxPipeline"
    assert names["transformer"] == "FluxTransformer2DModel"
    assert names["vae"] == "AutoencoderKL"
    assert names["scheduler"] == "FlowMatchEulerDiscreteScheduler"
    assert pipe.scheduler.config.use_dynamic_shifting
    assert {part.__module__.split(".")[0] for part in parts.values()} <= {
        "diffusers",
        "transformers",
    }


def test_saved_it_loads_from_its_folder_and_draws_the_same(quick, tmp_path):
    from diffusers import FluxPipeline

    whole = FluxPipeline.from_pretrained(models.save("tiny-flux", tmp_path / "whole"))
    whole.set_progress_bar_config(disable=True)
    assert torch.equal(picture(whole), quick)


def test_prompts_and_guidance_change_the_picture(pipe, quick):
    assert quick.shape == (3, 128, 128)
    assert (picture(pipe, "two cats on a black background") - quick).abs().mean() > 0.1
    assert (picture(pipe, true_cfg_scale=1.0) - quick).abs().mean() > 0.01


def test_a_plan_of_all_steps_changes_nothing(pipe, quick):
    with applied(pipe, Plan.full(run_times(pipe.scheduler))):
        assert torch.equal(picture(pipe), quick)


def test_full_steps_show_what_the_prompt_says(full):
    wanted = [{"class": "apple", "count": 1, "color": "red"}]
    item = Item.model_validate({"tag": "colors", "prompt": "a red apple", "include": wanted})
    assert check(detect(load_detector(), full[None])[0], item)


def test_a_quarter_of_the_evaluations_gives_nearly_the_same_picture(pipe, full):
    profile = Profile.load(SHIPPED.profile)
    with applied(pipe, make_plan(profile, evaluations=13)):
        fast = picture(pipe, steps=50)
    tasu = float(psnr(full[None], fast[None]))
    with applied(pipe, make_plan(profile, evaluations=13, rule="reuse")):
        reused = picture(pipe, steps=50)
    assert tasu > 25
    assert tasu > float(psnr(full[None], reused[None]))


def test_the_weights_are_small():
    sizes = {
        part: sum(file.stat().st_size for file in (SHIPPED.folder / part).rglob("*"))
        for part in tacache_models.PARTS
    }
    assert sum(sizes.values()) <= 40e6, sizes
    assert SHIPPED.detector.stat().st_size <= 4e6


def test_no_file_names_a_place_on_a_machine():
    for file in SHIPPED.folder.rglob("*.json"):
        for value in strings(json.loads(file.read_text(encoding="utf-8"))):
            assert not Path(value).is_absolute(), (file, value)
        assert "_name_or_path" not in file.read_text(encoding="utf-8"), file


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def test_the_profile_is_of_the_models_own_prompts_and_call():
    profile = Profile.load(SHIPPED.profile)
    assert (profile.steps, profile.samples, profile.origin.model) == (50, 60, "tiny-flux")
    prompts = read_prompts(SHIPPED.prompts("calibration"))
    assert profile.origin.prompts_sha256 == fingerprint(prompts)
    call = models.default_call("tiny-flux")
    assert profile.origin.call is not None
    assert {name: profile.origin.call[name] for name in call} == call


def test_the_demo_runs_on_the_shipped_profile(tmp_path):
    command = ["demo", "a red apple", "--steps", 10, "--evaluations", 5, "--out", tmp_path]
    result = run(*command, "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["model"] == "tiny-flux"
    rows = [(row["rule"], row["evaluations"]) for row in made["budgets"]]
    ways = ["plain", "linear", "tasu"]  # fitted plans of so few steps do not ship
    assert rows == [(None, 10), *((way, 5) for way in ways)]
    assert made["budgets"][1]["psnr"] > 15
    assert Profile.load(tmp_path / "demo.profile.json").samples == 60
    assert "a red apple" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_shipped_plan_is_followed_without_a_word(caplog):
    from tacache.diffusers import applied

    pipe, plan = models.load("tiny-flux"), SHIPPED.plan(7)
    pipe.set_progress_bar_config(disable=True)
    with applied(pipe, plan):
        pipe("a red apple", **models.default_call("tiny-flux"), output_type="latent")
        assert pipe.scheduler.run_plan == plan
    assert not [one for one in caplog.records if one.name.startswith("tacache")]


def test_the_commands_take_it_by_name(tmp_path):
    file = tmp_path / "t.profile.json"
    made = run("calibrate", "tiny-flux", "--count", 1, "--steps", 6, "-o", file, "--json")
    assert made.exit_code == 0, made.output
    first = read_prompts(SHIPPED.prompts("calibration"))[:1]
    assert Profile.load(file).origin.prompts_sha256 == fingerprint(first)
    plan = make_plan(Profile.load(file), evaluations=4).save(tmp_path / "t.plan.json")
    command = ["generate", "tiny-flux", "--plan", plan, "--prompts", "test", "--count", 1]
    drawn = run(*command, "--compare", "--json", "-o", tmp_path / "out")
    assert drawn.exit_code == 0, drawn.output
    (output,) = json.loads(drawn.stdout)["outputs"]
    assert output["prompt"] == read_prompts(SHIPPED.prompts("test"))[0]
    assert output["psnr"] > 10
