"""A running call, kept so that it can be made again one sample at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from tests.diffusers_support import STEPS, call_of
from tests.tiny import PIPELINES

from tacache.diffusers import drive
from tacache.diffusers.calls import RunningCall
from tacache.diffusers.kept_calls import KeptCalls, RunningSource
from tacache.hosts.learning import RecordedSample
from tacache.prompts import Sample

FLUX = PIPELINES["flux"]


@pytest.fixture(scope="module")
def flux():
    return FLUX.build()


def source(pipe, **arguments):
    return RunningSource(RunningCall(pipe, arguments, is_read=True))


def test_a_prompt_stands_for_its_encodings(flux):
    kept = source(
        flux,
        prompt="a fox",
        prompt_embeds=torch.zeros(1, 2),
        guidance_scale=2.0,
        num_images_per_prompt=4,
        generator=torch.Generator(),
        max_sequence_length=512,  # which is the default
        callback_on_step_end=print,
    )
    assert kept.refusal() is None
    assert kept.call_of(0, 4) == {"prompt": "a fox", "guidance_scale": 2.0}


def test_each_sample_gets_its_own_prompt(flux):
    prompts = {"prompt": ["a", "b"], "negative_prompt": ["c", "d"], "sigmas": np.array([1.0, 0.5])}
    kept = source(flux, **prompts)
    calls = [kept.call_of(row, 4) for row in range(4)]
    assert [one["prompt"] for one in calls] == ["a", "a", "b", "b"]
    assert [one["negative_prompt"] for one in calls] == ["c", "c", "d", "d"]
    assert calls[0]["sigmas"] == [1.0, 0.5]


def test_encodings_lose_what_was_put_before_them(flux):
    negative, positive = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)
    kept = source(
        flux,
        prompt=None,
        prompt_embeds=torch.cat([negative, positive]),
        negative_prompt_embeds=negative,
        pooled_prompt_embeds=positive,
        output_type="latent",
    )
    call = kept.call_of(1, 2)
    assert torch.equal(call["prompt_embeds"], positive[1:])
    assert torch.equal(call["pooled_prompt_embeds"], positive[1:])
    assert torch.equal(call["negative_prompt_embeds"], negative[1:])
    assert call["output_type"] == "latent"


def test_lists_of_encodings_stay_lists(flux):
    kept = source(flux, prompt_embeds=[torch.zeros(3, 2), torch.ones(5, 2)])
    (found,) = kept.call_of(1, 2)["prompt_embeds"]
    assert torch.equal(found, torch.ones(5, 2))


@pytest.mark.parametrize(
    ("argument", "value", "kind"),
    [
        ("ip_adapter_image", Image.new("RGB", (8, 8)), "Image"),
        ("ip_adapter_image_embeds", [torch.zeros(1)], "list"),
        ("joint_attention_kwargs", {"mask": torch.zeros(1)}, "dict"),
        ("ip_adapter_image", torch.zeros(2), "Tensor"),
    ],
)
def test_what_cannot_be_kept_is_named(flux, argument, value, kind):
    reason = f"its {argument} ({kind}) cannot be kept for later"
    assert source(flux, **{argument: value}).refusal() == reason


def test_a_kept_call_is_made_again_from_its_noise(flux):
    call = call_of(FLUX)
    with drive(flux, **call) as run:
        noise, first = run.noise, run.evaluate(run.noise, 0)
        times = run.times
    plain = {name: call[name] for name in call if name not in ("generator", "output_type")}
    kept = RecordedSample(plain, times, ((noise, first), (noise, first)), None, None, 0.1)
    host = KeptCalls(flux, [kept])
    assert host.pipe is not flux
    assert host.pipe.scheduler is not flux.scheduler
    with host.open(Sample(None, 0), {"output_type": "latent"}) as run:
        assert len(run.times) == STEPS + 1
        assert torch.equal(run.noise, noise)
        assert torch.equal(run.evaluate(noise, 0), first)


def test_where_latents_have_another_form_the_loop_starts_from_the_noise_all_the_same(flux):
    call = call_of(FLUX)
    with drive(flux, **call) as run:
        noise, first, times = run.noise + 1, run.evaluate(run.noise + 1, 0), run.times
    plain = {name: call[name] for name in call if name not in ("generator", "output_type")}
    host = KeptCalls(flux, [RecordedSample(plain, times, ((noise, first),) * 2, None, None, 0.1)])
    host._takes_noise = False
    with host.open(Sample(None, 0), {}) as run:
        assert torch.equal(run.noise, noise)
        assert torch.equal(run.evaluate(noise, 0), first)
        assert run.finish(noise) is None


def test_numbers_of_numpy_are_kept_as_pythons(flux):
    scales = {"joint_attention_kwargs": {"scale": np.float32(0.5)}}
    kept = source(flux, prompt="a", sigmas=list(np.linspace(1, 0.5, 2)), **scales).call_of(0, 1)
    assert [type(one) for one in kept["sigmas"]] == [float, float]
    assert type(kept["joint_attention_kwargs"]["scale"]) is float
