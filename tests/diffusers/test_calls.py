"""Reading the running call: loops of people's own, helpers, modular pipelines, numbers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageControlNetModel, StableDiffusion3Pipeline
from tests.diffusers_support import EVALUATIONS, STEPS, counted, fed, plan_of, recorded, run
from tests.tiny import PIPELINES, Tiny, modular
from tests.tiny.pictures import picture

from tacache import HostError, Plan
from tacache.diffusers import applied, apply, calibrate, fit_plan, remove
from tacache.diffusers.calls import argument_names, as_number, running_call
from tacache.diffusers.hooks import SchedulerHooks, hooked_like
from tacache.diffusers.stepping import run_times

SD3, EXPERTS = PIPELINES["sd3"], PIPELINES["wan-2.2"]
ANCHORS = (0, 1, 5, 9)


def plan_for(pipe: Any, anchors: tuple[int, ...] = ANCHORS) -> Plan:
    """A plan on the grid that loops of one's own have here."""
    pipe.scheduler.set_timesteps(STEPS)
    return Plan(rule="reuse", times=run_times(pipe.scheduler), anchors=anchors)


def loop(scheduler: Any, begin: int = 0) -> torch.Tensor:
    """The heart of a loop of one's own: a velocity that the state gives."""
    x = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    for t in scheduler.timesteps[begin:]:
        x = scheduler.step(torch.sin(3 * x), t, x, return_dict=False)[0]
    return x


def in_a_function(pipe: Any, **arguments: Any) -> torch.Tensor:
    pipe.scheduler.set_timesteps(STEPS)
    return loop(pipe.scheduler)


class Own(StableDiffusion3Pipeline):
    """Loops in a method, and in a helper that `__call__` hands everything to."""

    def denoise(self, strength: float = 1.0, control_guidance_end: float = 1.0) -> torch.Tensor:
        """A loop of its own."""
        self.scheduler.set_timesteps(STEPS)
        return loop(self.scheduler)

    def __call__(self, **options: Any) -> torch.Tensor:
        """No argument by its name."""
        return self.denoise(**options)


@pytest.fixture
def own() -> Any:
    return Own(**SD3.build().components)


WAYS = {
    "function": in_a_function,
    "method": Own.denoise,
    "call": Own.__call__,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", [{"strength": 0.9}, {"control_guidance_end": 0.5}], ids=str)
def test_arguments_of_a_loop_of_ones_own_are_checked(own, way, option):
    with applied(own, plan_for(own)) as pipe:
        with pytest.raises(HostError, match=next(iter(option))):
            WAYS[way](pipe, **option)
        WAYS[way](pipe, **dict.fromkeys(option, 1.0))


@pytest.mark.parametrize("way", ["function", "method"])
def test_a_call_that_cannot_be_read_is_warned_of_once(own, caplog, way):
    with applied(own, plan_for(own)) as pipe:
        WAYS[way](pipe)
        WAYS[way](pipe)
    (record,) = caplog.records
    assert "cannot be read" in record.getMessage()
    assert "apply(pipe, plan, strength=1.0, breaks=())" in record.getMessage()


def test_a_call_that_hands_on_its_keywords_is_read(own, caplog):
    with applied(own, plan_for(own)) as pipe:
        pipe()
    assert not caplog.records


def test_what_was_said_need_not_be_read(own, caplog):
    with applied(own, plan_for(own), strength=1.0, breaks=()) as pipe:
        in_a_function(pipe)
    assert not caplog.records


def test_a_plan_that_skips_nothing_needs_no_reading(own, caplog):
    untouched = in_a_function(own)
    with applied(own, plan_for(own, tuple(range(STEPS)))) as pipe:
        assert torch.equal(in_a_function(pipe, strength=0.9), untouched)
    assert not caplog.records


@pytest.mark.parametrize("says", [True, False])
def test_a_plan_that_skips_nothing_follows_a_loop_that_starts_late(own, says):
    def late() -> torch.Tensor:
        own.scheduler.set_timesteps(STEPS)
        if says:
            own.scheduler.set_begin_index(4)
        return loop(own.scheduler, begin=4)

    untouched = late()
    with applied(own, plan_for(own, tuple(range(STEPS)))):
        assert torch.equal(late(), untouched)
        assert own.scheduler.run_plan.steps == STEPS - 4
        assert torch.equal(late(), untouched)


def test_breaks_that_were_said_are_anchors(own):
    plan = plan_for(own)
    level = plan.times[7] + 1e-6
    with applied(own, plan, strength=1.0, breaks=[level]) as pipe:
        in_a_function(pipe)
        assert pipe.scheduler.run_plan.break_steps == (7,)
        assert {7, *ANCHORS} <= set(pipe.scheduler.run_plan.anchors)


@pytest.mark.parametrize("breaks", [[1.5], [0.0], [-0.2]])
def test_breaks_are_noise_levels(own, breaks):
    with pytest.raises(HostError, match="between 0 and 1"):
        apply(own, plan_for(own), breaks=breaks)


def test_what_apply_was_told_is_saved_and_copied(own, tmp_path):
    apply(own, plan_for(own), strength=0.75, breaks=[0.5])
    own.scheduler.set_timesteps(STEPS)
    own.scheduler.save_pretrained(tmp_path)
    loaded = type(own.scheduler).from_pretrained(tmp_path)
    for other in (loaded, copy.deepcopy(own.scheduler), pickle.loads(pickle.dumps(own.scheduler))):
        assert other.options == (0.75, (0.5,))


@pytest.mark.parametrize("positional", [False, True])
def test_what_the_user_passed_is_read_beside_what_the_pipeline_made_of_it(positional):
    tiny = PIPELINES["cogview4"]
    pipe, calls = tiny.build(), []

    class Looking(SchedulerHooks):
        def _prepare(self, prepare):
            prepare()
            calls.append(running_call(self))

    pipe.scheduler = hooked_like(pipe.scheduler, Looking)
    given = {name: value for name, value in tiny.call().items() if name != "prompt"}
    named = {} if positional else {"prompt": "a fox"}
    pipe(*(("a fox",) if positional else ()), **named, **given, num_inference_steps=2)
    (call,) = calls
    assert call.passed == {"prompt": "a fox", "num_inference_steps": 2, **given}
    assert "original_size" not in call.passed
    assert torch.is_tensor(call.arguments["original_size"])  # which it fills in itself


def test_a_second_expert_that_nobody_told_of_stops_a_loop_of_ones_own():
    pipe = EXPERTS.build()
    plan = plan_for(pipe)
    with applied(pipe, plan):
        in_a_function(pipe)  # its boundary_ratio is known
        assert pipe.scheduler.run_plan.breaks == (0.875,)
    pipe.register_to_config(boundary_ratio=None)
    with applied(pipe, plan), pytest.raises(HostError, match=r"second expert \(transformer_2\)"):
        in_a_function(pipe)
    with applied(pipe, plan, breaks=[0.875]):
        in_a_function(pipe)
        assert pipe.scheduler.run_plan.breaks == (0.875,)


def test_a_loop_without_a_pipeline_in_sight_still_knows_its_experts():
    """`apply` was given the pipeline."""
    pipe = EXPERTS.build()
    pipe.register_to_config(boundary_ratio=None)
    with applied(pipe, plan_for(pipe)), pytest.raises(HostError, match="second expert"):
        pipe.scheduler.set_timesteps(STEPS)


def test_a_picture_mixed_with_noise_in_a_call_that_cannot_be_read_is_stopped(own):
    def from_a_picture() -> torch.Tensor:
        scheduler = own.scheduler
        scheduler.set_timesteps(STEPS)
        x = torch.zeros(1, 4, 4, 4)
        scheduler.scale_noise(x, scheduler.timesteps[:1], torch.ones_like(x))
        return loop(scheduler)

    plan = plan_for(own)
    with applied(own, plan):
        with pytest.raises(HostError, match=r"strength=\.\.\."):
            from_a_picture()
        own.scheduler.set_timesteps(STEPS)
    with applied(own, plan, strength=1.0):
        from_a_picture()
    with applied(own, plan, strength=0.5, breaks=()):
        from_a_picture()
        assert own.scheduler.run_plan.steps == STEPS // 2


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor, lambda n: np.array([n])[0]])
def test_a_strength_is_a_number_of_any_library(kind):
    tiny = PIPELINES["sd3-img2img"]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    with (
        applied(pipe, plan),
        counted(pipe, tiny.denoisers) as calls,
        pytest.raises(HostError, match=r"strength=0\.97"),
    ):
        run(tiny, pipe, strength=kind(0.97))
    assert not calls
    apply(pipe, plan, strength=kind(0.5))
    assert type(pipe.scheduler.strength) is float
    assert run(tiny, pipe, strength=1.0).isfinite().all()


@pytest.mark.parametrize("value", ["0.5", None, [0.5, 0.6], torch.ones(2), object()])
def test_what_is_no_number(value):
    assert as_number(value) is None


def test_a_strength_that_is_no_number_is_refused():
    pipe = PIPELINES["sd3-img2img"].build()
    with pytest.raises(HostError, match="strength is a number"):
        apply(pipe, plan_for(pipe), strength="half")


@pytest.mark.parametrize("name", ["flux-img2img", "sd3-img2img", "wan-v2v"])
def test_a_plan_that_skips_nothing_starts_where_the_pipeline_does(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    full = Plan.full(plan_of(tiny, pipe).times)
    untouched = run(tiny, pipe, strength=0.6)
    with applied(pipe, full), counted(pipe, tiny.denoisers) as calls:
        assert torch.equal(run(tiny, pipe, strength=0.6), untouched)
        taken = len(calls)
        assert torch.equal(run(tiny, pipe, strength=np.float32(0.6)), untouched)
    assert 0 < taken < STEPS * tiny.calls_per_step


# --- modular pipelines ------------------------------------------------------------------------


def from_picture(name: str) -> Tiny:
    """A modular pipeline that starts from a picture."""
    text = PIPELINES[name]

    def call() -> dict[str, Any]:
        size = text.call().get("height", 16)
        return text.call() | {"image": picture(size), "strength": 1.0}

    return Tiny(
        name, text.build, call, calls_per_step=text.calls_per_step, latent_output="pt",
        output=modular.latents,
    )  # fmt: skip


PICTURED = ["modular-flux", "modular-qwen-image", "modular-sd3", "modular-z-image"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURED)
def test_a_modular_start_is_stopped_and_exact_where_it_is_set(name):
    tiny = from_picture(name)
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    default = tiny.call()
    del default["strength"]
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        with pytest.raises(HostError, match=r"strength=0\..* apply\(pipe, plan, strength=0"):
            pipe(**default, num_inference_steps=STEPS)
        assert not calls
    untouched = run(tiny, pipe, strength=0.6)
    with recorded(pipe) as velocities:
        run(tiny, pipe, strength=0.6)
    with applied(pipe, plan, strength=0.6), fed(velocities) as skipped:
        assert torch.equal(run(tiny, pipe), untouched)
    assert skipped


@pytest.mark.slow
def test_modular_control_that_ends_is_stopped():
    tiny = PIPELINES["modular-qwen-image"]
    pipe = tiny.build()
    pipe.controlnet = QwenImageControlNetModel(
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=pipe.transformer.config.joint_attention_dim,
        axes_dims_rope=(4, 6, 6),
    ).eval()
    plan, control = plan_of(tiny, pipe), {"control_image": picture(16)}
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        with pytest.raises(HostError, match=r"counts control_guidance_end=0\.5"):
            run(tiny, pipe, **control, control_guidance_end=0.5)
        assert not calls
        run(tiny, pipe, **control)
        assert len(calls) == EVALUATIONS * tiny.calls_per_step


def test_a_modular_pipeline_is_saved_with_its_plan(tmp_path):
    from diffusers import ModularPipeline

    tiny = PIPELINES["modular-sd3"]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    before = pipe.scheduler
    apply(pipe, plan)
    pipe.save_pretrained(str(tmp_path), overwrite_modular_index=True)
    loaded = ModularPipeline.from_pretrained(str(tmp_path))
    loaded.load_components(names="scheduler")
    assert loaded.scheduler.plan == plan
    remove(pipe)
    assert pipe.scheduler is before
    with counted(pipe, tiny.denoisers) as calls:
        run(tiny, pipe)
    assert len(calls) == STEPS * tiny.calls_per_step
    assert EVALUATIONS < STEPS


@pytest.mark.slow
def test_a_plan_fitted_to_a_modular_pipeline_names_arguments_of_its_call_alone():
    tiny = PIPELINES["modular-sd3"]
    pipe, call = tiny.build(), tiny.call()
    prompts = [call.pop("prompt"), "two birds"]
    plan = fit_plan(pipe, prompts, evaluations=3, **call | {"num_inference_steps": 6})
    assert plan.origin.call["num_inference_steps"] == 6
    assert set(plan.origin.call) <= set(argument_names(pipe))


def test_a_modular_profile_knows_its_call():
    tiny = PIPELINES["modular-flux"]
    call = tiny.call() | {"num_inference_steps": 3, "guidance_scale": np.float32(2.5)}
    profile = calibrate(tiny.build(), [call.pop("prompt")], **call)
    assert profile.origin.call["guidance_scale"] == 2.5


def test_blocks_of_ones_own_that_run_two_experts_are_stopped():
    """Diffusers' own have a boundary_ratio; who writes another must say where."""
    from diffusers.modular_pipelines.wan import modular_blocks_wan22

    class Mine(modular_blocks_wan22.Wan22Blocks):
        """The same blocks in a class that is not of diffusers."""

    twin = EXPERTS.build()
    pipe = Mine().init_pipeline()
    pipe.update_components(
        **{name: part for name, part in twin.components.items() if name in pipe._component_specs}
    )
    tiny = PIPELINES["modular-wan-2.2"]
    plan = plan_of(tiny, pipe)
    with applied(pipe, plan):
        run(tiny, pipe)
    pipe.register_to_config(boundary_ratio=None)
    with applied(pipe, plan), pytest.raises(HostError, match="second expert"):
        run(tiny, pipe)


def test_a_state_is_read_where_blocks_do_not_say_which_of_them_run(monkeypatch):
    tiny = PIPELINES["modular-flux"]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    monkeypatch.setattr(type(pipe._blocks), "get_execution_blocks", None)
    with applied(pipe, plan), pytest.raises(HostError, match=r"strength=0\.6"):
        run(tiny, pipe)  # of text, but that is not known
