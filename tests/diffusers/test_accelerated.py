"""`accelerate`: what each call of a pipeline follows, and what it learns on the way."""

import copy
import errno
import json
import logging
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FirstBlockCacheConfig,
    FlowMatchEulerDiscreteScheduler,
)
from tests.diffusers.test_starts import STARTED
from tests.diffusers_support import counted, latents, run
from tests.forked import ForkedScript
from tests.tiny import FURTHER, PIPELINES

from tacache import HostError, Plan, PlanError, TACacheError, instant_plan, time_grid
from tacache.diffusers import accelerate, applied, apply, fit_plan, remove
from tacache.diffusers.accelerated import CutTimesteps
from tacache.diffusers.schedulers import PlanSchedulerMixin
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts import choosing
from tacache.instant import like_evaluations
from tacache.storage.store import PlanStore

STEPS, EVALUATIONS = 12, 5
NAMES = ["flux", "sd3", "wan", "wan-euler", "wan-2.2", "qwen-image"]
FLUX = PIPELINES["flux"]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def drawn(tiny, pipe, seed=0, **changes):
    return latents(tiny, pipe, generator=seeded(seed), **changes)


def lines(caplog):
    return [one.getMessage() for one in caplog.records if one.name == "tacache.diffusers"]


def encoded(pipe, prompt, tiny=FLUX):
    """A call by the encodings of a prompt, as users make it who have no text encoders loaded."""
    call = tiny.call()
    call.pop("prompt"), call.pop("negative_prompt", None)
    if tiny is FLUX:
        embeds, pooled, _ = pipe.encode_prompt(prompt, None, device="cpu", max_sequence_length=16)
        return call | {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled, "prompt": None}
    found = pipe.encode_prompt(prompt, None, None, device="cpu")
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds",
             "negative_pooled_prompt_embeds")  # fmt: skip
    return call | dict(zip(names, found, strict=True)) | {"prompt": None, "negative_prompt": None}


@pytest.fixture
def flux():
    return FLUX.build()


@pytest.fixture
def plain(flux):
    """The untouched results of the first seeds."""
    return [drawn(FLUX, flux, seed) for seed in range(4)]


# --- at once -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_call_makes_exactly_as_many_evaluations_as_were_asked_for(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS)
    for seed in range(2):
        with counted(pipe, tiny.denoisers) as calls:
            drawn(tiny, pipe, seed)
        assert len(calls) == EVALUATIONS * tiny.calls_per_step
        assert pipe.scheduler.run_plan.evaluations == EVALUATIONS
        assert pipe.scheduler.run_plan.rule == "linear"


def test_it_is_the_instant_plan_applied(flux, plain):
    accelerate(flux, evaluations=EVALUATIONS)
    found = drawn(FLUX, flux)
    plan = flux.scheduler.run_plan
    assert (plan.anchors, plan.weights) == (
        instant_plan(plan.times, EVALUATIONS).anchors,
        instant_plan(plan.times, EVALUATIONS).weights,
    )
    remove(flux)
    with applied(flux, plan):
        assert torch.equal(found, drawn(FLUX, flux))
    assert torch.equal(drawn(FLUX, flux), plain[0])


def test_one_line_serves_calls_of_different_steps_and_sizes(flux):
    accelerate(flux)
    for steps, evaluations in ((12, 9), (20, 12), (13, 11), (50, 13)):
        drawn(FLUX, flux, num_inference_steps=steps)
        plan = flux.scheduler.run_plan
        assert (plan.steps, plan.evaluations) == (steps, evaluations)
    side = FLUX.call()["height"]
    before = plan.times
    drawn(FLUX, flux, height=2 * side, num_inference_steps=50)
    assert flux.scheduler.run_plan.times != before  # a dynamic shift follows the size


def test_a_log_line_says_which_plan_once_for_each_setting(flux, caplog):
    accelerate(flux, evaluations=EVALUATIONS)
    for steps in (12, 12, 14, 12, 14):
        drawn(FLUX, flux, num_inference_steps=steps)
    said = lines(caplog)
    assert len(said) == 2
    assert said[0].startswith("an instant plan is followed: 5 evaluations of 12 steps")
    assert "learn=8" in said[0]
    assert "5 evaluations of 14 steps" in said[1]


def test_plain_steps_in_the_place_of_an_instant_plan_are_those_of_the_pipeline():
    tiny = PIPELINES["hunyuan-video"]
    pipe = tiny.build()
    wanted = drawn(tiny, pipe, num_inference_steps=8)
    accelerate(pipe, evaluations=8)  # of 64 steps: measured to be worse than 8 plain steps
    found = drawn(tiny, pipe, num_inference_steps=64)
    assert pipe.scheduler.run_plan.has_own_times
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_of_other_solvers_plain_steps_were_not_measured():
    tiny = PIPELINES["wan"]
    pipe = tiny.build()
    accelerate(pipe, evaluations=8)
    drawn(tiny, pipe, num_inference_steps=64)
    assert not pipe.scheduler.run_plan.has_own_times


def test_few_steps_stay_full_and_that_is_said_once(flux, plain, caplog):
    few = drawn(FLUX, flux, num_inference_steps=3)
    accelerate(flux, speedup=2)
    for _ in range(2):
        assert torch.equal(drawn(FLUX, flux, num_inference_steps=3), few)
        assert flux.scheduler.run_plan is None
    assert lines(caplog) == [
        "a run of 3 steps stays full: with fewer than 4 there is too little to skip"
    ]
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.evaluations == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan"])
@pytest.mark.parametrize(("steps", "evaluations"), [(4, 3), (8, 6), (16, 9)])
def test_few_steps_are_accelerated_and_learned_from(name, steps, evaluations):
    tiny = PIPELINES[name]
    pipe, few = tiny.build(), {"num_inference_steps": steps}
    untouched = drawn(tiny, pipe, 0, **few)
    accelerate(pipe, evaluations=evaluations)
    drawn(tiny, pipe, 0, **few)
    assert (pipe.scheduler.run_plan.steps, pipe.scheduler.run_plan.evaluations) == (
        steps, evaluations
    )  # fmt: skip
    accelerate(pipe, evaluations=evaluations, learn=2)
    assert torch.equal(drawn(tiny, pipe, 0, **few), untouched)
    drawn(tiny, pipe, 1, **few)
    with counted(pipe, tiny.denoisers) as calls:
        drawn(tiny, pipe, 2, **few)
    assert pipe.scheduler.run_plan.rule == "fitted"
    assert len(calls) == evaluations * tiny.calls_per_step


def test_more_evaluations_than_steps_are_a_full_run(flux, plain, caplog):
    accelerate(flux, evaluations=13)
    assert torch.equal(drawn(FLUX, flux), plain[0])
    assert "13 evaluations skip none" in caplog.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"speedup": 4, "evaluations": 5}, "not speedup and evaluations"),
        ({"speedup": 0.5}, "speedup is a number from 1"),
        ({"evaluations": 0}, "at least 1"),
        ({"learn": 1}, "learn is 0 or at least 2"),
        ({"learn": -3}, "learn is 0 or at least 2"),
        ({"plan": 3}, "a plan is needed"),
    ],
)
def test_what_makes_no_sense_is_refused(flux, options, reason):
    with pytest.raises(PlanError, match=reason):
        accelerate(flux, **options)
    assert not isinstance(flux.scheduler, PlanSchedulerMixin)


@pytest.mark.parametrize("options", [{"evaluations": 12}, {"evaluations": 5}, {"learn": 2}])
def test_what_is_not_finite_is_an_error_at_every_budget(flux, options):
    accelerate(flux, **options)
    with torch.no_grad():
        flux.transformer.proj_out.weight.fill_(float("nan"))
    with pytest.raises(TACacheError, match="finite"):
        drawn(FLUX, flux)


def test_a_picture_that_is_no_number_is_none():
    from tacache.diffusers.calls import pixels_of

    picture = np.full((2, 2, 3), 0.5)
    assert pixels_of((picture[None],)).dtype == np.float32
    picture[0, 0, 0] = np.nan
    with pytest.raises(HostError, match="not a number"):
        pixels_of((picture[None],))


def test_beside_a_cache_of_diffusers_runs_stay_full(flux, caplog):
    """As a fit refuses it: a stored plan knows nothing of what a cache skips."""
    flux.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    full = drawn(FLUX, flux)
    accelerate(flux, evaluations=EVALUATIONS)
    assert torch.equal(drawn(FLUX, flux), full)
    assert flux.scheduler.run_plan is None
    assert "has a cache of diffusers enabled" in caplog.text
    flux.transformer.disable_cache()
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.evaluations == EVALUATIONS


@pytest.mark.parametrize(
    ("name", "expected"),
    [("flux", "known; learn=8 (--learn 8) or fit_plan"), ("flux-img2img", "known; fit_plan"),
     ("ltx2", "known; learn=8 (--learn 8) or fit_plan"),
     ("modular-flux", "known; learn=8 (--learn 8) or fit_plan")],
)  # fmt: skip
def test_the_advice_is_what_is_possible(name, expected, caplog):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS)
    run(tiny, pipe)
    (line,) = [one for one in lines(caplog) if "an instant plan" in one]
    assert expected in line


@pytest.mark.slow
def test_a_call_that_counts_its_loop_stays_full(caplog):
    tiny = PIPELINES["flux-controlnet"]
    pipe = tiny.build()
    full = run(tiny, pipe, control_guidance_end=0.5)
    accelerate(pipe)
    assert torch.equal(run(tiny, pipe, control_guidance_end=0.5), full)
    assert pipe.scheduler.run_plan is None
    assert "this run stays full" in caplog.text
    assert "control_guidance_end" in caplog.text
    run(tiny, pipe)
    assert pipe.scheduler.run_plan.evaluations == 9


def test_a_loop_of_ones_own_stays_full(flux, caplog):
    accelerate(flux)
    flux.scheduler.set_timesteps(sigmas=[1 - n / 12 for n in range(12)], mu=0.5)
    assert len(flux.scheduler.timesteps) == 12
    assert flux.scheduler.run_plan is None
    assert "cannot be read" in caplog.text


# --- image to image ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_the_strength_is_taken_from_the_call(name):
    tiny = STARTED[name]
    pipe = tiny.build()
    call = {"num_inference_steps": 20}
    full = run(tiny, pipe, strength=0.7, **call)
    accelerate(pipe, evaluations=10)
    found = run(tiny, pipe, strength=0.7, **call)
    plan = pipe.scheduler.run_plan
    assert (plan.steps, plan.evaluations) == (14, 7)
    apply(pipe, plan, strength=0.7)
    assert torch.equal(found, run(tiny, pipe, strength=1.0, **call))
    accelerate(pipe, speedup=1)
    assert torch.equal(run(tiny, pipe, strength=0.7, **call), full)


def test_what_is_left_of_a_run_may_be_too_short(caplog):
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    full = run(tiny, pipe, strength=0.25)
    accelerate(pipe)
    assert torch.equal(run(tiny, pipe, strength=0.25), full)
    assert "a run of 3 steps stays full" in caplog.text


def test_a_pipeline_that_starts_elsewhere_than_its_strength_says_stays_full(caplog, monkeypatch):
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    full = run(tiny, pipe, strength=0.7, num_inference_steps=20)
    accelerate(pipe)
    monkeypatch.setattr("tacache.diffusers.accelerated.start_step", lambda *_: 5)
    assert torch.equal(run(tiny, pipe, strength=0.7, num_inference_steps=20), full)
    assert pipe.scheduler.run_plan is None
    assert "does not start at the step that its strength says" in caplog.text


# --- plans that are there ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stored_plan_is_found_for_its_own_setting_alone(flux, caplog):
    call = FLUX.call() | {"num_inference_steps": STEPS}
    prompt = call.pop("prompt")
    plan = fit_plan(flux, [prompt, "a bowl"], evaluations=EVALUATIONS, search=False, **call)
    PlanStore().put(plan)
    accelerate(flux, evaluations=EVALUATIONS)
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.rule == "fitted"
    assert "the stored plan" in lines(caplog)[0]
    assert "drift" in lines(caplog)[0]
    for other in ({"guidance_scale": 7.0}, {"num_inference_steps": 13}, {"height": 64}):
        drawn(FLUX, flux, **other)
        assert flux.scheduler.run_plan.rule == "linear"
    with torch.no_grad():
        flux.transformer.proj_out.weight.mul_(1.5)
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.rule == "linear"


def test_a_plan_that_is_stored_meanwhile_is_followed_from_the_next_call_on(flux):
    accelerate(flux, evaluations=EVALUATIONS)
    drawn(FLUX, flux)
    plan = flux.scheduler.run_plan
    fitted = {"rule": "fitted", "weights": tuple((1.0,) for _ in plan.anchors)}
    PlanStore().put(plan.model_copy(update=fitted))
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.rule == "fitted"


@pytest.mark.parametrize("as_file", [False, True])
def test_a_given_plan_is_followed_where_it_has_the_steps(flux, tmp_path, as_file):
    accelerate(flux, evaluations=4)
    drawn(FLUX, flux)
    made = flux.scheduler.run_plan
    rows = tuple((1.0,) for _ in made.anchors)
    plan = made.model_copy(update={"rule": "fitted", "weights": rows})
    plan.save(tmp_path / "a.plan.json")
    accelerate(flux, evaluations=6, plan=tmp_path / "a.plan.json" if as_file else plan)
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.weights == rows
    drawn(FLUX, flux, num_inference_steps=14)
    assert (flux.scheduler.run_plan.rule, flux.scheduler.run_plan.evaluations) == ("linear", 6)


def test_apply_takes_a_path_too(flux, tmp_path):
    plan = instant_plan(time_grid(STEPS), EVALUATIONS)
    plan.save(tmp_path / "a.plan.json")
    apply(flux, str(tmp_path / "a.plan.json"))
    assert flux.scheduler.plan == plan
    with applied(flux, tmp_path / "a.plan.json"):
        assert flux.scheduler.plan == plan
    with pytest.raises(PlanError, match=r"missing\.json"):
        apply(flux, tmp_path / "missing.json")


# --- a quality asked for -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nearness_to_the_flow_costs_what_the_table_says(name, caplog):
    """Steps of the plan's own, whatever the pipeline's solver is."""
    tiny = PIPELINES[name]
    pipe = tiny.build()
    accelerate(pipe, like_steps=28)
    with counted(pipe, tiny.denoisers) as calls:
        found = drawn(tiny, pipe, num_inference_steps=50)
    few = like_evaluations(28, clip="wan" in name)
    assert len(calls) == few * tiny.calls_per_step
    plan = pipe.scheduler.run_plan
    assert (plan.rule, plan.evaluations, plan.has_own_times) == ("linear", few, True)
    assert "that was not measured" in caplog.text
    remove(pipe)
    with applied(pipe, plan):
        assert torch.equal(found, drawn(tiny, pipe, num_inference_steps=50))


def test_a_run_of_few_steps_that_is_not_near_enough_stays_full_and_says_so(flux, plain, caplog):
    accelerate(flux, like_steps=100)
    assert torch.equal(drawn(FLUX, flux), plain[0])
    assert flux.scheduler.run_plan is None
    (line,) = lines(caplog)
    assert "all of its 12 steps" in line
    assert "as near to the flow as 100 Euler steps" in line


def test_a_psnr_runs_in_full_until_it_is_known(flux, plain, caplog):
    accelerate(flux, min_psnr=35)
    assert torch.equal(drawn(FLUX, flux), plain[0])
    (line,) = lines(caplog)
    assert "no plan that skips some of them is known to reach what is asked for" in line
    assert "learn=8" in line


@pytest.mark.slow
def test_the_strength_leaves_its_share_of_the_steps_that_are_asked_for():
    tiny = STARTED["flux-img2img"]
    pipe = tiny.build()
    accelerate(pipe, like_steps=28)
    with counted(pipe, tiny.denoisers) as calls:
        run(tiny, pipe, strength=0.5, num_inference_steps=50)
    assert len(calls) == like_evaluations(14) * tiny.calls_per_step
    assert len(pipe.scheduler.run_plan.grid) == 26


@pytest.mark.slow
@pytest.mark.parametrize("quality", [{"min_psnr": 30}, {"min_psnr": 28, "psnr_of": "p5"}])
def test_the_smallest_budget_that_reaches_a_psnr_is_learned(flux, quality, caplog):
    """One set of recorded runs serves all budgets, and the next process finds the plan."""
    call = {"output_type": "pt"}
    full = [run(FLUX, flux, generator=seeded(seed), **call) for seed in range(5)]
    accelerate(flux, learn=4, **quality)
    for seed in range(4):
        assert torch.equal(run(FLUX, flux, generator=seeded(seed), **call), full[seed])
        assert flux.scheduler.run_plan is None
    run(FLUX, flux, generator=seeded(4), **call)
    plan = flux.scheduler.run_plan
    (cost,) = [line for line in lines(caplog) if "samples are recorded" in line]
    assert "budgets are tried, from the same full runs" in cost
    goal = QualityGoal(**quality)
    assert goal.promised_by(plan.certificate)
    stored = [entry.plan for entry in PlanStore().plans()]
    assert plan == goal.fewest(stored, lambda tried: tried)
    assert plan.evaluations == 1 or any(  # the budget below was tried, and is known not to do
        one.evaluations == plan.evaluations - 1 and not goal.promised_by(one.certificate)
        for one in stored
    )
    assert not list((PlanStore().folder / "learning").glob("*/*"))
    again = FLUX.build()
    accelerate(again, **quality)
    run(FLUX, again, generator=seeded(4), **call)
    assert again.scheduler.run_plan == plan


@pytest.mark.slow
def test_nearness_to_the_flow_is_learned(flux, caplog):
    accelerate(flux, like_steps=8, learn=2)
    for seed in range(3):
        drawn(FLUX, flux, seed, num_inference_steps=8)
    plan = flux.scheduler.run_plan
    assert (plan.rule, plan.certificate.equivalent_steps >= 8) == ("fitted", True)
    assert plan.evaluations < 8


@pytest.mark.slow
def test_latents_have_no_psnr_to_learn(flux, caplog):
    accelerate(flux, min_psnr=35, learn=2)
    for seed in range(3):
        drawn(FLUX, flux, seed)
    assert flux.scheduler.run_plan is None
    assert caplog.text.count("nothing can be learned from these calls: min_psnr is") == 1
    assert PlanStore().plans() == []


# --- learning ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "modular-flux"])
def test_two_samples_teach_a_plan_and_are_what_they_were_without(name, caplog):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    untouched = [drawn(tiny, pipe, seed) for seed in range(2)]
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        assert torch.equal(drawn(tiny, pipe, seed), untouched[seed])
        assert pipe.scheduler.run_plan is None
    with counted(pipe, tiny.denoisers) as calls:
        drawn(tiny, pipe, 2)
    assert len(calls) == EVALUATIONS * tiny.calls_per_step
    assert pipe.scheduler.run_plan.rule == "fitted"
    (stored,) = PlanStore().plans()
    assert stored.plan == pipe.scheduler.run_plan
    assert stored.plan.certificate.held_out == 1
    assert not list((PlanStore().folder / "learning").glob("*/*"))
    said = lines(caplog)
    assert "the first 2 samples of this setting run in full" in said[0]
    assert "at most 340 evaluations" in said[1]
    assert "stored as" in said[2]


ANOTHER_PROCESS = """
import sys, torch
from tacache.diffusers import accelerate
from tests.diffusers_support import PIPELINES, counted, latents
tiny = PIPELINES[sys.argv[1]]
pipe = tiny.build()
accelerate(pipe, evaluations=5, learn=int(sys.argv[2]))
for seed in map(int, sys.argv[3:]):
    with counted(pipe, tiny.denoisers) as calls:
        latents(tiny, pipe, generator=torch.Generator().manual_seed(seed))
    plan = pipe.scheduler.run_plan
    print("drawn", len(calls), None if plan is None else plan.rule, flush=True)
"""


def process(*arguments):
    return ForkedScript(ANOTHER_PROCESS, *arguments)


def results(child):
    code = child.wait()
    out, error = child.output()
    assert code == 0, error
    return [line.split()[1:] for line in out.splitlines() if line.startswith("drawn")], error


@pytest.mark.slow
def test_arguments_that_a_pipeline_fills_in_itself_do_not_hinder(caplog):
    """CogView4 puts sizes of its own, which are tuples, in the place of None."""
    tiny = PIPELINES["cogview4"]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for seed in range(3):
        drawn(tiny, pipe, seed)
    assert pipe.scheduler.run_plan.rule == "fitted", lines(caplog)


@pytest.mark.slow
def test_the_plan_is_better_than_the_instant_one(flux, plain):
    accelerate(flux, evaluations=EVALUATIONS)
    at_once = drawn(FLUX, flux, 3)
    accelerate(flux, evaluations=EVALUATIONS, learn=3)
    for seed in range(3):
        drawn(FLUX, flux, seed)
    learned = drawn(FLUX, flux, 3)
    assert (learned - plain[3]).norm() < (at_once - plain[3]).norm()


@pytest.mark.slow
def test_samples_are_counted_not_calls(flux, caplog):
    prompts = ["a red fox", "two boats", "a lamp"]
    call = {"prompt": prompts, "generator": [seeded(n) for n in range(3)]}
    untouched = latents(FLUX, flux, **call)
    accelerate(flux, evaluations=EVALUATIONS, learn=4)
    call["generator"] = [seeded(n) for n in range(3)]
    assert torch.equal(latents(FLUX, flux, **call), untouched)
    assert not PlanStore().plans()
    drawn(FLUX, flux, 7, num_images_per_prompt=2)
    assert flux.scheduler.run_plan is None
    (stored,) = PlanStore().plans()
    assert stored.plan.samples + stored.plan.certificate.held_out == 4
    drawn(FLUX, flux, 8)
    assert flux.scheduler.run_plan.rule == "fitted"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_calls_by_encodings_are_learned_from(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for seed, prompt in enumerate(("a red fox", "two boats", "a lamp")):
        call = encoded(pipe, prompt, tiny) | {"num_inference_steps": STEPS}
        pipe(generator=seeded(seed), output_type="latent", **call)
    assert pipe.scheduler.run_plan.rule == "fitted"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan"])
def test_offloading_goes_on_working(name):
    """The fit makes calls of its own within a call, and each that ends renews the hooks."""
    tiny = PIPELINES[name]
    pipe = tiny.build()
    untouched = [drawn(tiny, pipe, seed) for seed in range(2)]
    pipe.enable_model_cpu_offload(device="cpu")  # moves nothing, but has all the hooks
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        assert torch.equal(drawn(tiny, pipe, seed), untouched[seed])
    drawn(tiny, pipe, 2)
    assert pipe.scheduler.run_plan.rule == "fitted"
    assert hasattr(pipe.transformer, "_hf_hook")


@pytest.mark.slow
def test_two_runs_of_one_call_are_not_two_samples(caplog):
    """AnyFlow makes chunk after chunk; the call made again would give the first one for each."""
    tiny = FURTHER["AnyFlowFARPipeline"]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    run(tiny, pipe, chunk_partition=[1, 1])
    assert any("nothing can be learned" in line for line in lines(caplog))
    run(tiny, pipe, chunk_partition=[1, 1])
    assert pipe.scheduler.run_plan.rule == "linear"
    assert not list(PlanStore().plans())


@pytest.mark.slow
def test_settings_are_learned_apart(flux):
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for seed, steps in enumerate((12, 14, 12)):
        drawn(FLUX, flux, seed, num_inference_steps=steps)
    assert [one.plan.steps for one in PlanStore().plans()] == [12]
    drawn(FLUX, flux, 3, num_inference_steps=14)
    assert sorted(one.plan.steps for one in PlanStore().plans()) == [12, 14]


def test_pictures_cannot_be_kept_and_are_not_learned_from(caplog):
    tiny = PIPELINES["flux-img2img"]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS, learn=2)
    for _ in range(2):
        run(tiny, pipe)
        assert pipe.scheduler.run_plan.evaluations == EVALUATIONS
    assert [one for one in lines(caplog) if "not learned from" in one] == [
        "this call is not learned from: its image (Image) cannot be kept for later"
    ]


@pytest.mark.slow
def test_a_callback_that_only_watches_does_not_hinder(flux):
    seen = []
    accelerate(flux, evaluations=EVALUATIONS, learn=2)

    def watch(pipe, step, timestep, values):
        seen.append(step)
        return {}

    for seed in range(3):
        drawn(FLUX, flux, seed, callback_on_step_end=watch)
    assert flux.scheduler.run_plan.rule == "fitted"
    assert len(seen) == 2 * STEPS + EVALUATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latents", "prompt_embeds"])
def test_a_callback_that_changes_the_run_is_found_out(flux, caplog, name):
    def change(pipe, step, timestep, values):
        return {name: values[name] * 1.1} if step == 5 else {}

    changed = {"callback_on_step_end": change, "callback_on_step_end_tensor_inputs": [name]}
    full = drawn(FLUX, flux, **changed)
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    assert torch.equal(drawn(FLUX, flux, **changed), full)
    drawn(FLUX, flux, 1, **changed)
    assert flux.scheduler.run_plan.rule == "linear"
    found = [one for one in lines(caplog) if "edited" in one or "other velocities" in one]
    assert len(found) == 1
    assert not list((PlanStore().folder / "learning").glob("*/*"))


@pytest.mark.slow
def test_learning_leaves_the_generators_as_they_were(flux):
    def drawn_from_the_global_one():
        torch.manual_seed(3)
        found = [latents(FLUX, flux, generator=None) for _ in range(2)]
        return [*found, torch.rand(4)]

    untouched = drawn_from_the_global_one()
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for one, other in zip(drawn_from_the_global_one(), untouched, strict=True):
        assert torch.equal(one, other)
    assert PlanStore().plans()


@pytest.mark.slow
def test_what_does_not_fit_is_kept_without_its_states(flux, plain, monkeypatch):
    monkeypatch.setattr("tacache.hosts.learning.MAX_BYTES", 2000)
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    drawn(FLUX, flux, 0)
    (kept,) = (PlanStore().folder / "learning").glob("*/*.sample")
    assert kept.stat().st_size < 40_000
    drawn(FLUX, flux, 1)
    drawn(FLUX, flux, 2)
    assert flux.scheduler.run_plan.rule == "fitted"


def test_a_launchers_processes_do_not_learn(flux, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    drawn(FLUX, flux)
    assert flux.scheduler.run_plan.rule == "linear"
    assert "several processes of a launcher" in caplog.text


# --- stops, other processes and bad disks ---------------------------------------------------------


@pytest.mark.slow
def test_a_kill_while_learning_loses_nothing(flux, monkeypatch):
    """The process is killed in its fit; the next one fits first, with what was kept."""

    def killed(*args, **options):
        raise KeyboardInterrupt

    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    drawn(FLUX, flux, 0)
    with monkeypatch.context() as patched:
        patched.setattr(choosing, "fit_kept", killed)
        with pytest.raises(KeyboardInterrupt):
            drawn(FLUX, flux, 1)
    assert len(list((PlanStore().folder / "learning").glob("*/*.sample"))) == 2
    drawn(FLUX, flux, 2)
    assert flux.scheduler.run_plan.rule == "fitted"
    assert not list((PlanStore().folder / "learning").glob("*/*"))


@pytest.mark.slow
def test_a_killed_process_is_followed_by_one_that_goes_on():
    child = process("flux", 50, *range(50))
    folder = PlanStore().folder / "learning"
    whole = "*/[0-9]*[0-9].sample"  # drafts have other names
    while not list(folder.glob(whole)) and child.is_running():
        time.sleep(0.02)
    child.kill()
    assert list(folder.glob(whole))
    found, _ = results(process("flux", 2, 5, 6))
    assert found[-1] == ["5", "fitted"]


@pytest.mark.slow
def test_of_two_processes_one_learns_and_a_new_one_finds_its_plan(flux, caplog):
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    drawn(FLUX, flux, 0)
    found, said = results(process("flux", 2, 0, 1))
    assert found == [["5", "linear"]] * 2  # it is served, and mixes nothing in
    assert said.count("another process or pipeline learns this setting") == 1
    drawn(FLUX, flux, 1)
    found, said = results(process("flux", 2, 0))
    assert found == [["5", "fitted"]]
    assert "the stored plan" in said


@pytest.mark.slow
def test_two_pipelines_of_a_process_do_not_mix_either(flux):
    other = FLUX.build()
    for pipe in (flux, other):
        accelerate(pipe, evaluations=EVALUATIONS, learn=2)
        drawn(FLUX, pipe)
    assert flux.scheduler.run_plan is None
    assert other.scheduler.run_plan.rule == "linear"
    remove(flux)
    drawn(FLUX, other, 1)
    drawn(FLUX, other, 2)
    assert other.scheduler.run_plan.rule == "fitted"


@pytest.mark.slow
def test_a_damaged_sample_is_learned_again(flux, caplog):
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    drawn(FLUX, flux, 0)
    remove(flux)
    (kept,) = (PlanStore().folder / "learning").glob("*/*.sample")
    kept.write_bytes(kept.read_bytes()[:500])
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for seed in range(3):
        drawn(FLUX, flux, seed)
    assert "is damaged and was deleted" in caplog.text
    assert flux.scheduler.run_plan.rule == "fitted"


def test_a_store_that_is_no_folder_stops_no_picture(flux, plain, monkeypatch, tmp_path, caplog):
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("TACACHE_HOME", str(tmp_path / "home"))
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        drawn(FLUX, flux, seed)
        assert flux.scheduler.run_plan.rule == "linear"
    said = [one for one in lines(caplog) if "Nothing is learned" in one]
    assert len(said) == 1
    assert str(tmp_path / "home") in said[0]


def test_a_read_only_store_stops_no_picture(flux, monkeypatch, caplog):
    def read_only(**place):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        drawn(FLUX, flux, seed)
        assert flux.scheduler.run_plan.rule == "linear"
    assert caplog.text.count("(Read-only file system): make room, or name another place") == 1


FULL_DISK = (
    """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
"""
    + ANOTHER_PROCESS
)


@pytest.mark.slow
def test_a_full_disk_stops_no_picture(tmp_path):
    """A limit on the size of files stands for the disk: a sample does not fit."""
    found, said = results(ForkedScript(FULL_DISK, "flux", 2, 0, 1))
    assert found == [["12", "None"], ["5", "linear"]]
    assert said.count("Nothing is learned") == 1
    assert "cannot write" in said


@pytest.mark.slow
def test_a_plan_that_cannot_be_stored_is_followed_all_the_same(flux, monkeypatch, caplog):
    def full(self, plan):
        raise choosing.StorageError("cannot write it (No space left on device)")

    monkeypatch.setattr(PlanStore, "put", full)
    accelerate(flux, evaluations=EVALUATIONS, learn=2)
    for seed in range(3):
        drawn(FLUX, flux, seed)
    assert flux.scheduler.run_plan.rule == "fitted"
    assert "not stored" in caplog.text


# --- threads -------------------------------------------------------------------------------------


def test_a_second_thread_is_refused_while_a_call_runs(flux, plain):
    accelerate(flux, evaluations=EVALUATIONS)
    expected, refused, inside = drawn(FLUX, flux), [], threading.Event()

    def other():
        try:
            drawn(FLUX, flux, 1)
        except HostError as error:
            refused.append(str(error))

    def begin_another(pipe, step, timestep, values):
        if step == 2:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            inside.set()
        return {}

    assert torch.equal(drawn(FLUX, flux, callback_on_step_end=begin_another), expected)
    assert inside.is_set()
    assert len(refused) == 1
    assert "another thread is in a call of this pipeline" in refused[0]


def test_threads_one_after_the_other_are_served_also_after_a_stop(flux):
    accelerate(flux, evaluations=EVALUATIONS)
    expected, found = drawn(FLUX, flux, 1), []

    def stop(pipe, step, timestep, values):
        raise RuntimeError("enough")

    def stopped(done, go_on):
        with pytest.raises(RuntimeError, match="enough"):
            drawn(FLUX, flux, callback_on_step_end=stop)
        done.set()
        go_on.wait()

    done, go_on = threading.Event(), threading.Event()
    first = threading.Thread(target=stopped, args=(done, go_on))
    first.start()
    done.wait()
    second = threading.Thread(target=lambda: found.append(drawn(FLUX, flux, 1)))
    second.start()
    second.join()
    go_on.set()
    first.join()
    assert torch.equal(found[0], expected)


def test_a_step_of_a_thread_that_did_not_begin_the_run_is_refused(flux):
    accelerate(flux)
    scheduler, errors = flux.scheduler, []
    scheduler.set_timesteps(sigmas=[1 - n / 12 for n in range(12)], mu=0.5)

    def step():
        try:
            scheduler.step(torch.zeros(1), scheduler.timesteps[0], torch.zeros(1))
        except HostError as error:
            errors.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert len(errors) == 1


# --- what comes back, is saved and copied ---------------------------------------------------------


def test_remove_gives_back_the_very_scheduler(flux, plain):
    before = flux.scheduler
    accelerate(flux, evaluations=EVALUATIONS)
    accelerate(flux, evaluations=4)
    drawn(FLUX, flux)
    remove(flux)
    assert flux.scheduler is before
    assert torch.equal(drawn(FLUX, flux), plain[0])


def test_within_a_block_another_plan_is_followed(flux):
    accelerate(flux, evaluations=EVALUATIONS)
    mine = flux.scheduler
    drawn(FLUX, flux)
    with applied(flux, Plan.full(flux.scheduler.run_plan.times)):
        drawn(FLUX, flux)
        assert flux.scheduler.run_plan.evaluations == STEPS
    assert flux.scheduler is mine


def test_a_saved_pipeline_has_the_plain_scheduler(flux, plain, tmp_path):
    accelerate(flux, evaluations=EVALUATIONS)
    drawn(FLUX, flux)
    flux.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["scheduler"] == ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    loaded = DiffusionPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded.scheduler) is FlowMatchEulerDiscreteScheduler
    remove(flux)
    own = dict(flux.scheduler.config).items()
    assert {(k, str(v)) for k, v in loaded.scheduler.config.items() if k[0] != "_"} == {
        (k, str(v)) for k, v in own if k[0] != "_"
    }
    assert torch.allclose(drawn(FLUX, loaded), plain[0], atol=1e-4)


def test_a_pickled_scheduler_is_the_plain_one(flux):
    accelerate(flux)
    again = pickle.loads(pickle.dumps(flux.scheduler))
    assert type(again) is FlowMatchEulerDiscreteScheduler


def test_a_copied_pipeline_is_accelerated_too(flux):
    accelerate(flux, evaluations=EVALUATIONS)
    expected = drawn(FLUX, flux)
    copied = copy.deepcopy(flux)
    assert torch.equal(drawn(FLUX, copied), expected)
    assert copied.scheduler.run_plan.evaluations == EVALUATIONS


@pytest.mark.slow
def test_sound_beside_pictures_follows_the_same_plan():
    tiny = PIPELINES["ltx2"]
    pipe = tiny.build()
    accelerate(pipe, evaluations=EVALUATIONS)
    with counted(pipe, tiny.denoisers) as calls:
        found = run(tiny, pipe)
    plan = pipe.scheduler.run_plan
    assert len(calls) == EVALUATIONS * tiny.calls_per_step
    remove(pipe)
    with applied(pipe, plan):
        assert torch.equal(found, run(tiny, pipe))


def test_deciding_takes_milliseconds(flux):
    accelerate(flux, evaluations=EVALUATIONS)
    drawn(FLUX, flux)
    chooser, spent = flux.scheduler.chooser, []
    begin = type(flux.scheduler)._begin_run

    def timed(self, before):
        started = time.perf_counter()
        begin(self, before)
        spent.append(time.perf_counter() - started)

    flux.scheduler._begin_run = timed.__get__(flux.scheduler)
    for _ in range(5):
        drawn(FLUX, flux)
    assert chooser.options.evaluations == EVALUATIONS
    assert min(spent) < 0.05


def test_the_line_is_logged_where_users_see_it(caplog, flux):
    accelerate(flux)
    drawn(FLUX, flux)
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("tacache.diffusers", logging.WARNING)
    ]


# --- timesteps that are cut where a strength starts ----------------------------------------------

CUT = torch.tensor([7.0, 3.0])


def cut_at(start):
    begun = []

    def begin():
        begun.append(start)
        return CUT

    return CutTimesteps.of(torch.arange(10.0, 0.0, -1.0), start=start, begin=begin), begun


def test_the_cut_gives_the_anchors():
    timesteps, begun = cut_at(3)
    assert timesteps[3:] is CUT
    assert begun == [3]


def test_everything_else_sees_the_full_steps():
    timesteps, begun = cut_at(3)
    assert len(timesteps) == 10
    assert timesteps[3] == 7.0
    assert torch.equal(timesteps[2:], torch.arange(8.0, 0.0, -1.0))
    assert torch.equal(timesteps[3:5], torch.tensor([7.0, 6.0]))
    for made in (timesteps.to(torch.float64), timesteps * 2, copy.deepcopy(timesteps)):
        assert type(made) is torch.Tensor
        assert len(made[3:]) == 7
    assert not begun
