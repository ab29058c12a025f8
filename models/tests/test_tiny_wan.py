"""The text-to-video model that ships, with its real weights; few steps, since each takes long."""

import pytest
import torch

from tacache import models
from tacache.diffusers import applied
from tacache.diffusers.stepping import run_times
from tacache.errors import HostError
from tacache.plan import make_plan
from tacache.profile import Profile

SHIPPED = models.embedded("tiny-wan")


def missing() -> str:
    """What keeps the model from being loaded, in words; empty where nothing does."""
    try:
        models.check("tiny-wan")
    except HostError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def pipe():
    loaded = models.load("tiny-wan")
    loaded.set_progress_bar_config(disable=True)
    return loaded


def clip(pipe, prompt="a cat moves to the left", steps=4):
    arguments = {**models.default_call("tiny-wan"), "num_inference_steps": steps}
    generator = torch.Generator().manual_seed(0)
    return pipe(prompt, generator=generator, output_type="pt", **arguments).frames[0]


def test_it_is_a_wan_pipeline_of_the_libraries_own_classes(pipe):
    names = {name: type(part).__name__ for name, part in pipe.components.items()}
    assert type(pipe).__name__ == "WanPipeline"
    assert names["transformer"] == "WanTransformer3DModel"
    assert names["vae"] == "AutoencoderKLWan"
    assert names["text_encoder"] == "UMT5EncoderModel"
    assert {pipe.transformer.dtype, pipe.vae.dtype, pipe.text_encoder.dtype} == {torch.float32}


def test_it_makes_the_same_clip_again_and_another_of_other_words(pipe):
    first = clip(pipe)
    assert first.shape == (17, 3, 96, 96)
    assert torch.isfinite(first).all()
    assert torch.equal(first, clip(pipe))
    assert not torch.equal(first, clip(pipe, "a rocket rises quickly"))


def test_it_is_small_and_has_a_card():
    files = [file for file in SHIPPED.folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 40e6
    assert "Fluent Emoji" in (SHIPPED.folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not SHIPPED.profile.is_file(), reason="its profile is not measured yet")
def test_its_profile_makes_plans_that_skip(pipe):
    clip(pipe, steps=10)
    profile = Profile.load(SHIPPED.profile).resample(run_times(pipe.scheduler))
    with applied(pipe, make_plan(profile, evaluations=5)):
        assert torch.isfinite(clip(pipe, steps=10)).all()
