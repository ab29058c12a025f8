"""The distilled model that ships, with its real weights: eight steps, and a LoRA like any other."""

import pytest
import torch
from safetensors.torch import load_file

import tacache_models
from tacache import models
from tacache.diffusers import accelerate
from tacache.profile import Profile
from tacache.prompts import fingerprint, read_prompts
from tacache.storage.store import PlanStore
from tacache_lab.following import Item, check, detect, load_detector

pytestmark = pytest.mark.slow

NAME = "tiny-flux-turbo"
SHIPPED, BASE = models.embedded(NAME), models.embedded("tiny-flux")


def loaded(name):
    pipe = models.load(name)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def turbo():
    return loaded(NAME)


@pytest.fixture
def base():
    return loaded("tiny-flux")


def picture(pipe, seed=0, **call):
    arguments = {**models.default_call(NAME), "output_type": "pt", **call}
    return pipe("a red apple", generator=torch.Generator().manual_seed(seed), **arguments).images[0]


def test_eight_passes_show_what_the_prompt_says(turbo):
    passes = []
    hook = turbo.transformer.register_forward_hook(lambda *_: passes.append(1))
    drawn = picture(turbo)
    hook.remove()
    assert len(passes) == 8
    wanted = [{"class": "apple", "count": 1, "color": "red"}]
    item = Item.model_validate({"tag": "colors", "prompt": "a red apple", "include": wanted})
    assert check(detect(load_detector(), drawn[None])[0], item)


def test_its_weights_are_those_of_tiny_flux_with_the_lora_fused(turbo, base):
    plain = {name: weight.clone() for name, weight in base.transformer.state_dict().items()}
    base.load_lora_weights(SHIPPED.folder)
    beside = picture(base)
    base.fuse_lora()
    base.unload_lora_weights()
    for name, weight in turbo.transformer.state_dict().items():
        assert torch.equal(base.transformer.state_dict()[name], weight)
    changed = [n for n, w in turbo.transformer.state_dict().items() if not torch.equal(w, plain[n])]
    assert len(changed) == len(load_file(SHIPPED.folder / tacache_models.LORA)) // 2
    torch.testing.assert_close(beside, picture(turbo), atol=1e-3, rtol=0)


def test_a_lora_on_an_accelerated_pipeline_has_plans_of_its_own(base):
    call = {"num_inference_steps": 12, "output_type": "latent"}
    accelerate(base, evaluations=5, learn=2)

    def learned():
        """The plan that two full runs teach, and the next run follows."""
        for seed in range(2):
            picture(base, seed, **call)
            assert base.scheduler.run_plan is None
        picture(base, 2, **call)
        return base.scheduler.run_plan

    own = learned()
    assert (own.rule, own.evaluations) == ("fitted", 5)
    base.load_lora_weights(SHIPPED.folder)
    adapted = learned()  # in full first: the plan that is stored is not for these weights
    assert adapted.origin.weights != own.origin.weights
    assert {plan.plan.origin.weights for plan in PlanStore().plans()} == {
        own.origin.weights,
        adapted.origin.weights,
    }
    base.unload_lora_weights()
    picture(base, 3, **call)
    assert base.scheduler.run_plan == own


def test_saved_it_is_a_whole_pipeline(turbo, tmp_path):
    from diffusers import FluxPipeline

    whole = FluxPipeline.from_pretrained(models.save(NAME, tmp_path / "whole"))
    whole.set_progress_bar_config(disable=True)
    torch.testing.assert_close(picture(whole), picture(turbo), atol=0.02, rtol=0)  # half precision


def test_it_shares_what_is_tiny_fluxs():
    assert SHIPPED.prompts("test") == BASE.prompts("test")
    assert SHIPPED.detector == BASE.detector
    profile = Profile.load(SHIPPED.profile)
    assert (profile.steps, profile.samples, profile.origin.model) == (8, 60, NAME)
    prompts = read_prompts(BASE.prompts("calibration"))
    assert profile.origin.prompts_sha256 == fingerprint(prompts)
    assert SHIPPED.call.items() <= profile.origin.call.items()


def test_it_is_small():
    assert sum(file.stat().st_size for file in SHIPPED.folder.rglob("*")) < 8e6
