"""What a pipeline is, as profiles and plans write it down and as a running call shows it."""

import copy

import pytest
import torch
from tests.diffusers_support import EVALUATIONS, MODULAR, STEPS, SUPPORTED, call_of, profile_of
from tests.tiny import PIPELINES

from tacache import make_plan
from tacache.diffusers.calls import run_breaks, running_call
from tacache.diffusers.fingerprint import has_negative, running_origin, weights_of
from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.stepping import run_times
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.storage.signature import RunSignature

FLUX = PIPELINES["flux"]
QUICK = ("flux", "sd3", "wan", "qwen-image")
OTHERS = tuple(name for name in (*SUPPORTED, *MODULAR) if name not in QUICK)


class SeeingHooks(SchedulerHooks):
    """Note what a run is when it is prepared."""

    def _prepare(self, prepare):
        prepare()
        call = running_call(self)
        origin = running_origin(call.pipeline, self.plain, call.arguments)
        self.seen = origin, run_times(self), run_breaks(call.pipeline, call.arguments)


def seen_at_the_start(tiny, pipe, **changes):
    plain = pipe.scheduler
    pipe.scheduler = seeing = hooked_like(plain, SeeingHooks)
    seeing.plain = plain
    try:
        pipe(**call_of(tiny, **changes))
    finally:
        pipe.scheduler = plain
    return seeing.seen


def check_agreement(tiny):
    pipe = tiny.build()
    plan = make_plan(profile_of(tiny, pipe), evaluations=EVALUATIONS)
    origin, times, breaks = seen_at_the_start(tiny, pipe)
    assert plan.origin.weights is not None
    assert RunSignature(origin, times, breaks).agrees(plan)
    call = {"num_inference_steps": STEPS, **tiny.call()}
    prompt = call.pop("prompt")
    with PipelineHost(pipe).open(Sample(prompt, 0), call) as run:
        held = Plan.full(run.times).model_copy(
            update={"breaks": run.breaks, "origin": run.origin()}
        )
    assert RunSignature(origin, times, breaks).agrees(held)


@pytest.mark.parametrize("name", QUICK)
def test_a_call_agrees_with_the_plan_that_was_made_by_such_a_call(name):
    check_agreement(PIPELINES[name])


@pytest.mark.slow
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
        assert not RunSignature(*seen_at_the_start(FLUX, pipe, **change)).agrees(plan)


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


@pytest.mark.slow
def test_weights_are_the_same_compiled_and_none_where_they_are_offloaded_layer_by_layer():
    accelerate = pytest.importorskip("accelerate")
    pipe = FLUX.build()
    plain = weights_of(pipe)
    network = pipe.transformer
    pipe.transformer = torch.compile(network, backend="eager")
    assert weights_of(pipe) == plain
    pipe.transformer = network
    accelerate.cpu_offload(network, execution_device=torch.device("cpu"))
    assert weights_of(pipe) is None


@pytest.mark.slow
def test_adapters_of_a_pipeline_count_while_they_are_active():
    peft = pytest.importorskip("peft")
    pipe = FLUX.build()
    plain = weights_of(pipe)
    config = peft.LoraConfig(r=2, target_modules=["to_q", "to_k"], init_lora_weights=False)
    pipe.transformer.add_adapter(config, "style")
    with_style = weights_of(pipe)
    pipe.transformer.set_adapters(["style"], [0.5])
    assert len({plain, with_style, weights_of(pipe)}) == 3
    pipe.transformer.set_adapters(["style"], [1.0])
    assert weights_of(pipe) == with_style
    pipe.transformer.disable_adapters()
    assert weights_of(pipe) == plain
    pipe.transformer.enable_adapters()
    pipe.fuse_lora(components=["transformer"])
    pipe.transformer.delete_adapters("style")
    assert weights_of(pipe) != plain


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
