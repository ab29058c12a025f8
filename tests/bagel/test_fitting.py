"""`tacache.bagel.fit_plan`: plans fitted to the stand-in and, with BAGEL_PATH, to BAGEL."""

import pytest
import torch
from tests import bagel_real, bagel_stand_in
from tests.bagel_stand_in import CALL, SIZE, packed_arguments

from tacache import hosts, instant_plan, make_plan
from tacache.bagel import applied, calibrate, fit_plan
from tacache.bagel.inferencer import BagelHost
from tacache.bagel.maker import pixels_of
from tacache.bagel.runs import run_times
from tacache.errors import HostError, PlanError
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.reference import record
from tacache.hosts.held_runs import HostSamples, hold
from tacache.prompts import samples_of
from tacache.work.processes import ALONE
from tacache_lab.picture_metrics import psnr

pytestmark = pytest.mark.filterwarnings("ignore:.*Disabling autocast:UserWarning")
PROMPTS = ["a red fox", "two boats", "a lamp", "a kite"]


@pytest.fixture(
    scope="module",
    params=["stand-in", pytest.param("real", marks=bagel_real.needs_checkout)],
)
def inferencer(request):
    return (bagel_real if request.param == "real" else bagel_stand_in).inferencer()


@pytest.fixture(scope="module")
def stand_in():
    return bagel_stand_in.inferencer()


@pytest.fixture(scope="module")
def plan(inferencer):
    return fit_plan(inferencer, PROMPTS, evaluations=6, search=False, **CALL)


def drift(inferencer, plan, prompt, call=CALL):
    """Of the followed latents from the full ones, by a call of the inferencer itself."""
    found, model = [], inferencer.model

    def seen():
        torch.manual_seed(0)
        whole = model.generate_image
        model.generate_image = lambda *args, **call: found.append(whole(*args, **call)) or found[-1]
        try:
            inferencer(text=prompt, **call)
        finally:
            model.generate_image = whole

    seen()
    del model.generate_image
    with applied(model, plan):
        seen()
    full, followed = (latents[0] for latents in found)
    return float((followed - full).norm() / full.norm())


def test_a_fitted_plan_is_followed_as_its_certificate_says(inferencer, plan):
    assert (plan.rule, plan.evaluations, plan.steps, plan.samples) == ("fitted", 6, 12, 3)
    assert plan.break_steps == (10,)
    assert plan.certificate.held_out == 1
    found = drift(inferencer, plan, PROMPTS[0])
    assert found == pytest.approx(plan.certificate.drift, rel=1e-3)
    measured = calibrate(inferencer, PROMPTS, **CALL)
    assert measured.origin == plan.origin
    assert found < 1.2 * drift(inferencer, make_plan(measured, evaluations=6), PROMPTS[0])


def test_the_certificates_psnr_is_that_of_the_inferencers_pictures(inferencer, plan):
    torch.manual_seed(0)
    full = pixels_of(inferencer(text=PROMPTS[0], **CALL))
    with applied(inferencer, plan):
        torch.manual_seed(0)
        followed = pixels_of(inferencer(text=PROMPTS[0], **CALL))
    found = psnr(*(torch.from_numpy(one)[None] for one in (full, followed)))
    assert plan.certificate.psnr == pytest.approx(float(found), abs=0.01)


def test_full_runs_are_the_inferencers_own(inferencer):
    latents, model = [], inferencer.model
    samples = samples_of(["a fox", "a cow"], [5])
    with torch.no_grad(), hold(BagelHost(inferencer), samples, CALL, ALONE) as runs:
        reference = record(runs)
    whole = model.generate_image
    model.generate_image = lambda *args, **call: latents.append(whole(*args, **call)) or latents[-1]
    try:
        torch.manual_seed(5)
        inferencer(text="a fox", **CALL)
    finally:
        del model.generate_image
    difference = (reference.states[-1][0] - latents[0][0]).norm() / latents[0][0].norm()
    assert difference < 1e-6


def test_holding_a_call_makes_no_pass_within_its_loop(stand_in):
    passes = []
    hook = stand_in.model.language_model.model.register_forward_pre_hook(
        lambda *_: passes.append(1)
    )
    with torch.no_grad(), hold(BagelHost(stand_in), samples_of(["a fox"]), CALL, ALONE) as runs:
        assert not passes
        runs.evaluate(runs.noise, 0, [0])  # guided
        runs.evaluate(runs.noise, 11, [0])
    hook.remove()
    assert len(passes) == 3


@pytest.mark.slow
@pytest.mark.parametrize("renorm", ["global", "channel"])
def test_the_calls_own_autocast_holds_in_the_fit(renorm):
    inferencer = bagel_stand_in.inferencer()
    inferencer.autocast = "cpu"
    call = CALL | {"cfg_renorm_type": renorm}
    plan = fit_plan(inferencer, PROMPTS, evaluations=6, search=False, **call)
    assert plan.origin.dtype == calibrate(inferencer, ["a fox"], **call).origin.dtype
    assert plan.certificate.drift < 0.05
    found = drift(inferencer, plan, PROMPTS[0], call)  # rounded to bfloat16 at each step
    assert found == pytest.approx(plan.certificate.drift, rel=1e-3)


@pytest.mark.slow
def test_several_budgets_share_their_full_runs(stand_in):
    options = FitOptions(evaluations=(4, 8), search=False)
    plans = hosts.fit_plans(BagelHost(stand_in), PROMPTS, call=CALL, options=options)
    assert [plan.evaluations for plan in plans] == [4, 8]
    assert plans[0].certificate.drift > plans[1].certificate.drift
    spent = 4 * 12 + plans[0].certificate.held_out * 4
    assert plans[0].certificate.evaluations_spent >= spent


@pytest.mark.slow
def test_killed_it_goes_on_where_it_stopped(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr("tacache.fitting.full_runs.KEEP_EVERY", 4)
    evaluate, steps, kept = HostSamples.evaluate, [], tmp_path / "b.runs"

    def dying(self, x, step, chosen):
        steps.append(step)
        if steps.count(9) == 1 and step == 9:
            raise KeyboardInterrupt
        return evaluate(self, x, step, chosen)

    options = {"evaluations": 5, "search": False, **CALL}
    whole = fit_plan(stand_in, PROMPTS, **options)
    monkeypatch.setattr(HostSamples, "evaluate", dying)
    with pytest.raises(KeyboardInterrupt):
        fit_plan(stand_in, PROMPTS, resume=kept, **options)
    steps.append(-1)
    assert fit_plan(stand_in, PROMPTS, resume=kept, **options) == whole
    assert steps[steps.index(-1) + 1] == 8
    with pytest.raises(PlanError, match="runs of another fit"):
        fit_plan(stand_in, PROMPTS, resume=kept, **options | {"cfg_text_scale": 2.0})


def test_without_pictures_there_is_no_psnr(stand_in):
    def generate(prompt):
        arguments = packed_arguments(stand_in, [prompt], [SIZE])
        return stand_in.model.generate_image(**arguments, num_timesteps=9)

    plan = fit_plan(stand_in.model, PROMPTS, evaluations=3, search=False, generate=generate)
    assert plan.certificate.psnr is None
    assert plan.breaks == ()
    assert plan.steps == 8


def test_pictures_are_found_in_what_functions_return(stand_in):
    picture = stand_in(text="a fox", **CALL)["image"]
    found = [pixels_of(output) for output in (picture, [picture], (picture,), {"image": picture})]
    assert all((one == found[0]).all() for one in found)
    assert found[0].shape == (*SIZE, 3)
    assert pixels_of([picture, picture]) is None


def test_two_images_a_call_are_refused(stand_in):
    def generate(prompt):
        packed = packed_arguments(stand_in, [prompt] * 2, [SIZE] * 2)
        return stand_in.model.generate_image(**packed, num_timesteps=9)

    with pytest.raises(HostError, match="one image a call"):
        fit_plan(stand_in.model, PROMPTS, evaluations=3, generate=generate)


def test_prompts_of_different_sizes_are_refused(stand_in):
    def generate(prompt):
        size = SIZE if prompt == PROMPTS[0] else (16, 64)
        packed = packed_arguments(stand_in, [prompt], [size])
        return stand_in.model.generate_image(**packed, num_timesteps=9)

    with pytest.raises(HostError, match="'two boats' with seed 0 runs with another size"):
        fit_plan(stand_in.model, PROMPTS, evaluations=3, generate=generate)


def test_a_function_that_calls_no_model_is_refused(stand_in):
    with pytest.raises(HostError, match="generate_image of the model was not called"):
        fit_plan(stand_in.model, PROMPTS, evaluations=3, generate=lambda prompt: None)


def test_one_sample_and_impossible_budgets_are_refused(stand_in):
    with pytest.raises(PlanError, match="at least two samples"):
        fit_plan(stand_in, PROMPTS[:1], evaluations=5, **CALL)
    with pytest.raises(PlanError, match="12 steps take 2 to 12"):
        fit_plan(stand_in, PROMPTS, evaluations=1, **CALL)


def test_a_velocity_that_is_no_number_names_its_prompt(stand_in):
    hook = stand_in.model.llm2vae.register_forward_hook(lambda *found: found[-1] * float("nan"))
    try:
        with pytest.raises(HostError, match="'a red fox' with seed 0: the velocity at step 0"):
            fit_plan(stand_in, PROMPTS, evaluations=5, **CALL)
    finally:
        hook.remove()


@pytest.mark.slow
def test_a_plan_for_the_flow_is_followed_within_the_models_own_steps(stand_in):
    plan = fit_plan(stand_in, PROMPTS, evaluations=6, target="flow", max_evaluations=400, **CALL)
    assert plan.certificate.flow_drift is not None
    assert (plan.evaluations, plan.full_steps) == (6, 12)
    assert len(plan.break_steps) == 1
    found = drift(stand_in, plan, PROMPTS[0])
    assert found == pytest.approx(plan.certificate.drift, rel=1e-2)


def test_an_instant_plan_for_the_flow_has_its_evaluations_at_its_own_times(stand_in):
    times = run_times(CALL["num_timesteps"], 3.0)
    plan, asked = instant_plan(times, 5, target="flow"), []
    flow = stand_in.model._forward_flow

    def noted(**arguments):
        asked.append(float(arguments["timestep"].flatten()[0]))
        return flow(**arguments)

    stand_in.model._forward_flow = noted
    try:
        with applied(stand_in.model, plan) as following:
            stand_in(text=PROMPTS[0], **CALL)
    finally:
        del stand_in.model._forward_flow
    followed = following.run_plan  # with a node where this run's guidance switches
    assert (len(followed.break_steps), followed.evaluations) == (1, 5)
    assert asked == pytest.approx(followed.times[:-1], abs=1e-6)
