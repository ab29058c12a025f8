"""A plan in a pipeline: put in, taken out, saved, loaded, and beside everything else people use."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import DiffusionPipeline, FirstBlockCacheConfig
from packaging.version import Version
from tests.diffusers_support import (
    EVALUATIONS,
    STEPS,
    call_of,
    counted,
    fed,
    latents,
    plan_of,
    recorded,
    run,
)
from tests.tiny import PIPELINES

from tacache import HostError, Plan, PlanError, make_plan, time_grid
from tacache.diffusers import applied, apply, calibrate, remove
from tacache.moving import replan

FLUX, WAN, SD3 = PIPELINES["flux"], PIPELINES["wan"], PIPELINES["sd3"]


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {tiny.name: plan_of(tiny, tiny.build()) for tiny in (FLUX, WAN, SD3)}


@pytest.fixture
def flux() -> Any:
    return FLUX.build()


@pytest.fixture
def plan(plans) -> Plan:
    return plans["flux"]


# --- apply, remove, applied -------------------------------------------------------------------


@pytest.mark.slow
def test_apply_changes_the_scheduler_alone(flux, plan):
    before = dict(vars(flux))
    apply(flux, plan)
    after = dict(vars(flux))
    changed = {name for name in after if after[name] is not before.get(name)}
    assert changed <= {"scheduler", "_internal_dict"}  # the latter is the configuration
    assert flux.scheduler.plan == plan
    assert isinstance(flux.scheduler, type(before["scheduler"]))


def test_remove_gives_the_very_object_back(flux, plan):
    before = flux.scheduler
    untouched = run(FLUX, flux)
    apply(flux, plan)
    assert not torch.equal(run(FLUX, flux), untouched)
    remove(flux)
    assert flux.scheduler is before
    assert torch.equal(run(FLUX, flux), untouched)
    assert flux.config["scheduler"] == ("diffusers", "FlowMatchEulerDiscreteScheduler")


def test_what_is_no_plan_is_refused(flux, plan):
    before = flux.scheduler
    with pytest.raises(PlanError, match="a plan is needed, not a dict"):
        apply(flux, {"anchors": [0]})
    with pytest.raises(PlanError, match=r"cannot read my\.plan\.json"):
        apply(flux, "my.plan.json")
    assert flux.scheduler is before
    remove(object())


def test_remove_without_a_plan_does_nothing(flux):
    before = flux.scheduler
    remove(flux)
    assert flux.scheduler is before


def test_applying_twice_replaces_the_plan(flux, plan):
    before = flux.scheduler
    apply(flux, Plan.full(plan.times))
    apply(flux, plan)
    with counted(flux, FLUX.denoisers) as calls:
        run(FLUX, flux)
    assert len(calls) == EVALUATIONS
    remove(flux)
    assert flux.scheduler is before


def test_applied_restores_what_was_there(flux, plan):
    before = flux.scheduler
    with applied(flux, plan) as same:
        assert same is flux
        outer = flux.scheduler
        with applied(flux, Plan.full(plan.times)):
            assert flux.scheduler.plan == Plan.full(plan.times)
        assert flux.scheduler is outer
    assert flux.scheduler is before


def test_applied_restores_after_an_exception(flux, plan):
    before = flux.scheduler
    with pytest.raises(RuntimeError, match="stop"), applied(flux, plan):
        raise RuntimeError("stop")
    assert flux.scheduler is before


def test_the_shift_that_was_set_later_is_kept():
    wan = PIPELINES["wan-euler"].build()
    wan.scheduler.set_shift(7.0)
    untouched = run(WAN, wan)
    with applied(wan, Plan.full(time_grid(STEPS, 7.0))):
        assert wan.scheduler.shift == 7.0
        assert torch.equal(run(WAN, wan), untouched)


def test_the_shift_that_is_set_under_a_plan_is_kept():
    wan, plan = PIPELINES["wan-euler"].build(), Plan.full(time_grid(STEPS, 7.0))
    apply(wan, plan)
    wan.scheduler.set_shift(7.0)
    apply(wan, plan)
    assert wan.scheduler.shift == 7.0
    remove(wan)
    assert wan.scheduler.shift == 7.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan", "z-image", "ltx2"])
def test_inference_mode(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    plan = plan_of(tiny, pipe)
    with applied(pipe, plan):
        usual = run(tiny, pipe)
        with torch.inference_mode():
            assert torch.equal(run(tiny, pipe), usual)
        assert torch.equal(run(tiny, pipe), usual)


def test_what_a_callers_own_call_knows_is_left_alone():
    class Caller:
        scheduler = None

        def __call__(self, steps: int, seed: int) -> dict[str, Any]:
            settings = locals()
            self.scheduler.set_timesteps(steps)
            return settings

    pipe, caller = PIPELINES["wan-euler"].build(), Caller()
    apply(pipe, Plan.full(time_grid(STEPS, 3.0)))
    caller.scheduler = pipe.scheduler
    assert caller(STEPS, seed=3).keys() >= {"self", "steps", "seed"}


@pytest.mark.parametrize("strength", [0.0, -0.5, 1.5])
def test_a_strength_out_of_range_is_an_error(strength):
    pipe = PIPELINES["flux-img2img"].build()
    with pytest.raises(HostError, match="strength"):
        apply(pipe, Plan.full(time_grid(STEPS)), strength=strength)


def test_a_pipeline_without_a_scheduler_is_refused():
    with pytest.raises(HostError, match="has no scheduler"):
        apply(object(), Plan.full(time_grid(STEPS)))


# --- save and load ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [FLUX, WAN], ids=lambda tiny: tiny.name)
def test_a_saved_pipeline_has_its_plan(tiny, plans, tmp_path):
    pipe, plan = tiny.build(), plans[tiny.name]
    untouched = run(tiny, pipe)
    apply(pipe, plan)
    expected = run(tiny, pipe)
    plain = pipe.scheduler._plain
    pipe.save_pretrained(tmp_path)
    loaded = DiffusionPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert loaded.scheduler.plan == plan
    torch.testing.assert_close(run(tiny, loaded), expected)
    remove(loaded)
    assert type(loaded.scheduler) is type(plain)
    assert public(loaded.scheduler) == public(plain)
    torch.testing.assert_close(run(tiny, loaded), untouched)


def public(scheduler: Any) -> dict[str, Any]:
    return {k: v for k, v in scheduler.config.items() if not k.startswith("_")}


def test_a_pipeline_saved_after_remove_needs_no_tacache(flux, plan, tmp_path):
    apply(flux, plan)
    remove(flux)
    flux.save_pretrained(tmp_path)
    for file in (tmp_path / "model_index.json", tmp_path / "scheduler" / "scheduler_config.json"):
        text = file.read_text()
        assert "tacache" not in text
        assert "Plan" not in text


LOAD = """
import sys
{imports}
import torch
from diffusers import DiffusionPipeline
torch.set_num_threads(1)
pipe = DiffusionPipeline.from_pretrained(sys.argv[1])
pipe.set_progress_bar_config(disable=True)
call = torch.load(sys.argv[2])
result = pipe(**call, generator=torch.Generator().manual_seed(0), output_type="latent")
torch.save((result[0], len(pipe.scheduler.timesteps)), sys.argv[3])
"""


def load_elsewhere(folder: Path, call: dict[str, Any], imports: str) -> Any:
    """Load and run a saved pipeline in a new process."""
    answer = folder / "answer.pt"
    torch.save(call, folder / "call.pt")
    script = folder / "load.py"
    script.write_text(LOAD.format(imports=imports))
    done = subprocess.run(
        [sys.executable, script, folder, folder / "call.pt", answer],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return torch.load(answer) if done.returncode == 0 else done.stderr


@pytest.mark.slow
def test_a_saved_pipeline_runs_in_a_new_process(flux, plan, tmp_path):
    """Also with a scheduler whose class the factory makes when it is asked for."""
    wan = WAN.build()
    wan.scheduler = diffusers.DPMSolverSinglestepScheduler.from_config(wan.scheduler.config)
    apply(wan, plan_of(WAN, wan))
    expected = latents(WAN, wan)
    wan.save_pretrained(tmp_path)
    call = WAN.call() | {"num_inference_steps": STEPS}
    found, timesteps = load_elsewhere(tmp_path, call, imports="import tacache.diffusers")
    assert timesteps == EVALUATIONS
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.skipif(
    Version(diffusers.__version__) < Version("0.42"),
    reason="diffusers imports what a folder names before 0.42",
)
def test_without_tacache_imported_the_error_says_what_to_import(flux, plan, tmp_path):
    """Diffusers imports no module only because a folder names it."""
    apply(flux, plan)
    flux.save_pretrained(tmp_path)
    call = FLUX.call() | {"num_inference_steps": STEPS}
    error = load_elsewhere(tmp_path, call, imports="")
    assert "import tacache.diffusers.schedulers before calling `from_pretrained`" in error


def test_the_configuration_can_be_read_without_a_pipeline(flux, plan, tmp_path):
    apply(flux, plan)
    flux.scheduler.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "scheduler_config.json").read_text())
    assert config["_class_name"] == "PlanFlowMatchEulerDiscreteScheduler"
    assert Plan.from_json(json.dumps(config["plan"])) == plan
    untouched = run(FLUX, flux)
    flux.scheduler = type(flux.scheduler).from_pretrained(tmp_path)
    assert torch.equal(run(FLUX, flux), untouched)
    remove(flux)
    assert type(flux.scheduler) is diffusers.FlowMatchEulerDiscreteScheduler


# --- what people do with pipelines ------------------------------------------------------------


@pytest.mark.parametrize("tiny", [FLUX, SD3, WAN], ids=lambda tiny: tiny.name)
def test_each_prompt_of_a_batch_is_as_if_alone(tiny, plans):
    pipe = tiny.build()
    prompts = ["a red fox in the snow", "two blue birds"]
    with applied(pipe, plans[tiny.name]), counted(pipe, tiny.denoisers) as calls:
        together = latents(tiny, pipe, prompt=prompts, generator=generators(0, 1))
        count = len(calls)
        alone = [
            latents(tiny, pipe, prompt=prompt, generator=generators(seed)[0])
            for seed, prompt in enumerate(prompts)
        ]
    assert count == EVALUATIONS * tiny.calls_per_step
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_several_pictures_a_prompt(flux, plan):
    with applied(flux, plan), counted(flux, FLUX.denoisers) as calls:
        pictures = latents(FLUX, flux, num_images_per_prompt=3, generator=generators(0, 1, 2))
        count = len(calls)
        last = latents(FLUX, flux, generator=generators(2)[0])
    assert (count, len(pictures)) == (EVALUATIONS, 3)
    torch.testing.assert_close(pictures[2:], last, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "sd3", "wan", "sana", "qwen-image"])
def test_bfloat16(name):
    tiny = PIPELINES[name]
    pipe = tiny.build().to(torch.bfloat16)
    if name == "wan":
        pipe.vae.to(torch.float32)
    plan = plan_of(tiny, pipe)
    assert plan.origin.dtype == ("float32" if name == "sana" else "bfloat16")
    untouched = run(tiny, pipe)
    with recorded(pipe) as velocities:
        run(tiny, pipe)
    with applied(pipe, Plan.full(plan.times)):
        assert torch.equal(run(tiny, pipe), untouched)
    with applied(pipe, plan), fed(velocities):
        assert torch.equal(run(tiny, pipe), untouched)
    with applied(pipe, plan):
        found = run(tiny, pipe)
    assert found.dtype == untouched.dtype
    assert 0 < (found - untouched).norm() < 0.2 * untouched.norm()


@pytest.mark.parametrize("tiny", [FLUX, SD3, WAN], ids=lambda tiny: tiny.name)
def test_the_callback_comes_once_an_anchor(tiny, plans):
    pipe, seen = tiny.build(), []

    def note(pipe, i, t, tensors):
        seen.append((i, float(t)))
        return {"latents": tensors["latents"]}

    with applied(pipe, plans[tiny.name]):
        run(tiny, pipe, callback_on_step_end=note)
        timesteps = pipe.scheduler.timesteps.tolist()
    assert seen == list(enumerate(timesteps))
    assert len(seen) == EVALUATIONS


def test_a_changed_step_count_and_back(flux, plan, caplog):
    with applied(flux, plan):
        first = run(FLUX, flux)
        with counted(flux, FLUX.denoisers) as calls:
            run(FLUX, flux, num_inference_steps=20)
            planned = flux.scheduler.run_plan
        assert torch.equal(run(FLUX, flux), first)
    assert (planned.steps, planned.evaluations) == (20, len(calls))
    assert planned == replan(plan, planned.times)
    assert f"{len(calls)} evaluations" in caplog.text


@pytest.mark.slow
def test_a_changed_resolution_and_back(flux, plan, caplog):
    """Flux shifts its grid by the picture's size, so the plan follows."""
    with applied(flux, plan):
        first = run(FLUX, flux)
        assert not caplog.records
        with counted(flux, FLUX.denoisers) as calls:
            run(FLUX, flux, height=256, width=256)
            planned = flux.scheduler.run_plan
        assert torch.equal(run(FLUX, flux), first)
    assert planned == replan(plan, planned.times)
    assert len(calls) == planned.evaluations
    assert f"{len(calls)} evaluations" in caplog.text


def test_sigmas_of_the_callers_own(flux, plan):
    sigmas = [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2, 0.1]
    with applied(flux, plan), counted(flux, FLUX.denoisers) as calls:
        run(FLUX, flux, sigmas=sigmas)
        planned = flux.scheduler.run_plan
    assert planned.steps == len(sigmas)
    assert len(calls) == planned.evaluations < len(sigmas)


@pytest.mark.parametrize("tiny", [FLUX, WAN], ids=lambda tiny: tiny.name)
def test_a_failed_run_leaves_nothing_behind(tiny, plans):
    pipe = tiny.build()

    def fail(pipe, i, t, tensors):
        if i == 2:
            raise RuntimeError("the callback failed")
        return {}

    with applied(pipe, plans[tiny.name]):
        expected = run(tiny, pipe)
        with pytest.raises(RuntimeError, match="the callback failed"):
            run(tiny, pipe, callback_on_step_end=fail)
        assert torch.equal(run(tiny, pipe), expected)
        broken = pipe.transformer.register_forward_hook(failing_after(3))
        with pytest.raises(RuntimeError, match="the model failed"):
            run(tiny, pipe)
        broken.remove()
        assert torch.equal(run(tiny, pipe), expected)


def failing_after(calls: int) -> Any:
    count = iter(range(calls))

    def hook(*_: Any) -> None:
        if next(count, None) is None:
            raise RuntimeError("the model failed")

    return hook


def test_an_interrupted_run(flux, plan):
    def interrupt(pipe, i, t, tensors):
        pipe._interrupt = i == 1
        return {}

    with applied(flux, plan):
        expected = run(FLUX, flux)
        with counted(flux, FLUX.denoisers) as calls:
            stopped = run(FLUX, flux, callback_on_step_end=interrupt)
        assert len(calls) == 2
        assert not torch.equal(stopped, expected)
        assert torch.equal(run(FLUX, flux), expected)


def test_true_guidance(flux):
    options = {"true_cfg_scale": 4.0, "negative_prompt": "blurry"}
    plan = plan_of(FLUX, flux, **options)
    untouched = run(FLUX, flux, **options)
    with recorded(flux) as velocities:
        run(FLUX, flux, **options)
    with applied(flux, plan), counted(flux, FLUX.denoisers) as calls, fed(velocities):
        assert torch.equal(run(FLUX, flux, **options), untouched)
    assert len(calls) == 2 * EVALUATIONS
    assert plan.origin.call["true_cfg_scale"] == 4.0


# --- beside other tools -----------------------------------------------------------------------

OFFLOADS = {
    "model": lambda pipe, device: pipe.enable_model_cpu_offload(device=device),
    "group": lambda pipe, device: pipe.enable_group_offload(
        onload_device=torch.device(device), offload_type="leaf_level"
    ),
}


def check_offload(kind: str, device: str, plan: Plan) -> None:
    flux = FLUX.build()
    OFFLOADS[kind](flux, device)
    untouched = run(FLUX, flux)
    with applied(flux, Plan.full(plan.times)):
        assert torch.equal(run(FLUX, flux), untouched)
    for _ in range(2):  # hooks are put back after a run
        with applied(flux, plan), counted(flux, FLUX.denoisers) as calls:
            skipping = run(FLUX, flux)
        assert len(calls) == EVALUATIONS
    assert 0 < (skipping - untouched).norm() < 0.2 * untouched.norm()


@pytest.mark.parametrize("kind", OFFLOADS)
def test_offloading_hooks(kind, plan):
    """With the CPU as the device: the hooks run, and have nowhere to move weights to."""
    check_offload(kind, "cpu", plan)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device to move weights to")
@pytest.mark.parametrize("kind", OFFLOADS)
def test_offloading_to_a_device(kind, plan):
    check_offload(kind, "cuda", plan)


@pytest.mark.slow
def test_lora_loaded_and_unloaded(flux, plan, tmp_path):
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    donor = FLUX.build()
    donor.transformer.add_adapter(
        LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False)
    )
    donor.save_lora_weights(tmp_path, get_peft_model_state_dict(donor.transformer))
    with applied(flux, plan):
        without = run(FLUX, flux)
        flux.load_lora_weights(tmp_path)
        with counted(flux, FLUX.denoisers) as calls:
            adapted = run(FLUX, flux)
        flux.unload_lora_weights()
        assert torch.equal(run(FLUX, flux), without)
    assert len(calls) == EVALUATIONS
    assert not torch.equal(adapted, without)


def test_a_full_plan_with_lora(flux, plan):
    from peft import LoraConfig

    flux.transformer.add_adapter(
        LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False)
    )
    untouched = run(FLUX, flux)
    with applied(flux, Plan.full(plan.times)):
        assert torch.equal(run(FLUX, flux), untouched)


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [FLUX, WAN], ids=lambda tiny: tiny.name)
def test_a_compiled_transformer_keeps_its_graph(tiny, plans):
    from torch._dynamo.utils import counters

    pipe, plan = tiny.build(), plans[tiny.name]
    torch._dynamo.reset()
    counters.clear()
    pipe.transformer = torch.compile(pipe.transformer, backend="eager", fullgraph=True)
    run(tiny, pipe)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    callbacks = []
    with applied(pipe, plan):
        run(tiny, pipe, callback_on_step_end=lambda *_: callbacks.append(1) or {})
    assert len(callbacks) == EVALUATIONS
    assert counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()


@pytest.mark.slow
def test_first_block_cache_on_top(flux, plan):
    """Diffusers' own cache, inside the transformer, works on what the plan leaves."""
    plain = run(FLUX, flux)
    flux.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    untouched = run(FLUX, flux)
    assert not torch.equal(untouched, plain)
    with applied(flux, Plan.full(plan.times)):
        assert torch.equal(run(FLUX, flux), untouched)
    with applied(flux, plan), counted(flux, FLUX.denoisers) as calls:
        both = run(FLUX, flux)
        assert torch.equal(run(FLUX, flux), both)
    assert len(calls) == 2 * EVALUATIONS
    flux.transformer.disable_cache()
    assert torch.equal(run(FLUX, flux), plain)


def test_calibrating_with_a_plan_applied_sees_the_full_run(flux, plan):
    apply(flux, plan)
    carrier = flux.scheduler
    call = FLUX.call() | {"num_inference_steps": STEPS}
    profile = calibrate(flux, [call.pop("prompt")], **call)
    assert flux.scheduler is carrier
    assert make_plan(profile, evaluations=EVALUATIONS) == plan


def test_the_progress_bar_ends_where_the_run_does(flux, plan, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, iterable=None, total=None, **_: Any) -> None:
            self.total, self.n = total, 0
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_: Any) -> None: ...

        def update(self, count: int = 1) -> None:
            self.n += count

    monkeypatch.setattr("diffusers.pipelines.pipeline_utils.tqdm", Bar)
    with applied(flux, plan):
        flux(**call_of(FLUX))
    assert [(bar.n, bar.total) for bar in bars] == [(EVALUATIONS, EVALUATIONS)]


@pytest.mark.slow
def test_a_call_holds_no_state_that_is_over(flux, plan):
    """Neither in its frame while it runs, nor in a circle that only the collector would free."""
    apply(flux, plan)
    states: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        alive.append(sum(state() is not None for state in states))
        states.append(weakref.ref(kwargs["hidden_states"]))

    handle = flux.transformer.register_forward_pre_hook(note, with_kwargs=True)
    gc.collect()
    gc.disable()
    try:
        run(FLUX, flux)
        left = sum(state() is not None for state in states)
    finally:
        gc.enable()
        handle.remove()
    assert len(alive) == EVALUATIONS
    assert alive == [0] * EVALUATIONS
    assert left == 0
