"""What a pipeline is, as profiles and plans write it down and as a running call shows it."""

import copy
import functools

import pytest
import torch

from tacache import make_plan
from tacache.diffusers.calls import run_breaks, running_call
from tacache.diffusers.derived import like, subclass
from tacache.diffusers.fingerprint import has_negative, running_origin, weights_of
from tacache.diffusers.flow import run_times
from tacache.diffusers.pipeline import PipelineHost
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.storage.store import agrees
from tests.diffusers_support import EVALUATIONS, MODULAR, STEPS, SUPPORTED, call_of, profile_of
from tests.tiny import PIPELINES

FLUX = PIPELINES["flux"]
QUICK = ("flux", "sd3", "wan", "qwen-image")
UNDRIVEN = (*MODULAR, "ltx2")  # cannot be held in their loops, and so not be fitted
OTHERS = tuple(name for name in (*SUPPORTED, *MODULAR) if name not in QUICK)


def seen_at_the_start(tiny, pipe, **changes):
    """What is known of a call when its scheduler gets its grid: origin, times and breaks."""
    plain, found = pipe.scheduler, []

    @functools.wraps(type(plain).set_timesteps)
    def set_timesteps(self, *args, **kwargs):
        type(plain).set_timesteps(self, *args, **kwargs)
        call = running_call(self)
        origin = running_origin(call.pipeline, plain, call.arguments)
        found.append((origin, run_times(self), run_breaks(call.pipeline, call.arguments)))

    pipe.scheduler = like(plain, subclass("Seeing", type(plain), {"set_timesteps": set_timesteps}))
    try:
        pipe(**call_of(tiny, **changes))
    finally:
        pipe.scheduler = plain
    return found[-1]


def check_agreement(tiny):
    pipe = tiny.build()
    plan = make_plan(profile_of(tiny, pipe), evaluations=EVALUATIONS)
    origin, times, breaks = seen_at_the_start(tiny, pipe)
    assert plan.host.weights is not None
    assert agrees(plan, origin, times, breaks)
    if tiny.name in UNDRIVEN:
        return
    call = {"num_inference_steps": STEPS, **tiny.call()}
    prompt = call.pop("prompt")
    with PipelineHost(pipe).open(Sample(prompt, 0), call) as run:
        held = Plan.full(run.times).model_copy(update={"breaks": run.breaks, "host": run.origin()})
    assert agrees(held, origin, times, breaks)


@pytest.mark.parametrize("name", QUICK)
def test_a_call_agrees_with_the_plan_that_was_made_by_such_a_call(name):
    check_agreement(PIPELINES[name])


@pytest.mark.parametrize("name", OTHERS)
def test_so_it_is_with_all_pipelines(name):
    check_agreement(PIPELINES[name])


def test_another_size_guidance_or_scale_of_adapters_does_not_agree():
    pipe = FLUX.build()
    plan = make_plan(profile_of(FLUX, pipe), evaluations=EVALUATIONS)
    changes = (
        {"height": 64},
        {"guidance_scale": 2.5},
        {"joint_attention_kwargs": {"scale": 0.5}},
        {"true_cfg_scale": 4.0, "negative_prompt": "blurry"},
        {"negative_prompt": "blurry"},
    )
    for change in changes:
        assert not agrees(plan, *seen_at_the_start(FLUX, pipe, **change))


def test_weights_are_those_of_all_networks_of_the_loop():
    pipe = FLUX.build()
    plain = weights_of(pipe)
    assert weights_of(FLUX.build()) == plain
    pipe.vae.decoder.conv_in.weight.data += 1
    assert weights_of(pipe) == plain
    pipe.transformer.proj_out.weight.data += 1
    assert weights_of(pipe) != plain


def test_two_experts_count_both():
    pipe = PIPELINES["wan"].build()
    plain = weights_of(pipe)
    pipe.transformer_2 = copy.deepcopy(pipe.transformer)
    assert weights_of(pipe) != plain


def test_offloaded_weights_are_read_where_they_are_there():
    pytest.importorskip("accelerate")
    pipe = FLUX.build()
    plain = weights_of(pipe)
    pipe.transformer.to("meta")
    assert weights_of(pipe) is None
    compiled = FLUX.build()
    compiled.transformer = torch.compile(compiled.transformer, backend="eager")
    assert weights_of(compiled) == plain


def test_a_guider_counts():
    pipe = PIPELINES["modular-qwen-image"].build()
    plain, guider = weights_of(pipe), copy.deepcopy(pipe.guider)
    assert weights_of(pipe) == plain
    guider.register_to_config(guidance_scale=guider.config.guidance_scale + 1)
    pipe.guider = guider
    assert weights_of(pipe) != plain


def test_a_negative_prompt_is_one_of_text_or_numbers():
    assert has_negative({"negative_prompt": ""})
    assert has_negative({"negative_prompt_embeds": torch.zeros(1)})
    assert not has_negative({"negative_prompt": None, "prompt": "a fox"})
