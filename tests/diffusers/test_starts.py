"""Runs that start in the middle, and what pipelines count or switch along the way."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from diffusers.guiders import AdaptiveProjectedMixGuidance
from tests.diffusers_support import (
    EVALUATIONS,
    STEPS,
    counted,
    fed,
    plan_of,
    profile_of,
    recorded,
    run,
)
from tests.support import tasu
from tests.tiny import FURTHER, PIPELINES, Tiny, configurations
from tests.tiny.pictures import mask, picture
from torch import nn

from tacache import HostError, Plan, make_plan
from tacache.diffusers import accelerate, applied, apply, calibrate, drive
from tacache.diffusers.calls import RunningCall, run_breaks
from tacache.diffusers.checks import check_call
from tacache.grid import break_steps
from tacache.moving import from_step

LONG = 20


def variant(pipeline: str, base: str, size: int, *, masked: bool = False) -> Tiny:
    """Another pipeline of a family, from the components of the one that has a tiny twin."""
    kind = getattr(diffusers, pipeline)

    def build() -> Any:
        twin = PIPELINES[base].build()
        wanted = set().union(*kind._get_signature_keys(kind))
        pipe = kind(**{k: v for k, v in twin.components.items() if k in wanted})
        pipe.set_progress_bar_config(disable=True)
        for name in ("prompt_template_encode", "prompt_template_encode_start_idx"):
            if hasattr(twin, name):
                setattr(pipe, name, getattr(twin, name))
        return pipe

    def call() -> dict[str, Any]:
        pictures = {"image": picture(size)} | ({"mask_image": mask(size)} if masked else {})
        return PIPELINES[base].call() | pictures | {"strength": 1.0}

    return Tiny(pipeline, build, call, calls_per_step=PIPELINES[base].calls_per_step)


STARTED = {
    name: PIPELINES[name]
    for name in ("flux-img2img", "flux-inpaint", "flux-fill", "sd3-img2img", "wan-v2v")
} | {
    tiny.name: tiny
    for tiny in (
        variant("FluxControlNetInpaintPipeline", "flux-controlnet", 32, masked=True),
        variant("QwenImageImg2ImgPipeline", "qwen-image", 16),
        variant("QwenImageInpaintPipeline", "qwen-image", 16, masked=True),
        variant("ZImageImg2ImgPipeline", "z-image", 16),
        variant("ChromaImg2ImgPipeline", "chroma", PIPELINES["chroma"].call()["height"]),
    )
}


def check_start(tiny: Tiny, pipe: Any, plan: Plan, strength: float, steps: int = LONG) -> None:
    """A run from `strength` under the plan, fed, is the untouched run from there."""
    started = {"strength": strength, "num_inference_steps": steps}
    untouched = run(tiny, pipe, **started)
    with recorded(pipe) as velocities:
        run(tiny, pipe, **started)
    (full_run,) = velocities.values()
    with (
        applied(pipe, plan, strength=strength),
        counted(pipe, tiny.denoisers) as calls,
        fed(velocities) as skipped,
    ):
        found = run(tiny, pipe, strength=1.0, num_inference_steps=steps)
        planned = pipe.scheduler.run_plan
    assert planned.steps == len(full_run)
    assert len(calls) == planned.evaluations * tiny.calls_per_step
    assert len(skipped) == planned.steps - planned.evaluations > 0
    assert torch.equal(found, untouched)


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_a_start_is_exact(name):
    """0.37 of 20 steps is no whole number of them; families round it in two ways."""
    tiny = STARTED[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe, num_inference_steps=LONG)
    for strength in (0.6, 0.37):
        check_start(tiny, pipe, plan, strength)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux-img2img", "sd3-img2img", "wan-v2v"])
def test_any_start_is_exact(name):
    tiny = STARTED[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe, num_inference_steps=LONG)
    for strength in (0.3, 0.5, 0.71, 0.93, 0.999):
        check_start(tiny, pipe, plan, strength)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux-img2img", "wan-v2v"])
def test_a_plan_calibrated_from_the_start_is_used_as_it_is(name, caplog):
    tiny = STARTED[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe, strength=0.6, num_inference_steps=LONG)
    assert plan.steps == LONG * 0.6
    check_start(tiny, pipe, plan, 0.6)
    assert not caplog.records
    with applied(pipe, plan, strength=0.6):
        run(tiny, pipe, num_inference_steps=LONG)
        assert pipe.scheduler.run_plan == plan


def test_a_full_plan_from_a_start_is_the_untouched_run():
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    plan = Plan.full(profile_of(tiny, pipe).times)
    untouched = run(tiny, pipe, strength=0.6)
    with applied(pipe, plan, strength=0.6):
        assert torch.equal(run(tiny, pipe, strength=1.0), untouched)


@pytest.mark.parametrize("rule", ["reuse", "damped"])
def test_a_plan_that_cannot_be_planned_again_starts_on_its_own_grid(rule, caplog):
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    made = plan_of(tiny, pipe, num_inference_steps=LONG)
    kept = {"magnitude": made.magnitude, "direction": made.direction} if rule == "damped" else {}
    plan = Plan(
        rule=rule, times=made.times, anchors=(0, 1, 5, 9, 12, 16), origin=made.origin, **kept
    )
    with applied(pipe, plan, strength=0.6):
        run(tiny, pipe, strength=1.0, num_inference_steps=LONG)
        assert pipe.scheduler.run_plan == from_step(plan, round(LONG * 0.4))
    assert not caplog.records


def test_a_start_of_one_step():
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    untouched = run(tiny, pipe, strength=0.05)
    with applied(pipe, plan, strength=0.05), counted(pipe, tiny.denoisers) as calls:
        found = run(tiny, pipe, strength=1.0)
    assert len(calls) == 1
    assert torch.equal(found, untouched)


def test_a_start_is_saved_with_the_plan(tmp_path):
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    apply(pipe, plan_of(tiny, pipe), strength=0.6)
    expected = run(tiny, pipe)
    pipe.save_pretrained(tmp_path)
    loaded = diffusers.DiffusionPipeline.from_pretrained(tmp_path)
    assert loaded.scheduler.strength == 0.6
    torch.testing.assert_close(run(tiny, loaded), expected)


# --- conflicting starts -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize("applied_strength", [None, 0.6, 0.8])
def test_a_call_with_its_own_strength_is_stopped(name, applied_strength):
    tiny = STARTED[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    with (
        applied(pipe, plan, strength=applied_strength),
        counted(pipe, tiny.denoisers) as calls,
    ):
        with pytest.raises(HostError, match=r"strength=0\.6.*strength=1\.0"):
            run(tiny, pipe, strength=0.6)
        assert not calls
        run(tiny, pipe, strength=1.0)
        assert len(calls) == pipe.scheduler.run_plan.evaluations * tiny.calls_per_step


@pytest.mark.parametrize("name", ["flux-img2img", "sd3-img2img", "wan-v2v"])
def test_the_pipelines_default_strength_is_stopped_too(name):
    tiny = STARTED[name]
    pipe = tiny.build()
    call = tiny.call()
    del call["strength"]
    with applied(pipe, plan_of(tiny, pipe)), pytest.raises(HostError, match="strength"):
        pipe(**call, num_inference_steps=STEPS, output_type="latent")


@pytest.mark.parametrize("strength", [0.6, 0.97])
def test_a_full_plan_with_a_start_is_stopped_by_another(strength):
    """At 0.97 the pipeline's own count of the few steps it sees rounds to all of them."""
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    plan = Plan.full(profile_of(tiny, pipe).times)
    with applied(pipe, plan, strength=0.5), counted(pipe, tiny.denoisers) as calls:
        with pytest.raises(HostError, match="strength"):
            run(tiny, pipe, strength=strength)
        assert not calls


def test_a_full_plan_without_a_start_never_runs_from_the_wrong_level():
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    untouched = run(tiny, pipe, strength=0.6)
    with (
        applied(pipe, Plan.full(profile_of(tiny, pipe).times)),
        counted(pipe, tiny.denoisers) as calls,
    ):
        try:
            assert torch.equal(run(tiny, pipe, strength=0.6), untouched)
        except HostError:
            assert not calls


@pytest.mark.parametrize("name", ["flux", "wan", "flux-kontext"])
def test_a_pipeline_that_starts_from_noise_has_no_strength(name):
    """It would hand pure noise to a run that starts below it."""
    tiny = PIPELINES[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    with pytest.raises(HostError, match="strength"), applied(pipe, plan, strength=0.6):
        run(tiny, pipe)


@pytest.mark.slow
def test_inpainting_that_takes_strength_one_for_pure_noise():
    """SD3's asks for the strength again when it mixes picture and noise: exact, or stopped."""

    def build() -> Any:
        parts = configurations.sd3_parts(channels=16)
        return configurations.build("StableDiffusion3InpaintPipeline", parts)

    def call() -> dict[str, Any]:
        return PIPELINES["sd3-img2img"].call() | {"mask_image": mask(16)}

    tiny = Tiny("sd3-inpaint", build, call)
    pipe = tiny.build()
    plan = plan_of(tiny, pipe, num_inference_steps=LONG)
    try:
        check_start(tiny, pipe, plan, 0.6)
    except HostError as error:
        assert "strength" in str(error)  # noqa: PT017 - either is right


# --- LTX Condition has two strengths ----------------------------------------------------------

LTX = PIPELINES["ltx-condition"]


def test_the_strength_of_a_condition_is_no_start():
    """LTX Condition's `strength` says how firmly frames are held, not where the run begins."""
    pipe = LTX.build()
    plan = plan_of(LTX, pipe, strength=0.8)
    untouched = run(LTX, pipe, strength=0.8)
    with recorded(pipe) as velocities:
        run(LTX, pipe, strength=0.8)
    with applied(pipe, plan), fed(velocities):
        assert torch.equal(run(LTX, pipe, strength=0.8), untouched)


def test_a_start_by_another_name_is_stopped_before_the_model_runs():
    pipe = LTX.build()
    with applied(pipe, plan_of(LTX, pipe)), counted(pipe, LTX.denoisers) as calls:
        with pytest.raises(HostError, match="strength"):
            run(LTX, pipe, denoise_strength=0.6)
        assert not calls


def test_a_start_where_none_is_counted_is_an_error_of_ours():
    pipe = LTX.build()
    plan = plan_of(LTX, pipe)
    with pytest.raises(HostError, match="strength"), applied(pipe, plan, strength=0.6):
        run(LTX, pipe)


def test_noise_drawn_in_every_loop_is_announced(caplog):
    pipe = LTX.build()
    with applied(pipe, plan_of(LTX, pipe)), counted(pipe, LTX.denoisers) as calls:
        assert "draws noise" not in caplog.text
        run(LTX, pipe, image_cond_noise_scale=0.15)
    assert len(calls) == EVALUATIONS
    assert "draws noise in every loop iteration" in caplog.text


# --- counted in loop iterations ---------------------------------------------------------------

COUNTED = [
    ("flux-controlnet", {"control_guidance_end": 0.8}),
    ("flux-controlnet", {"control_guidance_start": 0.2}),
    ("flux-controlnet", {"control_guidance_end": [0.8]}),
    ("lumina2", {"cfg_trunc_ratio": 0.5}),
    ("sd3", {"skip_guidance_layers": [0]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), COUNTED, ids=lambda value: str(value))
def test_what_is_counted_in_loops_is_refused(name, option):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        with pytest.raises(HostError, match=f"counts {next(iter(option))}=.* loop iterations"):
            run(tiny, pipe, **option)
        assert not calls


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), COUNTED, ids=lambda value: str(value))
def test_a_full_plan_may_be_counted_in(name, option):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    plan = Plan.full(profile_of(tiny, pipe).times)
    untouched = run(tiny, pipe, **option)
    assert not torch.equal(untouched, run(tiny, pipe))
    with applied(pipe, plan):
        assert torch.equal(run(tiny, pipe, **option), untouched)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("flux-controlnet", {"control_guidance_start": [0.0], "control_guidance_end": [1.0]}),
        ("lumina2", {"cfg_trunc_ratio": 1.0}),
        ("sd3", {"skip_guidance_layers": None}),
    ],
)
def test_neutral_values_are_fine(name, option):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    with applied(pipe, plan_of(tiny, pipe)), counted(pipe, tiny.denoisers) as calls:
        run(tiny, pipe, **option)
    assert len(calls) == EVALUATIONS * tiny.calls_per_step


# Arguments of pipelines that are not built here: Ideogram 4, ChronoEdit.
@pytest.mark.parametrize(
    "call",
    [
        {"guidance_schedule": (7.0,) * 45 + (3.0,) * 3},
        {"guidance_schedule": torch.tensor([7.0, 3.0])},
        {"enable_temporal_reasoning": True},
    ],
)
def test_other_counts_are_refused(call):
    plan = tasu()
    with pytest.raises(HostError, match=r"counts .* in loop iterations"):
        check_call(RunningCall(None, call), plan)
    check_call(RunningCall(None, call), Plan.full(plan.times))
    constant = {"guidance_schedule": [7.0, 7.0], "enable_temporal_reasoning": False}
    check_call(RunningCall(None, constant), plan)


@pytest.fixture(scope="module")
def hunyuan() -> Any:
    """HunyuanImage, whose guider is told the loop's count."""
    pipe = FURTHER["HunyuanImagePipeline"].build()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def hunyuan_call() -> dict[str, Any]:
    return FURTHER["HunyuanImagePipeline"].call() | {"num_inference_steps": STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"start": 0.2}, {"stop": 0.9}], ids=str)
def test_a_guider_that_counts_is_refused(hunyuan, options):
    hunyuan.guider = AdaptiveProjectedMixGuidance(**options)
    times = calibrate(hunyuan, None, **hunyuan_call()).times
    with (
        applied(hunyuan, Plan(rule="reuse", times=times, anchors=(0, 1, 6))),
        counted(hunyuan, ("transformer",)) as calls,
    ):
        with pytest.raises(HostError, match=r"by a count of loop iterations .* start=0, stop=1"):
            hunyuan(**hunyuan_call(), output_type="latent")
        assert not calls


@pytest.mark.slow
def test_a_guider_that_is_always_the_same_is_followed(hunyuan):
    hunyuan.guider = AdaptiveProjectedMixGuidance(
        adaptive_projected_guidance_start_step=-1, adaptive_projected_guidance_momentum=None
    )
    plan = make_plan(calibrate(hunyuan, None, **hunyuan_call()), evaluations=EVALUATIONS)
    with applied(hunyuan, plan), counted(hunyuan, ("transformer",)) as calls:
        assert hunyuan(**hunyuan_call(), output_type="latent").images.isfinite().all()
    assert len(calls) == 2 * EVALUATIONS
    with drive(hunyuan, **hunyuan_call()) as run:
        x = run.noise
        first = run.evaluate(x, 10)
        run.evaluate(x, 3)
        assert torch.equal(run.evaluate(x, 10), first)


def test_a_momentum_cannot_be_driven(hunyuan):
    hunyuan.guider = AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=-1)
    with pytest.raises(HostError, match="has a momentum"), drive(hunyuan, **hunyuan_call()):
        pass


@pytest.mark.slow
def test_a_momentum_under_a_plan_is_warned_of(hunyuan, caplog):
    def run() -> list[str]:
        caplog.clear()
        hunyuan(**hunyuan_call(), output_type="latent")
        return [record.getMessage() for record in caplog.records if record.name[:7] == "tacache"]

    hunyuan.guider = AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=-1)
    plan = make_plan(calibrate(hunyuan, None, **hunyuan_call()), evaluations=EVALUATIONS)
    assert not run()  # full steps
    with applied(hunyuan, plan):
        (message,) = run()
        assert "HunyuanImagePipeline has a momentum" in message
        hunyuan.guider = AdaptiveProjectedMixGuidance(
            adaptive_projected_guidance_start_step=-1, adaptive_projected_guidance_momentum=None
        )
        assert not run()


def test_guidance_in_an_interval_of_noise_levels_has_breaks():
    """ACE-Step's: on from t <= 0.75, off below t = 0.25."""
    breaks = run_breaks(None, {"cfg_interval_start": 0.25, "cfg_interval_end": 0.75})
    assert break_steps((1.0, 0.9, 0.75, 0.5, 0.25, 0.2, 0.0), breaks) == (2, 5)
    assert run_breaks(None, {"cfg_interval_start": 0.0, "cfg_interval_end": 1.0}) == ()


def test_fibo_2_reads_pictures_of_its_text_from_a_noise_level_on():
    """Two encodings follow each other in one run; without such pictures there is one."""
    tiny = FURTHER["BriaFibo2Pipeline"]
    pipe, embeds = tiny.build(), tiny.call()["prompt_embeds"]
    pipe.encode_prompt = lambda *_, text_images=None, **__: (embeds, None)
    accelerate(pipe, evaluations=EVALUATIONS)
    call = {"prompt": "a sign", "height": 64, "width": 64, "guidance_scale": 1.0}
    options = {"num_inference_steps": STEPS, "output_type": "latent"}
    pipe(**call, **options)
    assert pipe.scheduler.run_plan.breaks == ()
    caption = '{"text_render": [{"text": "OPEN"}]}'
    pipe(**call | {"prompt": caption}, **options, text_images=[picture(32)])
    plan = pipe.scheduler.run_plan
    (start,) = break_steps(plan.times, plan.breaks)
    assert plan.times[start - 1] > 0.9 >= plan.times[start]
    assert start in plan.anchors


# --- switches along the way -------------------------------------------------------------------

Z_IMAGE, EXPERTS = PIPELINES["z-image"], PIPELINES["wan-2.2"]


def guided_calls(pipe: Any, **changes: Any) -> list[bool]:
    """For each call of Z-Image's transformer, whether it was guided: then its input is doubled."""
    seen = []
    handle = pipe.transformer.register_forward_pre_hook(
        lambda module, args: seen.append(len(args[0]) == 2)
    )
    try:
        run(Z_IMAGE, pipe, **changes)
    finally:
        handle.remove()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("truncation", [0.2, 0.5, 0.7])
def test_an_anchor_where_guidance_ends(truncation):
    pipe = Z_IMAGE.build()
    switch = guided_calls(pipe, cfg_truncation=truncation).index(False)
    profile = profile_of(Z_IMAGE, pipe, cfg_truncation=truncation)
    plan = make_plan(profile, evaluations=EVALUATIONS)
    assert plan.break_steps == (switch,)
    assert switch in plan.anchors
    untouched = run(Z_IMAGE, pipe, cfg_truncation=truncation)
    with recorded(pipe) as velocities:
        run(Z_IMAGE, pipe, cfg_truncation=truncation)
    with applied(pipe, plan):
        seen = guided_calls(pipe, cfg_truncation=truncation)
        with fed(velocities):
            assert torch.equal(run(Z_IMAGE, pipe, cfg_truncation=truncation), untouched)
    assert seen == [n < switch for n in plan.anchors]
    assert len(seen) == EVALUATIONS


def test_a_plan_made_without_the_switch_gets_an_anchor_there(caplog):
    pipe = Z_IMAGE.build()
    switch = guided_calls(pipe, cfg_truncation=0.7).index(False)
    plan = plan_of(Z_IMAGE, pipe, evaluations=4)
    assert switch not in plan.anchors
    with applied(pipe, plan):
        seen = guided_calls(pipe, cfg_truncation=0.7)
        planned = pipe.scheduler.run_plan
        assert planned.break_steps == (switch,)
        assert {switch, *plan.anchors} <= set(planned.anchors)
        assert len(seen) == planned.evaluations > plan.evaluations
        run(Z_IMAGE, pipe)  # without the switch it is the plan's own again
        assert pipe.scheduler.run_plan == plan


@pytest.mark.slow
def test_a_changed_number_of_evaluations_is_logged(caplog):
    pipe = Z_IMAGE.build()
    with applied(pipe, plan_of(Z_IMAGE, pipe, evaluations=4)):
        run(Z_IMAGE, pipe, cfg_truncation=0.7)
        planned = pipe.scheduler.run_plan
    assert planned.evaluations > 4
    assert f"{planned.evaluations} evaluations" in caplog.text


def expert_calls(pipe: Any) -> list[tuple[nn.Module, float]]:
    """Which expert ran at which time, once for each of its two passes."""
    seen = []
    handles = [
        getattr(pipe, name).register_forward_pre_hook(
            lambda module, args, kwargs: seen.append((module, float(kwargs["timestep"][0]))),
            with_kwargs=True,
        )
        for name in EXPERTS.denoisers
    ]
    try:
        run(EXPERTS, pipe)
    finally:
        for handle in handles:
            handle.remove()
    return seen[::2]


# The pipeline compares whole timesteps with the boundary, so half a timestep counts differently
# in noise levels: 12 steps of shift 3 have a level of 0.93749 and the timestep 937.
@pytest.mark.slow
@pytest.mark.parametrize("boundary", [0.875, 0.9, 0.9373])
def test_the_second_expert_starts_with_an_anchor_and_no_history(boundary):
    pipe = EXPERTS.build()
    pipe.register_to_config(boundary_ratio=boundary)
    full = expert_calls(pipe)
    switch = [expert for expert, _ in full].index(pipe.transformer_2)
    fresh = EXPERTS.build()  # one whose scheduler has not prepared a run yet
    fresh.register_to_config(boundary_ratio=boundary)
    plan = plan_of(EXPERTS, fresh)
    assert plan.break_steps == (switch,)
    known = []
    with applied(pipe, plan):
        handle = pipe.transformer_2.register_forward_hook(
            lambda *_: known.append(len(pipe.scheduler._run.stepper._history))
        )
        seen = expert_calls(pipe)
        handle.remove()
        assert pipe.scheduler.run_plan == plan
    assert len(seen) == EVALUATIONS
    assert seen == [full[n] for n in plan.anchors]
    assert next(time for one, time in seen if one is pipe.transformer_2) == full[switch][1]
    # Histories before each pass of the second expert: the first expert's, then its own.
    assert known[2] == 1


def test_a_plan_of_one_expert_learns_where_the_second_starts():
    pipe = EXPERTS.build()
    switch = [expert for expert, _ in expert_calls(pipe)].index(pipe.transformer_2)
    profile = profile_of(EXPERTS, pipe).model_copy(update={"breaks": ()})
    plan = make_plan(profile, evaluations=3)
    assert switch not in plan.anchors
    with applied(pipe, plan):
        seen = expert_calls(pipe)
        planned = pipe.scheduler.run_plan
    assert planned.break_steps == (switch,)
    assert {switch, switch + 1, *plan.anchors} == set(planned.anchors)
    assert len(seen) == planned.evaluations
